"""README.md says nothing that does not run, and no figure that is not in docs/results."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import shell

from steelyard.declare import discovery
from steelyard.declare.settings import Settings
from steelyard.measure.prepared import PreparedCase

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
BLOCKS = {
    f"{page.name}-{number}": block
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    )
}
FIRST = BLOCKS["README.md-0"]
ON_GPU = {name: block for name, block in BLOCKS.items() if 'b.on("cuda")' in block}
MISSING = [
    name
    for name in ("triton", "triton.language", "cupy", "numba")
    if importlib.util.find_spec(name.partition(".")[0]) is None
]
OTHERS = [block for block in BLOCKS.values() if block not in {FIRST, *ON_GPU.values()}]


def test_the_benchmark_of_the_readme_is_found_and_its_result_is_right(tmp_path):
    """As a file of its own, as the reader is told."""
    (tmp_path / "mine.py").write_text(FIRST)
    (benchmark,) = discovery.discover([str(tmp_path / "mine.py")])
    cases = benchmark.cases()
    assert [case.id for case in cases] == [
        "softmax_rows[columns=128]",
        "softmax_rows[columns=1024]",
    ]
    assert PreparedCase(cases[0], Settings()).checked


@pytest.mark.parametrize("block", OTHERS, ids=range(len(OTHERS)))
def test_other_blocks_run(block, tmp_path):
    """In an interpreter of their own."""
    if "import jax" in block and importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax: pip install 'steelyard[jax]'")
    (tmp_path / "block.py").write_text(block)
    shell.python(str(tmp_path / "block.py"), check=True)


def test_the_ways_to_weigh_ones_own_on_a_gpu_are_all_there():
    """Triton and a cubin, PyTorch, CuPy, Numba."""
    assert len(ON_GPU) == 4


@pytest.mark.parametrize("name", ON_GPU)
def test_benchmarks_of_a_gpu_are_found_and_described_without_one(
    name, tmp_path, monkeypatch
):
    """Where a library is not installed, a module that answers anything stands in."""
    for library in MISSING:
        monkeypatch.setitem(sys.modules, library, mock.MagicMock())
    (tmp_path / f"{tmp_path.name}.py").write_text(ON_GPU[name])
    (benchmark,) = discovery.discover([str(tmp_path / f"{tmp_path.name}.py")])
    described = [case.describe() for case in benchmark.cases()]
    assert {one.device for one in described} == {"cuda"}
    assert all(one.check is not None for one in described)


def test_cubins_take_their_grid_from_the_arguments_that_they_are_launched_with(
    monkeypatch,
):
    """Blocks of 256 for each element, however odd the number."""
    for library in MISSING:
        monkeypatch.setitem(sys.modules, library, mock.MagicMock())
    made = {}
    exec(ON_GPU["gpu.md-0"], made)
    assert made["cubin"].grid(None, None, 257, 2.0) == 2


def words(page):
    """Count the words of a page; tables that are written from results are not read."""
    text = re.sub(
        r"<!-- (\S+) -->.*?<!-- /\1 -->", "", page.read_text(), flags=re.DOTALL
    )
    return len(text.split())


def test_the_readme_is_read_in_five_minutes():
    """900 words; prose of all pages is at most 100 columns wide."""
    assert words(README) <= 900
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        prose = re.sub(r"<!-- (\S+) -->.*?<!-- /\1 -->", "", prose, flags=re.DOTALL)
        wide = [x for x in prose.splitlines() if len(x) > 100 and x[0] not in "| "]
        assert wide == []


def test_pages_link_to_pages_that_are_there():
    """From the README, and back."""
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
            assert (page.parent / link).is_file(), (page, link)


def test_the_tables_are_what_the_results_say():
    """They are written by ci/readme.py."""
    shell.python(str(ROOT / "ci" / "readme.py"), "--check", check=True)


def trial(case, mode, time, block=0, **facts):
    """Return what `steelyard run --json` says of one block of a case."""
    inside = case.partition("[")[2].rstrip("]").split(",")
    axes = dict(part.split("=") for part in inside)
    numbers = {"estimate": time, "low": time * 0.99, "high": time * 1.01}
    where = {"case": case, "mode": mode, "block": block, "axes": axes}
    return {**where, **numbers, "bytes": 1000, "ledger": {}, **facts}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a function that writes a run and gives the lines of its table."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    module = importlib.import_module("readme_gpu")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    stored = json.loads((ROOT / "docs" / "results" / "cpu-suite.json").read_text())
    around = {"machine": stored["machine"] | {"gpu": {"name": "H200", "driver": "580"}}}

    def made(name, trials, table=None):
        run = {"run": {"command": "steelyard run"}, "trials": trials, **around}
        (tmp_path / f"h200-{name}.json").write_text(json.dumps(run))
        return list(module.TABLES[f"gpu-{table or name}"]())

    return made


def test_the_table_of_calls_has_what_was_weighed_and_a_dash_for_the_rest(tables):
    """A batch of one has no number in its mode; of graphs the largest batch is shown."""
    ours = "gpu_dispatch[kernel=add,result=preallocated,wait=batch]"
    lines = tables(
        "dispatch",
        [
            trial(ours, "per_launch/warm", 9000.0),
            trial(ours, "per_launch/warm/100", 4000.0, cpu=3900.0),
            trial(ours, "per_launch/warm/1000", 2500.0),
            trial(ours, "per_launch/warm/graph/100", 1250.0),
            trial(ours, "kernel/warm", 930.0),
        ],
    )
    assert "H200 (driver 580)" in lines[0]
    heads = (
        "| kernel/warm | per_launch/warm | per_launch/warm/100 | per_launch/warm/1000 |"
    )
    assert heads in lines
    wanted = "| 930.0 ns ± 1 % | 9.000 us ± 1 % | 4.000 us ± 1 % | 2.500 us ± 1 % |"
    assert lines[-1] == wanted


def test_a_call_is_taken_apart_into_parts_that_are_the_whole(tables):
    """Each is a difference of two rows; of what was not weighed nothing is said."""
    case = "gpu_dispatch[kernel=matmul,result={},wait={}]".format
    batch, trials = "per_launch/warm/100", []
    trials.append(trial(case("allocated", "each"), batch, 30e3))
    trials.append(trial(case("preallocated", "each"), batch, 20e3))
    trials.append(trial(case("preallocated", "batch"), batch, 11e3))
    lone = tables("dispatch", trials, "call")
    trials.append(
        trial(case("preallocated", "batch"), "per_launch/warm/graph/100", 3e3)
    )
    trials.append(trial(case("preallocated", "batch"), "kernel/warm", 2.5e3))
    assert lone == []
    (said,) = tables("dispatch", trials, "call")
    parts = [10.0, 9.0, 8.0]
    found = re.findall(r"([\d.]+) ± [\d.]+ us", said)
    assert list(map(float, found)) == parts
    assert "call of 30.00 us" in said
    assert "3.000 us ± 1 % are the kernel with" in said


def test_calls_have_processor_time_and_a_rate(tables):
    """By case and mode, as the times are."""
    ours = "gpu_dispatch[kernel=add,result=preallocated,wait=batch]"
    row = trial(ours, "per_launch/warm/100", 4000.0, cpu=3900.0, items=1.0)
    lines = tables("dispatch", [row], "calls")
    assert "| 3.900 us |" in lines
    assert lines[-1] == "| 250,000 |"


def test_a_ledger_whose_parts_are_more_than_the_call_says_why(tables):
    """From 5 % on."""
    case, parts = "gpu_dispatch[kernel=add,n=8]", {"submit": 600.0, "kernel": 460.0}
    lines = tables(
        "dispatch", [trial(case, "latency/warm", 1e3, ledger=parts)], "ledger"
    )
    assert "| 600.0 ns | 460.0 ns | -60.00 ns |" in lines[-3]
    assert lines[-1].startswith("Untracked below 0: parts are measured apart")
    less = trial(case, "latency/warm", 1e3, ledger={"submit": 600.0, "kernel": 440.0})
    assert tables("dispatch", [less], "ledger")[-1].endswith("| -40.00 ns |")


def test_peers_stand_side_by_side_a_table_a_benchmark(tables):
    """Who is not installed has no column."""
    lines = tables(
        "peers",
        [
            trial(f"gpu_peers_{name}[n=8,impl={impl}]", "kernel/cold", 1e3)
            for name, impl in (
                ("adam", "ours"),
                ("adam", "triton"),
                ("matmul", "torch"),
            )
        ],
    )
    assert "**gpu_peers_adam[n=8] kernel/cold**" in lines
    assert "| impl=ours | impl=triton |" in lines
    assert "| impl=torch |" in lines


def test_a_table_of_results_that_are_not_there_is_left_out(monkeypatch, tmp_path):
    """It comes with the results."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    readme, on_gpu = map(importlib.import_module, ("readme", "readme_gpu"))
    monkeypatch.setattr(on_gpu, "RESULTS", tmp_path)
    empty = "a\n<!-- gpu-harnesses -->\n<!-- /gpu-harnesses -->\nb"
    assert readme.written(empty) == empty
    row = {
        "kernel": "add",
        "caches": "cold",
        "steelyard, us": 1.5,
        "steelyard, ±": 0.25,
    }
    rows = {"rows": [row], "gpu": {"name": "H200", "driver": "580"}, "versions": {}}
    (tmp_path / "h200-harnesses.json").write_text(json.dumps(rows))
    full = readme.written(empty)
    assert "| add, cold | - | 1.50 ± 0.25 | - | - | - |" in full
    (tmp_path / "h200-harnesses.json").unlink()
    assert readme.written(full) == empty


def test_the_table_of_widths_is_in_their_order_beside_who_was_there(tables):
    """Numbers sort as numbers; peers that nobody installed have no column."""
    case = "gpu_peers_layernorm[hidden={},impl={}]".format
    lines = tables(
        "layernorm",
        [
            trial(case(hidden, impl), "kernel/cold", hidden * factor)
            for hidden in (20480, 768)
            for impl, factor in (("ours", 2.0), ("copy", 1.5))
        ],
    )
    assert lines[2] == "| hidden | copy | ours | TB/s, ours | copy / ours |"
    assert [line.split()[1] for line in lines[4:]] == ["768", "20480"]
    assert "0.75" in lines[4]


def test_the_table_of_limits_says_unknown_of_what_nobody_counted(tables):
    """Eligible warps come from Nsight Compute alone."""
    case = "gpu_registers[hidden=4096,rank=1,registers={}]".format
    lines = tables(
        "registers",
        [
            trial(case(32), "kernel/cold", 40e3, registers=32, spill_bytes=16),
            trial(case(48), "kernel/cold", 30e3, ncu={"eligible_warps": 1.5}),
        ],
    )
    assert lines[-2].endswith("| 32 | 16 | - | unknown |")
    assert lines[-1].endswith("| - | - | - | 1.50 |")


def test_the_table_of_inputs_has_real_data_first_and_what_any_block_knew(tables):
    """The plan shuffles rows; energy is read in one block, and may be in none."""
    case = "gpu_inputs_copy[inputs={},n=8]".format
    lines = tables(
        "inputs",
        [
            trial(case("constant"), "kernel/warm", 2e3, mhz=1980.0),
            trial(case("normal"), "kernel/warm", 2e3, watts=500.0, joules=0.001),
            trial(case("normal"), "kernel/warm", 2e3, block=1, mhz=1700.0),
        ],
    )
    assert "normal" in lines[-2]
    assert lines[-2].endswith("| 500 | 1.000 mJ | 1700 |")
    assert lines[-1].endswith("| - | - | 1980 |")


def test_a_line_through_readings_is_straight_in_their_ratios(monkeypatch):
    """A constant offset is the intercept, and no microsecond outweighs another."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    module = importlib.import_module("gpu_rows")
    slope, intercept = module.line([(x, 1.001 * x + 600) for x in (2e3, 5e4, 2e6)])
    assert slope == pytest.approx(1.001)
    assert intercept == pytest.approx(600)

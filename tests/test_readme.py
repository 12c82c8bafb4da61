"""README.md says nothing that does not run, and no figure that is not in docs/results."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard import discovery
from steelyard.prepared import PreparedCase
from steelyard.settings import Settings

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_benchmark_of_the_readme_is_found_and_its_result_is_right(tmp_path):
    """As a file of its own, as the reader is told."""
    (tmp_path / "mine.py").write_text(BLOCKS[0])
    (benchmark,) = discovery.discover([str(tmp_path / "mine.py")])
    cases = benchmark.cases()
    assert [case.id for case in cases] == [
        "rows[columns=768,dtype=float32]",
        "rows[columns=5140,dtype=float32]",
    ]
    assert PreparedCase(cases[0], Settings()).checked


@pytest.mark.parametrize("block", BLOCKS[1:], ids=range(1, len(BLOCKS)))
def test_other_blocks_run(block, tmp_path):
    """In an interpreter of their own."""
    (tmp_path / "block.py").write_text(block)
    subprocess.run([sys.executable, str(tmp_path / "block.py")], check=True)


def test_the_tables_are_what_the_results_say():
    """They are written by ci/readme.py."""
    subprocess.run(
        [sys.executable, str(ROOT / "ci" / "readme.py"), "--check"], check=True
    )


def trial(case, mode, time, block=0, **facts):
    """Return what `steelyard run --json` says of one block of a case."""
    inside = case.partition("[")[2].rstrip("]").split(",")
    axes = dict(part.split("=") for part in inside)
    numbers = {"estimate": time, "low": time * 0.99, "high": time * 1.01}
    where = {"case": case, "mode": mode, "block": block, "axes": axes}
    return {**where, **numbers, "bytes": 1000, **facts}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Return a function that writes a run and gives the lines of its table."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    module = importlib.import_module("readme_gpu")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    stored = json.loads((ROOT / "docs" / "results" / "cpu-suite.json").read_text())
    around = {"machine": stored["machine"] | {"gpu": {"name": "H200", "driver": "580"}}}

    def made(name, trials):
        run = {"run": {"command": "steelyard run"}, "trials": trials, **around}
        (tmp_path / f"h200-{name}.json").write_text(json.dumps(run))
        return list(module.TABLES[f"gpu-{name}"]())

    return made


def test_the_table_of_calls_has_what_was_weighed_and_a_dash_for_the_rest(tables):
    """A batch of one has no number in its mode; a graph has no processor time here."""
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
    wanted = "| preallocated | the batch | 9.000 us | - | 4.000 us | 2.500 us | 3.900 us | 400,000 |"
    assert wanted in lines
    assert (
        "| preallocated | a graph of the batch | - | - | 1.250 us | - | - | - |"
        in lines
    )
    assert lines[-1].startswith("The kernel itself takes 930.0 ns")


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

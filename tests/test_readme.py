"""No table of README.md or docs has a figure that is not in docs/results."""

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
import shell

ROOT = Path(__file__).parent.parent


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
    stored = json.loads((ROOT / "docs" / "results" / "h200-peers.json").read_text())
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

"""The campaign of loops: its tables, and how its sections are gone through."""

import importlib
import json
import re
from pathlib import Path

import pytest
from test_readme import trial

ROOT = Path(__file__).parent.parent
WARM = "kernel/warm"


@pytest.fixture
def ci(monkeypatch):
    """Return a function that imports a script of ci/."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module


@pytest.fixture
def tables(ci, tmp_path, monkeypatch):
    """Return a function that writes runs by side and name and gives a table's lines."""
    module = ci("readme_loops")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    stored = json.loads((ROOT / "docs" / "results" / "h200-peers.json").read_text())
    around = {"machine": stored["machine"], "run": {"command": "steelyard run"}}

    def made(table, runs, jax=()):
        for name, trials in runs.items():
            document = {"trials": trials, **around}
            (tmp_path / f"{name}.json").write_text(json.dumps(document))
        (tmp_path / "h200-loops-jax.json").write_text(json.dumps({"rows": list(jax)}))
        return list(module.TABLES[table]())

    return made


def claims(prefix, times):
    """Return the rows of claims by claim and dtype."""
    return [
        trial(f"{prefix}noisy_mlp_claims[claim={claim},dtype={dtype}]", WARM, time)
        for (claim, dtype), time in times.items()
    ]


def test_a_claim_is_one_row_over_another_and_a_dash_where_one_is_missing(tables):
    """Of two dtypes 64 bits are one over the other; float32 over itself says nothing."""
    times = {("program", "float32"): 130.0, ("no%20softplus", "float32"): 100.0}
    times["program", "float64"] = 195.0
    lines = tables(
        "loop-claims",
        {
            "cpu-loops-claims": claims("", times),
            "h200-loops-claims": claims("gpu_", {("program", "float32"): 9.0}),
        },
    )
    said = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in lines}
    softplus, bits = said["calling softplus costs 32 %"], said["64 bits cost 50 %"]
    assert softplus[0].startswith("+30 % [")
    assert softplus[1:] == ["-", "-", "- |"]
    assert bits[0] == ""
    assert bits[1].startswith("+50 % [")


def sizes(times):
    """Return rows of a CPU and of a GPU by units and chains."""
    return [
        trial(f"{name}[units={units},chains={n},dtype=float32]", WARM, time)
        for (units, n), both in times.items()
        for name, time in zip(
            ("noisy_mlp_sizes", "gpu_noisy_mlp_sizes"), both, strict=True
        )
    ]


def test_sizes_say_from_how_many_chains_a_gpu_is_the_faster_for_good(tables):
    """From the first, from between two, from one that is lost again, or never."""
    times = {(1, 1): (9e3, 4e3), (1, 64): (9e4, 4e3)}
    times |= {(12, 1): (1e3, 8e3), (12, 64): (64e3, 8e3)}
    times |= {(64, 1): (9e3, 4e3), (64, 64): (1e3, 4e3)}
    times |= {(256, 1): (1e3, 4e3), (256, 64): (1e3, 4e3)}
    lines = tables("loop-sizes", {"h200-loops-sizes": sizes(times)})
    rows = [line.strip("| ").split(" | ") for line in lines[4:-2]]
    assert [row[0] for row in rows] == ["1", "12", "64", "256"]
    assert [row[-1] for row in rows] == ["1", "8", "-", "-"]
    assert rows[1][1:3] == ["1.000 us / 8.000 us", "64.00 us / 8.000 us"]


def test_ways_are_those_that_were_weighed_somewhere(tables):
    """A graph is a mode of the row that it is a graph of; JAX on a GPU is a script's."""
    ours, step = (
        f"gpu_noisy_mlp[dtype=float32,impl={x}]" for x in ("ours", "launches")
    )
    jax = {"dtype": "float32", "program": "jax_while", "ms": 45.9}
    jax |= {"low": 45.0, "high": 47.0}
    both = [{**jax, "platform": "gpu"}, {**jax, "platform": "cpu", "ms": 9.0}]
    lines = tables(
        "loop-ways",
        {
            "cpu-loops-ways": [trial("noisy_mlp[dtype=float32,impl=ours]", WARM, 3e5)],
            "cpu-loops-gradient": [],
            "h200-loops-gradient": [],
            "h200-loops-ways": [
                trial(ours, "per_launch/warm", 1e6),
                trial(step, "per_launch/warm", 3e7),
                trial(step, "per_launch/warm/graph", 1e7),
            ],
        },
        [*both],
    )
    found = [re.sub(r" ± [^|]*", "", line) for line in lines[4:]]
    first = "JAX: the first listing, a while with noise in it"
    assert found == [
        "| a launch for each iteration | - | - | 30.00 ms| - |",
        "| the same as one CUDA graph | - | - | 10.00 ms| - |",
        "| one kernel | 300.0 us| - | 1.000 ms| - |",
        f"| {first} | - | - | 45.9 ms [45.0, 47.0] | - |",
    ]


def test_sections_that_were_not_weighed_now_stay_and_one_that_fails_loses_none(
    ci, tmp_path, capsys
):
    """What is missed, or failed, is told by the answer."""
    sections, bars, rows = map(ci, ("sections", "bars", "gpu_rows"))
    campaign = rows.Campaign(tmp_path, "cpu", "abc")
    out = tmp_path / "found.json"

    def bar(met):
        return lambda _: iter([bars.Bar("it", "<= 1", "2", met, "command")])

    def fails(_):
        raise RuntimeError("broken")

    every = {"a": bar(met=True), "b": fails, "c": bar(met=None)}
    held = {"command": "python ci/x.py"}
    assert not sections.hold(campaign, every, ["a"], out, **held)
    assert sections.hold(campaign, every, [], out, **held)
    assert "broken" in capsys.readouterr().err
    document = json.loads(out.read_text())
    assert list(document["bars"]) == ["a", "c"]
    assert document["machine"]["versions"]["commit"] == "abc"
    every["d"] = bar(met=False)
    assert sections.hold(campaign, every, ["d"], out, **held, gpu={"peaks": 1, "x": 2})
    document = json.loads(out.read_text())
    assert list(document["bars"]) == ["a", "c", "d"]
    assert document["machine"]["gpu"] == {"x": 2}
    assert not sections.hold(campaign, every, ["a"], out, **held, seconds=-1.0)
    assert "was not begun" in capsys.readouterr().err


def test_a_bar_against_jax_is_met_only_if_the_whole_interval_is(ci):
    """And not measured where JAX is not installed."""
    module, bars = ci("loop_bars"), ci("bars")

    def weighed(jax):
        from trials import trial as block

        from steelyard.analyse import rows

        made = [
            block(name, tuple(range(time, time + 40)), mode=WARM, block=n)
            for name, time in (("ours", 1000), ("theirs", jax))
            for n in range(3)
            if time
        ]
        return bars.Weighed(None, rows.rows(made), "steelyard run")

    def met(jax):
        return module.against(weighed(jax), "ours", "theirs", "JAX", "float32").met

    assert met(2000) is True
    assert met(1000) is False
    assert met(500) is False
    assert met(0) is None

"""Rows for other tools: what each of them reads, with our numbers in its units."""

import json

import pytest
import shell
import trials

from steelyard.analyse.rows import rows
from steelyard.report.formats import Results, formats

EVIL = 'a"b\\c\nd[n=1]'


@pytest.fixture
def found():
    """Return a run with two modes, an ugly name and a case that failed."""
    made = [
        *(
            trials.trial("copy[n=8]", range(1000, 1040), mode=mode, block=block)
            for mode in ("kernel/cold", "kernel/warm")
            for block in range(3)
        ),
        trials.trial(EVIL, doubts=("preempted",)),
        trials.trial("broken", (), error="no"),
    ]
    return Results(trials.run(state="finished"), made, rows(made))


def dumped(found, shape):
    """Return a run in a format."""
    return formats()[shape].results(found)


def test_the_formats_are_found_by_the_names_of_their_files():
    """With a hyphen where a module has none."""
    assert {"bencher", "github-action-benchmark", "openmetrics"} <= set(formats())


def test_bencher_has_nanoseconds_with_their_interval(found):
    """As https://bencher.dev/docs/reference/bencher-metric-format says it."""
    read = json.loads(dumped(found, "bencher"))
    assert len(read) == 3
    for row in found.rows:
        if row.estimate is None:
            continue
        (measure,) = read[f"{row.case} {row.mode}"].items()
        name, metric = measure
        assert name == "latency"
        assert set(metric) == {"value", "lower_value", "upper_value"}
        assert metric["value"] == row.estimate.value
        assert metric["lower_value"] <= metric["value"] <= metric["upper_value"]


def test_github_action_benchmark_has_a_list_of_results(found):
    """Of `customSmallerIsBetter`: name, unit and value, range and extra as texts."""
    read = json.loads(dumped(found, "github-action-benchmark"))
    assert [one["name"] for one in read][-1:] == ["copy[n=8] kernel/warm"]
    assert len(read) == 3
    for one in read:
        assert set(one) == {"name", "unit", "value", "range", "extra"}
        assert one["unit"] == "ns"
        assert isinstance(one["value"], float)
        assert one["range"].startswith("± ")
    (ugly,) = (one for one in read if one["name"].startswith("a"))
    assert "doubts: one-block, preempted" in ugly["extra"]


def test_openmetrics_is_read_by_the_reference_parser(found):
    """Gauges in seconds; whatever a case is called, it comes back."""
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser",
        reason="needs prometheus_client: pip install -e '.[dev]'",
    )
    text = dumped(found, "openmetrics")
    families = {one.name: one for one in parser.text_string_to_metric_families(text)}
    times = families["steelyard_launch_seconds"]
    assert (times.type, times.unit) == ("gauge", "seconds")
    read = {(s.labels["case"], s.labels["mode"]): s.value for s in times.samples}
    assert read == {
        (row.case, row.mode): pytest.approx(row.estimate.value / 1e9)
        for row in found.rows
        if row.estimate
    }
    doubts = {s.labels["case"]: s.value for s in families["steelyard_doubts"].samples}
    assert doubts[EVIL] == 2
    (run,) = families["steelyard_run"].samples
    assert run.labels["run"] == found.run.uid
    assert families.keys() == {
        *("steelyard_run", "steelyard_launch_seconds", "steelyard_doubts"),
        *("steelyard_launch_low_seconds", "steelyard_launch_high_seconds"),
        "steelyard_failed",
    }
    (failed,) = families["steelyard_failed"].samples
    assert (failed.labels["case"], failed.value) == ("broken", 1)


def test_bencher_has_no_bounds_of_what_is_not_known():
    """As of a single window: any time would do."""
    stated = {"value": 100.0, "low": 0.0, "high": 200.0, "systematic": 0.0}
    made = [trials.trial("one", [100], extra={"stated": stated})]
    read = json.loads(dumped(Results(trials.run(), made, rows(made)), "bencher"))
    assert read == {"one kernel/warm": {"latency": {"value": 100.0}}}


@pytest.mark.parametrize("shape", ["bencher", "github-action-benchmark"])
def test_what_is_left_out_is_said(shape, found, tmp_path):
    """On stderr: stdout is for another program."""
    store = f"{tmp_path}/s.db"
    trials.kept(store, found.trials)
    words = ["show", "--format", shape, "--store", store]
    done = shell.command(*words)
    assert done.stderr == f"{shape} has no place for what has no time: broken\n"
    json.loads(done.stdout)


@pytest.mark.parametrize("shape", ["bencher", "github-action-benchmark", "openmetrics"])
def test_show_writes_a_stored_run(shape, tmp_path):
    """And a clock too coarse to see the work is no number that is not one."""
    store = f"{tmp_path}/s.db"
    trials.kept(store, [trials.trial("zero", [0] * 9)], writer={})
    done = shell.command("show", "--format", shape, "--store", store)
    assert "zero" in done.output
    assert "nan" not in done.output.lower()
    assert "inf" not in done.output.lower().replace("info", "")

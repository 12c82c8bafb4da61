"""Files of other tools: recognised, right to the last digit, marked, and never guessed at.

The files of ``imports/`` were written by the tools themselves (asv 0.6.6, google-benchmark
1.9.5, hyperfine 1.15.0, pytest-benchmark 5.3.1), with another machine's name in them and
less of what repeats; that of nvbench is after its ``json_printer.cu``.
"""

import contextlib
import json
import math
import re
import shutil
import struct
from pathlib import Path

import pytest
import shell

from steelyard.analyse import kinds
from steelyard.analyse.rows import rows
from steelyard.errors import SteelyardError
from steelyard.machine import decoding
from steelyard.store import imports
from steelyard.store.foreign import Source
from steelyard.store.store import Store

FILES = Path(__file__).parent / "imports"
ASV = FILES / "asv" / "box" / "c0ffee00-existing.json"
EXAMPLES = {
    "asv": ASV,
    "google-benchmark": FILES / "google_benchmark.json",
    "hyperfine": FILES / "hyperfine.json",
    "nvbench": FILES / "nvbench.json",
    "pytest-benchmark": FILES / "pytest_benchmark.json",
}
TOOLS = ".*".join(EXAMPLES)
"""What an error says can be read, as an expression."""


def read(content, place=None, **more):
    """Return the runs of a document or of bytes."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    source = Source(imports.digest(data), place, "2026-01-02T00:00:00.000000+00:00")
    return imports.read(data, source, **more)


def one(tool, **changes):
    """Return the document of an example, with other values of its first keys."""
    return json.loads(EXAMPLES[tool].read_bytes()) | changes


def by_key(content, place=None):
    """Return the rows of all runs of a file by case and mode."""
    made = [row for _, trials in read(content, place) for row in rows(trials)]
    return {(row.case, row.mode): row for row in made}


def asked(store, *words, code=0):
    """Run a command on a store."""
    return shell.command(*words, "--store", store, code=code)


def test_every_format_has_an_example_and_is_told_by_it():
    """By its content: the names of files say nothing."""
    assert {one.tool for one in imports.formats()} == set(EXAMPLES)
    for tool, place in EXAMPLES.items():
        assert imports.of(json.loads(place.read_bytes())).tool == tool


@pytest.mark.parametrize("tool", EXAMPLES)
def test_a_file_is_imported_once_shown_compared_and_drawn(tool, tmp_path):
    """With the doubt on each row, and in words at the head."""
    store = tmp_path / "s.db"
    done = asked(store, "import", EXAMPLES[tool])
    assert f" of {tool}" in done.output
    assert ": 0 trials added" in asked(store, "import", EXAMPLES[tool]).output
    shown = asked(store, "show", "--format", "json")
    found = json.loads(shown.output)
    assert found["run"]["tags"] == [tool]
    measured = [row for row in found["rows"] if row["estimate"]]
    assert measured
    for row in measured:
        assert "imported" in row["doubts"]
        assert row["mode"].startswith(f"imported/{tool}")
        assert row["low"] <= row["estimate"] <= row["high"]
    table = asked(store, "show").output
    assert f"imported from {tool}" in " ".join(table.split())
    for words in (
        ("compare", "@-1", "@-1"),
        ("history",),
        ("history", measured[0]["case"]),
        ("show", "@-1", measured[0]["case"]),
        ("show", "@-1", measured[0]["case"], "--repro"),
        ("report", "@-1", "-o", tmp_path / "r.html"),
        ("report", "history", "-o", tmp_path / "h.html"),
        *(("show", "--format", shape) for shape in ("csv", "markdown", "bencher")),
    ):
        done = asked(store, *words)
    for name in ("r", "h"):
        assert f"imported/{tool}" in (tmp_path / f"{name}.html").read_text()
    assert "not measured here" in (tmp_path / "r.html").read_text()
    other = tmp_path / "t.db"
    asked(other, "import", tmp_path / "r.html")
    again = json.loads(asked(other, "show", "--format", "json").output)
    sides = [
        sorted(side["rows"], key=lambda row: (row["case"], row["mode"]))
        for side in (again, found)
    ]
    assert sides[0] == sides[1]


def test_hyperfine_has_its_times_and_its_parameters():
    """Each run of a command is a window; the value is put back for the parameter."""
    whole = one("hyperfine")
    found = by_key(whole)
    for each in whole["results"]:
        (row,) = (r for r in found.values() if r.samples and _has(r, each))
        assert row.mode == "imported/hyperfine"
        assert row.estimate.value == pytest.approx(1e9 * each["median"], rel=1e-9)
        assert row.minimum == pytest.approx(1e9 * each["min"], rel=1e-9)
        used = 1e9 * (each["user"] + each["system"])
        assert row.processor_time == pytest.approx(used, abs=1)
    assert "sleep {time}[time=0.01]" in {case for case, _ in found}


def _has(row, each):
    return all(
        str(v) == str(row.axes.get(n)) for n, v in each.get("parameters", {}).items()
    ) and bool(row.axes) == bool(each.get("parameters"))


def test_a_command_without_times_has_the_interval_of_its_mean():
    """And does not compare with medians."""
    said = {"command": "x", "mean": 2.0, "stddev": 0.1, "median": 1.9}
    said |= {"user": 1.0, "system": 0.5, "min": 1, "max": 3, "exit_codes": [0] * 10}
    ((_, (trial,)),) = read({"results": [said]})
    (row,) = rows([trial])
    assert row.estimate.value == 2e9
    assert row.estimate.high - 2e9 == pytest.approx(2.262 * 1e8 / 10**0.5, rel=1e-3)
    assert trial.hashes["method"] == "hyperfine mean"
    assert "few-samples" not in trial.doubts


def test_a_command_that_failed_is_a_failed_case():
    """As with --ignore-failure; a command that a signal ended has no code."""
    said = {"command": "x", "mean": 2.0, "stddev": 0.1, "user": 1.0, "system": 0.5}
    said |= {"times": [1.9, 2.0, 2.1], "exit_codes": [0, 1, None]}
    ((_, (trial,)),) = read({"results": [said]})
    assert trial.error == "2 of 3 runs failed: exit codes [1, None]"
    (row,) = rows([trial])
    assert row.estimate is None


def test_pytest_benchmark_has_its_rounds_machine_commit_and_date():
    """A window a round of so many iterations."""
    whole = one("pytest-benchmark")
    ((run, trials),) = read(whole)
    assert run.commit == whole["commit_info"]["id"]
    assert run.dirty is whole["commit_info"]["dirty"]
    assert run.started[:19] == whole["datetime"][:19]
    assert run.machine["identity"]["id"] == whole["machine_info"]["node"]
    found = {trial.case: trial for trial in trials}
    for each in whole["benchmarks"]:
        trial = found[each["fullname"]]
        assert set(trial.samples.launches) == {each["stats"]["iterations"]}
        (row,) = rows([trial])
        assert row.estimate.value == pytest.approx(
            1e9 * each["stats"]["median"], rel=1e-6
        )
        assert dict(row.axes) == (each["params"] or {})


def test_a_saved_run_without_samples_is_a_mean_with_its_deviation():
    """As `--benchmark-save` writes it."""
    whole = one("pytest-benchmark")
    for each in whole["benchmarks"]:
        del each["stats"]["data"]
    ((_, trials),) = read(whole)
    for trial, each in zip(trials, whole["benchmarks"], strict=True):
        stats = each["stats"]
        assert rows([trial])[0].estimate.value == pytest.approx(1e9 * stats["mean"])
        assert len(trial.samples) == 1
        assert trial.samples.launches[0] == stats["rounds"] * stats["iterations"]
        assert trial.hashes["method"] == "pytest-benchmark mean"


def test_google_benchmark_has_its_repetitions_and_arguments():
    """A window a repetition, of all of its iterations."""
    whole = one("google-benchmark")
    ((run, trials),) = read(whole)
    assert run.started.startswith("2026-")
    assert run.machine["identity"]["cores"] == whole["context"]["num_cpus"]
    single = [b for b in whole["benchmarks"] if b["run_type"] == "iteration"]
    timed = [b for b in single if "error_message" not in b]
    assert sum(len(trial.samples) for trial in trials) == len(timed)
    found = {trial.case: trial for trial in trials}
    assert found["copy[arg0=1024]"].axes == {"arg0": 1024}
    times = [b for b in single if b["run_name"].startswith("copy/1024/")]
    samples = found["copy[arg0=1024]"].samples
    assert samples.launches == tuple(b["iterations"] for b in times)
    assert samples.per_launch() == pytest.approx([b["real_time"] for b in times])
    assert found["skipped"].error == "no such device"


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("BM_a", "BM_a"),
        ("BM_a/8/-3", "BM_a[arg0=8,arg1=-3]"),
        ("BM_a/n:8/threads:2", "BM_a[n=8,threads=2]"),
        ("BM_a/8/min_time:0.010/repeats:3", "BM_a[arg0=8]"),
        ("BM_a/8/real_time", "BM_a[arg0=8,timer=real_time]"),
        ("a/b<int, 4>/8", "a/b<int, 4>[arg0=8]"),
        ("a/n:1/n:2", "a/n:1/n:2"),
    ],
)
def test_names_of_google_benchmark_are_cases_with_axes(name, case):
    """Two names are never one case."""
    said = {"name": name, "iterations": 10, "real_time": 2.5, "time_unit": "us"}
    ((_, (trial,)),) = read({"context": {}, "benchmarks": [said]})
    assert trial.case == case
    assert trial.samples.ticks == (25_000,)


def test_one_window_says_nothing_of_its_error(tmp_path):
    """As google-benchmark writes without repetitions: no ratio of two such differs."""
    store = tmp_path / "s.db"
    for at, time in enumerate((2.5, 2.9)):
        said = {"name": "a", "iterations": 10**6, "real_time": time, "time_unit": "us"}
        (tmp_path / f"{at}.json").write_text(
            json.dumps({"context": {"host_name": "box"}, "benchmarks": [said]})
        )
        asked(store, "import", tmp_path / f"{at}.json")
    done = asked(store, "compare", "@-2", "@-1", "--format", "json")
    (row,) = json.loads(done.output)["rows"]
    assert row["ratio"] == pytest.approx(2.9 / 2.5)
    assert (row["low"], row["high"]) == (0, None)
    assert row["differs"] is False
    shown = asked(store, "show").output
    assert "± 100 %" in shown
    assert "few-samples, imported" in shown
    assert "unknown cores" not in shown


def test_aggregates_alone_are_a_mean_with_its_deviation():
    """As `--benchmark_report_aggregates_only` writes them; what failed is an error."""
    same = {
        "run_name": "a",
        "run_type": "aggregate",
        "repetitions": 9,
        "time_unit": "ns",
    }
    made = [
        same | {"name": f"a_{n}", "aggregate_name": n, "real_time": v, "iterations": 9}
        for n, v in {"mean": 100.0, "median": 99.0, "stddev": 3.0}.items()
    ]
    broken = {"name": "b", "error_occurred": True, "error_message": "no\x1b[31m"}
    ((_, trials),) = read({"context": {}, "benchmarks": [*made, broken]})
    good, failed = rows(trials)
    assert good.estimate.value == pytest.approx(100)
    assert good.estimate.high - 100 == pytest.approx(2.306, rel=1e-3)
    assert failed.errors == ("no\\x1b[31m",)


def test_nvbench_has_a_run_for_each_gpu_and_its_modes():
    """Cold, batches and the host are three; texts are numbers."""
    (run, trials), (other, _) = read(one("nvbench"))
    assert run.machine["gpu"]["name"] == "NVIDIA H200"
    assert (run.machine["gpu"]["l2"], other.uid != run.uid) == (62914560, True)
    found = {(row.case, row.mode): row for row in rows(trials)}
    cold = found["copy[T=F32,Elements=16777216]", "imported/nvbench/cold"]
    assert cold.estimate.value == pytest.approx(33_210.5)
    half = 1.9612 * 0.0000004 / 1000**0.5
    assert cold.estimate.high - 33_210.5 == pytest.approx(1e9 * half, rel=1e-2)
    assert cold.rate("bytes") == pytest.approx(4.0415e12, rel=1e-3)
    batch = found["copy[T=F32,Elements=16777216]", "imported/nvbench/batch"]
    assert batch.estimate.value == pytest.approx(31_900)
    skipped = found["copy[T=F64,Elements=16777216]", "imported/nvbench/cold"]
    assert skipped.errors == ("Requires compute capability >= 9.0",)


def test_nvbench_reads_samples_beside_the_file_and_nothing_else(tmp_path):
    """Of `--jsonbin`; a name that leads elsewhere is none."""
    whole = one("nvbench")
    samples = {"tag": "nv/json/bin:nv/cold/sample_times"}
    place = tmp_path / "a.json"
    (tmp_path / "a.json-bin").mkdir()
    times = [3e-5, 3.5e-5, 4e-5]
    (tmp_path / "a.json-bin" / "0.bin").write_bytes(struct.pack("<3f", *times))
    (tmp_path / "out.bin").write_bytes(b"1234")
    counts = {}
    for name in ("a.json-bin/0.bin", "../out.bin", "/etc/hostname", "gone.bin", "."):
        samples["data"] = [{"name": "filename", "type": "string", "value": name}]
        changed = json.loads(json.dumps(whole))
        changed["benchmarks"][0]["states"][0]["summaries"].append(samples)
        (_, (first, *_)), _ = read(changed, place)
        counts[name] = len(first.samples)
    assert counts.pop("a.json-bin/0.bin") == 3
    assert set(counts.values()) == {1}
    (tmp_path / "a.json-bin" / "0.bin").write_bytes(b"12345")
    samples["data"][0]["value"] = "a.json-bin/0.bin"
    with pytest.raises(SteelyardError, match="expected float32"):
        read(changed, place)


def test_asv_has_its_medians_intervals_and_samples():
    """In the order of commits, and as `history --asv` reads them."""
    ((run, trials),) = read(ASV.read_bytes(), ASV)
    said = json.loads(ASV.read_bytes())
    assert run.commit == said["commit_hash"]
    assert run.machine["identity"]["id"] == "box"
    assert {trial.mode for trial in trials} == {"imported/asv"}
    for name, row in said["results"].items():
        columns = dict(zip(said["result_columns"], row, strict=False))
        if not name.endswith(("time_sum", "time_range")):
            continue
        mine = [t for t in trials if t.case.partition("[")[0] == name]
        for trial, median in zip(mine, columns["result"], strict=True):
            if median is None:
                assert trial.error == "asv has no result of it"
                continue
            assert rows([trial])[0].estimate.value == pytest.approx(
                1e9 * median, rel=0.01
            )
    assert not [t for t in trials if "peakmem" in t.case]


def test_asv_without_samples_has_its_interval():
    """As it says it; a point that failed has a sentence."""
    whole = one("asv")
    column = whole["result_columns"].index("samples")
    for row in whole["results"].values():
        if len(row) > column:
            row[column] = None
    ((_, trials),) = read(whole, ASV)
    stated = [trial for trial in trials if "stated" in trial.extra]
    assert stated
    for trial in stated:
        (row,) = rows([trial])
        assert row.estimate.low <= row.estimate.value <= row.estimate.high


def test_a_folder_is_all_of_its_files(tmp_path):
    """Others in it are passed over; one without any is a sentence."""
    folder = tmp_path / "results"
    shutil.copytree(FILES / "asv", folder)
    store = tmp_path / "s.db"
    done = asked(store, "import", folder)
    assert done.output.count("run ") == 1
    (tmp_path / "empty").mkdir()
    done = asked(store, "import", tmp_path / "empty", code=4)
    assert "has no results that are known" in done.output


def test_a_bad_file_of_a_folder_ends_it_and_what_went_in_is_said(tmp_path):
    """Files are taken in the order of their names."""
    shutil.copy(EXAMPLES["hyperfine"], tmp_path / "a.json")
    (tmp_path / "b.json").write_text('{"results": [')
    done = asked(tmp_path / "s.db", "import", tmp_path, code=4)
    assert f"Runs of {tmp_path} that are stored: 1" in done.output


def test_rows_of_others_have_no_hints_that_name_our_options(tmp_path):
    """They have the doubts all the same."""
    said = {"name": "a", "iterations": 9, "real_time": 2.5, "time_unit": "us"}
    (tmp_path / "x.json").write_text(json.dumps({"context": {}, "benchmarks": [said]}))
    store = tmp_path / "s.db"
    asked(store, "import", tmp_path / "x.json")
    asked(store, "report", "@-1", "-o", tmp_path / "r.html")
    for shown in (asked(store, "show").output, (tmp_path / "r.html").read_text()):
        assert "few-samples" in shown
        assert "another tool measured it" in shown
        assert "--budget" not in shown
        assert "--blocks" not in shown


def test_a_commit_is_given_to_files_that_say_none(tmp_path):
    """And to no other: a history is named by commits."""
    store = tmp_path / "s.db"
    for tool in ("hyperfine", "pytest-benchmark"):
        asked(store, "import", EXAMPLES[tool], "--commit", "ab" * 20)
    with Store.open(str(store)) as opened:
        commits = {run.tags[0]: run.commit for run in opened.runs()}
    own = one("pytest-benchmark")["commit_info"]["id"]
    assert commits == {"hyperfine": "ab" * 20, "pytest-benchmark": own}


def test_a_run_says_where_its_date_is_from_where_the_file_has_none(tmp_path):
    """Of hyperfine; pytest-benchmark says when it measured."""
    store = tmp_path / "s.db"
    for tool, said in (("hyperfine", True), ("pytest-benchmark", False)):
        asked(store, "import", EXAMPLES[tool])
        shown = " ".join(asked(store, "show").output.split())
        assert ("UTC (date of the file)" in shown) == said


def test_a_commit_for_a_run_that_is_already_here_is_refused(tmp_path):
    """It stays as it is: the sentence says how it gets one."""
    store = tmp_path / "s.db"
    words = "import", EXAMPLES["hyperfine"]
    asked(store, *words)
    done = asked(store, *words, "--commit", "ab" * 20, code=4)
    said = re.search(r"`(steelyard store remove \w+)`", " ".join(done.output.split()))
    asked(store, *said[1].split()[1:], "--yes")
    for _ in range(2):
        asked(store, *words, "--commit", "ab" * 20)
    asked(store, *words)
    for bad in ("main", "abc", "a" * 41):
        done = asked(store, *words, "--commit", bad, code=4)
        assert "hexadecimal" in done.output


def test_an_unknown_machine_is_that_of_no_other_run(tmp_path):
    """Nothing says that two files of hyperfine are of one; a run is of its own."""
    store, other = tmp_path / "s.db", tmp_path / "other.json"
    other.write_text(json.dumps(one("hyperfine"), indent=1))
    for file in (EXAMPLES["hyperfine"], other):
        asked(store, "import", file)
    done = asked(store, "compare", "@-2", "@-1", code=4)
    assert "is unknown, and may be two" in " ".join(done.output.split())
    done = asked(store, "compare", "@-2", "@-1", "--across-machines")
    assert "versions, selection and settings are the same" not in done.output
    assert "across machines" in " ".join(done.output.split())
    asked(store, "compare", "@-1", "@-1")


def test_a_machine_of_which_only_the_name_is_known_is_a_kind_of_its_own():
    """`box` of asv is not the machine that hyperfine does not name."""
    assert kinds.of({"identity": {"id": "box"}}) == "machine=box"
    assert kinds.of({}) == "machine=unknown"
    assert kinds.of({"identity": {"cores": 8}}) == "cpu=unknown; cores=8"


def test_runs_of_two_tools_never_compare_nor_are_one_series(tmp_path):
    """Nor a mean with a median of one tool."""
    store = tmp_path / "s.db"
    whole = one("pytest-benchmark")
    asked(store, "import", EXAMPLES["pytest-benchmark"])
    for each in whole["benchmarks"]:
        del each["stats"]["data"]
    (tmp_path / "b.json").write_text(json.dumps(whole))
    asked(store, "import", tmp_path / "b.json")
    done = asked(store, "compare", "@-2", "@-1")
    assert "not comparable: method pytest-benchmark ->" in " ".join(done.output.split())
    said = " ".join(
        asked(store, "history", whole["benchmarks"][0]["fullname"]).output.split()
    )
    assert "1 run" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b'{"results": [', f"is not JSON.*{TOOLS}"),
        (b"[]", f"neither an exported run nor JSON of {TOOLS}"),
        (b'{"a": 1}', "its keys are a"),
        (b'{"results": []}', "no result that is a time"),
        (b'{"results": 3}', "results is 3, expected a list"),
        (b'{"results": [{"command": "x"}]}', "has no mean"),
        (b'{"context": {}, "benchmarks": [{"name": 5}]}', "name is 5, expected text"),
        (b'{"context": {"date": "soon"}, "benchmarks": []}', "soon.* is no date"),
        (b'{"meta": {}, "devices": null, "benchmarks": null}', "no result"),
        (b'{"machine_info": [], "benchmarks": []}', "machine_info"),
        *(
            (b'{"%s": %s%s}' % (key, b"[" * deep, b"]" * deep), "nested too deeply")
            for key in (b"results", b"steelyard")
            for deep in (101, 700, 100_000)
        ),
    ],
)
def test_a_bad_file_is_a_sentence_and_nothing_is_stored(content, said, tmp_path):
    """With exit code 4."""
    place, store = tmp_path / "x.json", tmp_path / "s.db"
    place.write_bytes(content)
    done = asked(store, "import", place, code=4)
    assert re.search(said, done.output), done.output
    with Store.open(str(store)) as opened:
        assert opened.runs() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"real_time": -1.0}, "from 0"),
        ({"real_time": float("nan")}, "nan"),
        ({"real_time": 1e300}, "from 0"),
        ({"iterations": 0}, "from 1"),
        ({"time_unit": "years"}, "unit 'years'"),
        ({"iterations": 2**31 - 1, "real_time": 1e9}, "windows take"),
        ({"iterations": 2**31 - 1, "cpu_time": 1e9}, "windows take"),
        ({"cpu_time": float("inf")}, "processor time of window 0 is inf"),
    ],
)
def test_times_that_are_none_are_refused(changes, said):
    """Below 0, endless, of no unit or of no launch."""
    good = {"name": "a", "iterations": 10, "real_time": 2.5, "time_unit": "us"}
    with pytest.raises(SteelyardError, match=said):
        read({"context": {}, "benchmarks": [good | changes]})


@pytest.mark.parametrize(
    "value", [None, "x", [], float("nan"), math.inf, -1.0, 10**400]
)
def test_columns_of_asv_that_are_no_numbers_are_refused_or_passed_over(value):
    """Each in turn; none is a traceback."""
    for column in ("samples", "stats_number", "stats_ci_99_a", "result"):
        whole = one("asv")
        at = whole["result_columns"].index(column)
        wrong = [[value]] if column == "samples" else [value]
        whole["results"]["b.time_range"][at] = wrong
        with contextlib.suppress(SteelyardError):
            read(whole, ASV)


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("nv/cold/time/gpu/stdev/absolute", "-1"),
        ("nv/cold/time/gpu/mean", "-1"),
        ("nv/cold/time/gpu/mean", "quick"),
        ("nv/cold/sample_size", "1e300"),
    ],
)
def test_summaries_of_nvbench_that_are_no_numbers_are_refused(tag, value):
    """With the tag, or the case."""
    whole = one("nvbench", meta={"argv": 5, "version": []})
    for summary in whole["benchmarks"][0]["states"][0]["summaries"]:
        if summary["tag"] == tag:
            summary["data"][0]["value"] = value
    with pytest.raises(SteelyardError, match="cannot be read"):
        read(whole)


def test_json_of_100_levels_is_read_and_of_one_more_is_not():
    """Whatever walks it would recurse, and Python does so a thousand times."""
    assert decoding.parsed("[" * 100 + "1" + "]" * 100)
    with pytest.raises(decoding.Malformed, match="nested too deeply"):
        decoding.parsed("[" * 101 + "1" + "]" * 101)


def test_names_are_printable_and_no_longer_than_a_store_takes():
    """Two long ones stay two."""
    names = ["\x1b[31m" + "x" * 5000, "\x1b[31m" + "x" * 1000 + "y", "a\x00b"]
    same = {"iterations": 10, "real_time": 2.5, "time_unit": "us"}
    made = [{"name": name, **same} for name in names]
    ((_, trials),) = read({"context": {}, "benchmarks": made})
    cases = {trial.case for trial in trials}
    assert len(cases) == 3
    assert all(case.isprintable() and len(case) < 600 for case in cases)

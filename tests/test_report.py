import csv
import io
import itertools
import json
import math
import re
import shlex
from dataclasses import replace

import pytest
import trials
from rich.console import Console

from steelyard.analyse import rows
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import Samples
from steelyard.errors import SteelyardError
from steelyard.report import details, json_report, tables, text
from steelyard.report.formats import csv as csv_report
from steelyard.report.formats import markdown


def rendered(parts, width=160):
    """Return what a terminal of the given width shows."""
    console = Console(width=width, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def family(*values, axis="impl", blocks=3, speed=None):
    """Return trials of one case a value, blocks apart by the machine's level."""
    speed = speed or {}
    return [
        trials.trial(
            f"copy[n=8,{axis}={value}]",
            [int(t * speed.get(value, 1) * (1 + block)) for t in range(10_000, 10_080)],
            block=block,
        )
        for block in range(blocks)
        for value in values
    ]


def test_rows_stand_in_the_order_of_their_values():
    """Numbers sort as numbers, and kernel stands before latency before build."""
    made = rows.rows(
        [
            trials.trial(case, mode=mode)
            for mode in (
                "build/cold",
                "latency/warm/64",
                "latency/warm/8",
                "kernel/cold",
            )
            for case in ("b[n=100]", "b[n=20]", "a")
        ]
    )
    assert [r.case for r in made][::4] == ["a", "b[n=20]", "b[n=100]"]
    assert [r.mode for r in made][:4] == [
        "kernel/cold",
        "latency/warm/8",
        "latency/warm/64",
        "build/cold",
    ]


def test_a_failed_block_is_told_and_left_out_of_the_estimate():
    """Samples taken before a failure do not count."""
    failed = trials.trial(block=1, ticks=[1, 1, 1], error="wrong result")
    (row,) = rows.rows([trials.trial(), failed])
    assert row.errors == ("wrong result",)
    assert len(row.trials) == 1
    assert row.minimum == 1000


def test_no_trials_make_no_rows_and_an_empty_page():
    """A run that was interrupted at once still has a report."""
    assert rows.rows([]) == []
    assert list(tables.page([])) == []


def test_a_clock_that_reads_zero_gives_zero_and_no_rate():
    """Nothing is divided by it, and its logarithm is not taken."""
    (row,) = rows.rows([trials.trial(ticks=[0] * 8, block=b) for b in range(2)])
    assert row.estimate.value == 0
    assert row.rate("bytes") is None
    assert "0.00" in rendered(tables.page([row]))


def test_odd_figures_are_written_without_exponents_and_zeros():
    """A wide interval in whole percents, a rate of a handful of bytes not at all."""
    assert text.margin(Estimate(1.0, 0.0, 2.0)) == "± 100 %"
    assert text.margin(Estimate(1.0, 0.0, 1.99)).endswith(" %")
    assert "e+" not in text.margin(Estimate(1.0, 0.0, 1.993))
    assert text.margin(Estimate(1.0, 0.5, 54.0)) == "± > 100 %"
    assert text.margin(Estimate(1.0, 0.0, math.inf)) == "± > 100 %"
    slow = rows.rows([trials.trial("x", facts={"bytes": 8}, ticks=[8_000_000] * 9)])
    assert text.gigabytes(slow[0]) == "-"


def test_a_case_without_its_reference_has_no_ratio():
    """Other axes have to be equal, and the reference must not have failed."""
    alone = [trials.trial("copy[n=9,impl=b]")]
    failed = [
        trials.trial("copy[n=7,impl=a]", error="no"),
        trials.trial("copy[n=7,impl=b]"),
    ]
    made = rows.relative_to(rows.rows(family("a") + alone + failed), "impl=a")
    assert [r.case for r in made if r.relative] == ["copy[n=8,impl=a]"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("impl", "expected axis=value"),
        ("", "expected axis=value"),
        ("impl=c", "values of impl: a, b"),
        ("imple=a", "axes: impl"),
    ],
)
def test_an_unknown_reference_is_one_sentence(text, says):
    """It names the values or axes there are."""
    with pytest.raises(SteelyardError, match=says):
        rows.relative_to(rows.rows(family("a", "b")), text)


def test_a_pipe_has_80_columns_without_blanks_at_their_ends(capsys, monkeypatch):
    """What has no room goes on below, with what tells the rows apart; nothing is lost."""
    monkeypatch.delenv("COLUMNS", raising=False)
    long = {"mode": "latency/warm/allocated/64", "doubts": ("drifting", "unchecked")}
    call = [trials.trial("call[impl=ours_alone]", axes={"impl": "o"}, **long)]
    for part in tables.page(rows.rows([*family("a", "b"), *call, *family("c")])):
        tables.console().print(part)
    for part in tables.page(with_peaks(of_gpu(**long), of_gpu(mode="latency/warm"))):
        tables.console().print(part)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines == [line.rstrip(" ") for line in lines]
    assert 70 < max(map(len, lines)) <= 80
    shown = re.sub(r"\n *", " ", out)
    assert shown.count("drifting, one-block, unchecked") == 2


def test_what_controls_a_terminal_is_as_wide_as_it_is_shown(capsys):
    """It was escaped once columns had their widths, and what was behind it cut off."""
    odd = trials.trial("copy[n=1]", axes={"n": "\u202eevil"})
    for part in tables.page(rows.rows([odd, trials.trial("copy[n=2]")])):
        tables.console().print(part)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("\\u202eevil   1.020 us") for line in lines)
    assert len({line.index("1.020 us") for line in lines if "1.020 us" in line}) == 1


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_a_narrow_terminal_loses_columns_not_figures(width):
    """Time and interval stay whole at any width that holds them."""
    text = rendered(tables.page(rows.rows(family("a", "b"))), width)
    head = next(line for line in text.splitlines() if "impl" in line)
    assert "time" in head
    assert "95 %" in head
    assert ("histogram" in head) == (width > 40)
    assert ("samples" in head) == (width > 80)
    assert "…" not in text.split("floors")[0] or width < 80


def ledgers(made, width=160):
    """Return the lines of the ledgers of trials."""
    return rendered(tables.ledger_sheets(rows.rows(made)), width).splitlines()


def test_a_narrow_ledger_is_split_and_nothing_is_folded():
    """Twelve parts of two cases take several tables; each says which case it is."""
    parts = {f"first_touch_of_{index}": 123.0 for index in range(12)}
    long = "normalization_of_rows[columns={},dtype=float32,impl=a_long_name]"
    mode = "latency/warm/allocated/8"
    made = [
        trials.trial(
            long.format(columns),
            mode=mode,
            ticks=[10_000] * 40,
            ledger=parts,
            axes={"columns": columns, "dtype": "float32", "impl": "a_long_name"},
        )
        for columns in (768, 12288)
    ]
    lines = ledgers(made, 80)
    assert all(len(line) <= 80 for line in lines if not line.startswith("ledger"))
    assert "…" not in "".join(lines)
    titles = [line for line in lines if line.lstrip().startswith("columns")]
    assert len(titles) > 1
    assert all(name in "".join(titles) for name in (*parts, "untracked"))
    cells = [
        line.split() for line in lines if line.strip().startswith(("768", "12288"))
    ]
    assert len(cells) == 2 * len(titles)
    assert sum(len(line) - 1 for line in cells) == 2 * 13


@pytest.mark.parametrize(("kernel", "told"), [(1040, False), (1060, True)])
def test_parts_of_a_call_that_are_more_than_it_are_explained(kernel, told):
    """From 5 % on; below that it is the parts' own noise."""
    call = trials.trial(
        mode="latency/warm", ticks=[1000] * 40, ledger={"kernel": float(kernel)}
    )
    text = rendered(tables.page(rows.rows([call])))
    assert ("parts are measured apart from the call" in text) is told


def test_the_json_report_has_the_documented_keys_and_is_strict():
    """NaN becomes null; a failed trial has no estimate."""
    facts = {"bytes": math.nan, "code_hash": None}
    made = [
        trials.trial(facts=facts),
        trials.trial("copy", error="it hung", ticks=(), block=1),
    ]
    report = json.loads(
        json_report.dumps(trials.run(), made), parse_constant=pytest.fail
    )
    assert (report["schema"], list(report)) == (
        1,
        ["schema", "run", "machine", "rows", "trials"],
    )
    documented = json_report.__doc__.split('"trials": [')[1]
    for key in report["trials"][0]:
        assert f'"{key}"' in documented or key in {"operations", "items"}
    first, second = report["trials"]
    assert (first["estimate"], first["unit"], first["bytes"]) == (1019.5, "ns", None)
    assert first["low"] <= first["estimate"] <= first["high"]
    assert (second["estimate"], second["error"]) == (None, "it hung")
    assert "writer" not in report["run"]


def test_json_and_csv_have_the_rows_that_are_printed():
    """One a case and mode over all blocks: the estimate, its interval and doubts."""
    made = [*family("a", "b"), trials.trial("x[m=1]", error="it hung", ticks=())]
    made[0] = replace(made[0], doubts=("bimodal",), ledger={"launch": 3.5})
    shown = rows.rows(made)
    exported = json_report.report(trials.run(), made)["rows"]
    lines = list(csv.DictReader(io.StringIO(csv_report.dumps(shown))))
    assert len(exported) == len(lines) == len(shown) == 3
    for row, record, line in zip(shown, exported, lines, strict=True):
        assert set(record) <= set(re.findall(r'"(\w+)":', json_report.__doc__))
        assert record["doubts"] == list(row.doubts)
        assert line["doubts"].split() == list(row.doubts)
        assert not re.search(
            r"[{}\[\]]", "".join(v for k, v in line.items() if k != "case")
        )
        if row.estimate:
            ends = row.estimate.value, row.estimate.low, row.estimate.high
            assert (record["estimate"], record["low"], record["high"]) == ends
            assert float(line["estimate"]) == row.estimate.value
            assert (line["unit"], line["blocks"]) == ("ns", "3")
    assert (lines[0]["axes.impl"], lines[0]["ledger.launch"]) == ("a", "3.5")
    assert (lines[2]["estimate"], lines[2]["errors"]) == ("", "it hung")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [], "none"),
        ([], [{"pid": 8}], "1"),
        ("unknown", [{"pid": 8}, {"pid": 9}], "2"),
        ("unknown", "unknown", "unknown"),
        ([], "unknown", "unknown"),
    ],
)
def test_details_say_who_else_had_the_gpu(before, after, said):
    """Unknown, as in containers, does not read as nobody."""
    state = {"before": {"others": before}, "after": {"others": after}}
    made = rows.rows([of_gpu(extra={"gpu": state})])
    lines = rendered(details.page(trials.run(), made[0])).splitlines()
    (line,) = [line for line in lines if "others on the GPU" in line]
    assert line.split()[-1] == said
    assert "others on the GPU" not in rendered(
        details.page(trials.run(), rows.rows([trials.trial()])[0])
    )


def of_gpu(**changes):
    """Return a trial of 4000 ns a launch on a GPU, by a clock with an offset."""
    same = (6000,) * 40
    values = {
        "samples": Samples(same, same, (1,) * 40, same, (0,) * 40, (1980,) * 40),
        "clock": trials.clock("events", offset=2000.0, uncertainty=150.0, drift=0.0005),
        "extra": {"gpu": trials.STATE},
        "mode": "kernel/cold",
        "axes": {"dtype": "float16"},
    }
    return trials.trial("scale", **(values | changes))


def with_peaks(*made):
    """Return rows in a run whose GPU is known."""
    run = trials.run(machine=trials.FACTS | {"gpu": trials.GPU})
    return rows.with_peaks(rows.rows(made), run.peaks)


def screens():
    """Return what is shown of made-up runs, by what they are of."""
    run = trials.run(uid="c0ffee01", started="2026-01-02T03:04:05+00:00")
    gpu = replace(run, machine=trials.FACTS | {"gpu": trials.GPU})
    modes = ("kernel/cold", "kernel/warm", "per_launch/warm/1")
    failed = [trials.trial("x", mode=m, error="x: it raised", ticks=()) for m in modes]
    failed.append(trials.trial("x", mode=modes[0], error="x: no", ticks=(), block=1))
    parts = {"submit": 100.0, "kernel": 650.0, "untracked": 250.0}
    call = trials.trial(mode="latency/warm", ticks=[1000] * 40, ledger=parts)
    other = trials.trial(
        "b[n=1]", mode="latency/warm", ticks=[400] * 9, ledger={"kernel": 100}
    )
    built = {"registers": 40, "spill_bytes": 8, "shared_bytes": 512}
    first = {"second_kernel_ns": 2.5e6}
    counted = {"ncu": {"occupancy": 0.5, "dram_read": 1 << 20}}
    calls = trials.samples([5000] * 20, launches=10)
    shown = {
        "rows_hints_and_failures": [
            *family("a", "b", "a|b"),
            trials.trial("copy[n=8,impl=c]", error="it raised", ticks=()),
            trials.trial("adam", doubts=("bimodal", "from-the-future")),
            trials.trial("evil", axes={"i": "[red]x"}),
        ],
        "a_failure_of_every_mode": failed,
        "ledgers": [call, other],
        "builds": [
            trials.trial("build[k=a]", mode="build/cold", facts=built),
            trials.trial("build[k=b]", mode="build/first", facts=first),
        ],
        "a_gpu_beside_the_host": [of_gpu(), trials.trial("a")],
        "calls_of_a_gpu": [of_gpu(mode="latency/warm")],
        "processor_time": [of_gpu(mode="per_launch/warm/10", samples=calls)],
        "counters": [of_gpu(facts=counted), of_gpu(facts={}, mode="kernel/warm")],
    }
    ticks = tuple(range(6000, 6040))
    several = {
        "samples": replace(of_gpu().samples, ticks=ticks, cpu=ticks),
        "clock": replace(of_gpu().clock, floor=(20, 21, 20)),
        "hashes": {"file": "suites/my memory.py", "source": "s1"},
    }
    (blocks,) = with_peaks(*(of_gpu(block=b, **several) for b in range(2)))
    headers = {"header_of_a_gpu": gpu}
    for name, caches in (("no", "unknown"), ("odd", {"L2": {"bytes": "unknown"}})):
        identity = trials.FACTS["identity"] | {"caches": caches}
        machine = trials.FACTS | {"identity": identity}
        headers[f"header_of_{name}_caches"] = replace(run, machine=machine)
    return (
        {
            name: tables.page(with_peaks(*made), ["celsius"])
            for name, made in shown.items()
        }
        | {name: [tables.run_header(one)] for name, one in headers.items()}
        | {
            "details_of_a_failure": details.page(run, rows.rows(failed)[0]),
            "details_of_blocks": details.page(gpu, blocks),
            "markdown": markdown.dumps(
                gpu, with_peaks(*shown["rows_hints_and_failures"])
            ),
        }
    )


@pytest.mark.parametrize("name", sorted(screens()))
def test_what_is_shown_of_a_run_is_golden(golden, name):
    """Tables, ledgers, details, headers and Markdown; each column where a row has it."""
    shown = screens()[name]
    text = shown if isinstance(shown, str) else rendered(shown, 200)
    golden("".join(f"{line.rstrip()}\n" for line in text.splitlines()), name)


@pytest.mark.parametrize(
    ("caches", "gpu", "named"),
    [
        ({"L2": {"bytes": 512 << 10}}, {}, "Test CPU, 2 cores, L2 512 KiB,"),
        ({"L1": {"bytes": 32 << 10}}, {}, "Test CPU, 2 cores, hypervisor no"),
        ("unknown", {}, "Test CPU, 2 cores, hypervisor no"),
        ({"L2": {"bytes": 1 << 20}}, {"gpu": trials.GPU}, "H200, Test CPU, 2 cores, h"),
    ],
)
def test_processors_whose_names_are_hidden_differ_by_their_caches(caches, gpu, named):
    """Of a run on a GPU the GPU says enough."""
    identity = trials.FACTS["identity"] | {"caches": caches}
    assert named in text.machine(trials.FACTS | {"identity": identity} | gpu)


def test_a_command_repeats_a_row():
    """With its seed, its inputs, and a file whose name has a blank."""
    hashes = {"file": "suites/my memory.py"}
    (row,) = rows.rows([trials.trial(hashes=hashes)])
    run = trials.run(settings={"seed": 7, "inputs": {"x": "/data/x.npy"}})
    command = shlex.split(details.reproduce(run, row))
    assert command[:3] == ["steelyard", "run", "suites/my memory.py"]
    pairs = set(itertools.pairwise(command))
    assert pairs >= {("-k", "copy[n=1024,impl=numpy]"), ("--mode", "kernel/warm")}
    assert pairs >= {("--seed", "7"), ("--input", "x=@/data/x.npy")}
    (failed,) = rows.rows([trials.trial(error="it hung", ticks=())])
    assert details.reproduce(trials.run(), failed).startswith("steelyard run ")


@pytest.mark.parametrize(
    ("ticks", "clock", "peaks", "beyond", "doubted"),
    [
        (6000, {}, {}, False, False),
        (2900, {}, {}, True, True),
        # By a clock that may be wrong by more than it is beyond, it says nothing.
        (1900, {"offset": 0.0, "uncertainty": 2000.0}, {}, True, False),
        # Nor where the peak may be: a copy of two microseconds, read within 1.2 us.
        (2900, {}, {"uncertainty": 1200.0}, True, False),
    ],
)
def test_faster_than_the_peak_is_doubted(ticks, clock, peaks, beyond, doubted):
    """Beyond what two measurements differ by."""
    known = {"offset": 2000.0, "uncertainty": 150.0, "drift": 0.0005} | clock
    samples, clock = trials.samples([ticks] * 9), trials.clock("events", **known)
    trial = of_gpu(facts={"bytes": 8192}, samples=samples, clock=clock)
    gpu = trials.GPU | {"peaks": trials.GPU["peaks"] | peaks}
    run = trials.run(machine=trials.FACTS | {"gpu": gpu})
    (row,) = rows.with_peaks(rows.rows([trial]), run.peaks)
    assert (row.peak.share > 1.03) is beyond
    assert ("above-peak" in row.doubts) is doubted


def test_two_kernels_share_no_error_of_a_clocks_offset():
    """Events read another 0.2 us round another kernel; of the same one it cancels."""
    ours, theirs = (
        [
            replace(of_gpu(block=n), case=f"add[impl={impl}]", axes={"impl": impl})
            for n in range(2)
        ]
        for impl in ("ours", "theirs")
    )
    made = rows.relative_to(rows.rows([*ours, *theirs]), "impl=ours")
    found = {r.axes["impl"]: r.relative for r in made}
    assert found["theirs"].value == 1
    assert found["theirs"].high == pytest.approx(1 + 2 * 150 / 4000)
    assert found["ours"].high - 1 < 0.01
    assert rows.paired_ratio(theirs, theirs) == found["ours"]


def test_a_frequency_that_was_missed_is_no_frequency():
    """A stamp that was not read has 0: neither median nor least is that."""
    samples = replace(of_gpu().samples, mhz=(0,) * 30 + (1980,) * 10)
    missed = of_gpu(samples=samples)
    run = trials.run(machine=trials.FACTS | {"gpu": trials.GPU})
    (told,) = json_report.report(run, [missed])["trials"]
    assert (told["mhz"], told["mhz_least"]) == (1980, 1980)
    assert " 1980 " in rendered(tables.page(with_peaks(missed), ["mhz"]), 200)


def test_a_gpus_row_is_exported_with_all_it_knows():
    """Null where nothing is known; a CPU's has the same keys."""
    run = trials.run(machine=trials.FACTS | {"gpu": trials.GPU})
    device, host = json_report.report(run, [of_gpu(), trials.trial("a")])["trials"]
    assert device.keys() == host.keys()
    assert device["estimate"] == 4000.0
    assert device["budget"] == {
        "sampling": pytest.approx(0, abs=32),
        "quantum": pytest.approx(16, abs=32),
        "offset": 150.0,
        "drift": 2.0,
    }
    assert (device["peak"], device["peak_bound"]) == (0.5, "copy")
    assert (device["mhz"], device["watts"], device["joules"]) == (1980, 510.0, 0.0025)
    assert device["clocks"].keys() == {"events"}
    assert device["gpu"]["after"]["temperature_c"] == 45
    assert (host["gpu"], host["mhz"], host["peak"]) == (None, None, None)
    assert "% peak" in markdown.dumps(run, with_peaks(of_gpu()))
    assert "peak_bound" in csv_report.dumps(with_peaks(of_gpu()))

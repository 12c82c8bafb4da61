"""Measure what the project promises of its gate, and print each bar with its figure.

    python ci/gate_bars.py [--only NAME]... [--minutes N] [--quick] [--out FILE] [PATHS]

Sections that measure take ``--minutes`` each; they want a machine of their own. With
``--quick`` every section is made small, to see that it works. Writes JSON: a list of
sections, each with its bars and with every figure behind them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any, Final

import click

from steelyard.analyse.verdict import Verdict
from steelyard.commands.selftest import points_of, policy_of
from steelyard.declare import config
from steelyard.gate import calibration
from steelyard.gate.blocks import Point
from steelyard.gate.calibration import Tally
from steelyard.gate.run import Asked
from steelyard.gate.selftest import SelfTest, Steps
from steelyard.machine import facts as machine
from steelyard.store import session
from steelyard.store.store import Store

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = sys.executable
STEELYARD: Final = str(Path(sys.executable).with_name("steelyard"))


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise with what was measured."""

    what: str
    bar: str
    figure: str
    met: bool | None
    """None where it could not be measured, or not to its end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    paths: Sequence[str]
    pattern: str | None
    minutes: float
    quick: bool


Found = tuple[list[Bar], Mapping[str, Any]]
"""Bars, and the figures behind them."""


def same(options: Options) -> Found:
    """Compare the shipped suite with itself until there are enough comparisons.

    All of it at once, as a gate does: workers cost the more the fewer cases share them.
    """
    points = _points(options.paths, options.pattern)
    tally, seconds = Tally(), 60 * options.minutes
    test = _test(points, tally, chunk=len(points))
    began = monotonic()
    while len(tally.same) < 1000 and monotonic() - began < seconds and _able(test):
        test.seed += 1
        test.compare(began + seconds, rounds=1)
    took = monotonic() - began
    count, cases = len(tally.same), len({case for (case, _), _, _ in tally.same})
    verdicts = Counter(str(verdict) for _, verdict, _ in tally.same)
    slower = verdicts[Verdict.SLOWER]
    enough = count >= 1000 and cases >= 30
    open_ends = tally.undecided / max(count, 1)
    each = [blocks for _, _, blocks in tally.same]
    blocks = fmean(each) if each else math.nan
    wall = took / max(count, 1)
    known = tally.detectable(test.policy)
    gateable = sum(size <= 0.05 for size in known.values()) / max(len(known), 1)
    bars = [
        Bar(
            "the shipped suite against itself: false slower after confirmation",
            "0 of >= 1000 comparisons of >= 30 cases",
            f"{slower} of {count} of {cases} cases",
            _of(enough, slower == 0),
        ),
        Bar(
            "the same: unresolved and not gateable",
            "<= 10 %",
            f"{100 * open_ends:.1f} %",
            _of(enough, open_ends <= 0.1),
        ),
        Bar(
            "cost of a comparison that measures",
            "<= 4 blocks and <= 3 s",
            f"{blocks:.2f} blocks, {wall:.2f} s",
            _of(enough, blocks <= 4 and wall <= 3),
        ),
        Bar(
            "rows of the suite whose published smallest change is at most 5 %",
            ">= half",
            f"{100 * gateable:.0f} % of {len(known)}",
            _of(enough, gateable >= 0.5),
        ),
    ]
    return bars, {"seconds": took, "verdicts": verdicts, **_figures(test)}


def planted(options: Options) -> Found:
    """Plant slowdowns in kernels of 10 us to 1 ms and count what is found."""
    points = _points([str(ROOT / "suites/planted.py")], None)
    tally, seconds = Tally(), 60 * options.minutes
    test = _test(points, tally, sizes=(0.05, 0.03))
    began = monotonic()
    test.compare(began + seconds / 3)
    test.plant(began + seconds, lambda: Steps.measured(points, 0))
    known = tally.detectable(test.policy)
    every, fit = tally.found(), tally.found(known)
    bars = []
    for size, least in ((0.03, 0.95), (0.05, 0.99)):
        hits, of = fit.get(size, (0, 0))
        rate = calibration.share(hits, of)
        bars.append(
            Bar(
                f"planted {size:+.0%} where the published smallest change allows it",
                f">= {100 * least:.0f} %",
                f"{hits} of {of} ({100 * rate.value:.1f} %, 95 %: "
                f"{100 * rate.low:.1f} to {100 * rate.high:.1f} %); of all rows "
                f"{' of '.join(map(str, every.get(size, (0, 0))))}",
                _of(of >= 20, rate.value >= least),
            )
        )
    gateable = sum(size <= 0.05 for size in known.values()) / max(len(known), 1)
    bars.append(
        Bar(
            "planted suite: rows that are gateable at 5 %",
            ">= half",
            f"{100 * gateable:.0f} % of {len(known)}",
            _of(bool(known), gateable >= 0.5),
        )
    )
    figures = _figures(test) | {
        "times_ns": {" ".join(key): median(t) for key, t in test._times.items()}  # noqa: SLF001 # this script's business
    }
    return bars, figures


def cost(options: Options) -> Found:
    """Time a gate over a suite that did not change, as a user runs it."""
    arguments = ["gate", "HEAD", *options.paths, "--format", "json"]
    if options.pattern:
        arguments += ["-k", options.pattern]
    if options.quick:
        arguments += ["--budget", "20"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gate.json"
        arguments += ["--output", str(file), "--store", f"{folder}/gate.db"]
        began = monotonic()
        code = subprocess.run([STEELYARD, *arguments], cwd=ROOT, check=False).returncode
        took = monotonic() - began
        told = json.loads(file.read_text()) if file.exists() else {}
        spent = _spent(f"{folder}/gate.db")
    findings = told.get("findings", [])
    judged = [f["judgement"]["blocks"] for f in findings if f["judgement"]]
    cases = len({finding["case"] for finding in findings})
    blocks = sum(judged) / max(len(findings), 1)
    wall = took / max(cases, 1)
    verdicts = Counter(str(finding["verdict"]) for finding in findings)
    bar = Bar(
        "a gate over an unchanged suite, start to end",
        "<= 4 blocks and <= 3 s a case on average",
        f"{blocks:.2f} blocks a row, {wall:.2f} s a case ({cases} cases, "
        f"{len(findings)} rows, exit {code})",
        _of(bool(findings) and not options.quick, blocks <= 4 and wall <= 3),
    )
    problem = told.get("problem", "nothing was written")
    figures = {"seconds": took, "verdicts": verdicts, "exit": code, "problem": problem}
    return [bar], figures | {"weighing": sum(spent.values()), "spent": spent}


def _spent(store: str) -> dict[str, float]:
    """Return the seconds that weighing took by rows, the dearest first.

    Both sides weigh a block at once, each while the other waits.
    """
    rows: dict[str, float] = {}
    with Store.open(store) as opened:
        for trial in (t for run in opened.runs() for t in opened.trials(run.uid)):
            seconds = trial.extra.get("wall_ns", 0) / 2e9
            row = f"{trial.case} {trial.mode}"
            rows[row] = rows.get(row, 0.0) + seconds
    return dict(sorted(rows.items(), key=lambda one: -one[1]))


def static(options: Options) -> Found:
    """Time the static lane of a checkout without changes, start to verdict."""
    took, codes = [], []
    for _ in range(1 if options.quick else 5):
        began = monotonic()
        done = _run([STEELYARD, "gate", "HEAD", "--lane", "static"])
        took.append(monotonic() - began)
        codes.append(done.returncode)
    bar = Bar(
        "gate without changes, start to verdict over the static lane",
        "<= 5 s",
        f"{median(took):.2f} s (worst {max(took):.2f} s, exit {codes[-1]})",
        max(took) <= 5 and set(codes) == {0},
    )
    return [bar], {"seconds": took, "exits": codes}


def nulls(options: Options) -> Found:
    """Simulate suites of which nothing, or little, has changed."""
    small = ["--suites", "2"] if options.quick else []
    told = json.loads(
        _run([PYTHON, "ci/nulls.py", *small]).stdout
    )  # 1: a bar is missed
    bars = []
    for row in told["rows"]:
        wanted = [bar["figure"].rsplit(" ", 2) for bar in row["bars"]]
        bars.append(
            Bar(
                f"simulated suites of 200: {row['row']}",
                ", ".join(map(" ".join, wanted)),
                ", ".join(f"{row[name]:.3g} {name}" for name, _, _ in wanted),
                _of(not options.quick, all(bar["met"] for bar in row["bars"])),
            )
        )
    return bars, told


def history(options: Options) -> Found:
    """Look for steps in simulated, measured and annotated histories."""
    small = ["--commits", "60", "--seeds", "2"]
    told = _json("ci/history.py", *(small if options.quick else []))
    found = told["found within 5 commits"]
    simulated, shuffled = told["false alarms"], told["false alarms in shuffled runs"]
    several = told["steps of 5 % found"]
    bars = [
        Bar(
            f"history: false alarms in {told['commits']} commits of each kind of noise",
            "0",
            ", ".join(f"{name}: {count}" for name, count in simulated.items()),
            _of(not options.quick, not any(simulated.values())),
        ),
        Bar(
            "history: false alarms in shuffled measurements",
            "0",
            f"{sum(shuffled.values())}",
            _of(not options.quick, not any(shuffled.values())),
        ),
        Bar(
            "history: a step of +5 % at 1 % noise found within 5 commits",
            "always",
            f"{100 * found['+5%']:.0f} % of series",
            _of(not options.quick, found["+5%"] == 1),
        ),
        Bar(
            "history: 1, 3, 5, 7, 9 steps of 5 % in 200 points of 1 % noise",
            ">= 97 % found",
            ", ".join(f"{100 * share:.0f} %" for share in several.values()),
            _of(not options.quick, min(several.values()) >= 0.97),
        ),
        *(
            Bar(
                f"history: annotated series of asv, {name}",
                "precision >= .98, recall >= .88",
                f"{own['precision']}, {own['recall']}",
                _of(
                    not options.quick,
                    own["precision"] >= 0.98 and own["recall"] >= 0.88,
                ),
            )
            for name, read in told["annotated"].items()
            for own in [read["steelyard"]]
        ),
    ]
    return bars, told


ASV: Final = {
    "same": ("`asv continuous` A against A, 20 times", "exit 0 each time"),
    "planted": ("`asv continuous` on a planted +10 %", "exit 1 and the right case"),
    "history": (
        "ten commits, one planted slowdown",
        "found by `asv publish` and `steelyard history`",
    ),
}
"""The parts of ``ci/asv_bars.py``: what they do, and their bars."""


def asv(options: Options) -> Found:
    """Run `asv continuous` on nothing and on a planted slowdown, and both histories."""
    small = ["--times", "1", "--rounds", "2", "--only", "same"]
    told = _json("ci/asv_bars.py", *(small if options.quick else []))
    bars = []
    for name, found in told.items():
        shown = {k: v for k, v in found.items() if k in {"exit codes", "exit code"}}
        met = _of(not options.quick, found["bar met"])
        bars.append(Bar(*ASV[name], f"{shown or found['bar met']}", met))
    return bars, told


def kills(options: Options) -> Found:
    """Kill `run` and `gate` at random moments."""
    count = 4 if options.quick else 200
    arguments = ["tests/storm_gate.py", "--kills", str(count), "--seed", "1"]
    done = _run([PYTHON, *arguments])
    bar = Bar(
        f"`run` and `gate` killed at random moments, {count} times",
        "no finished trial lost, the next command works",
        f"exit {done.returncode}",
        _of(not options.quick or bool(done.returncode), done.returncode == 0),
    )
    return [bar], {"output": (done.stdout + done.stderr)[-4000:]}


SECTIONS: Mapping[str, Callable[[Options], Found]] = {
    one.__name__: one
    for one in (static, nulls, history, cost, same, planted, asv, kills)
}


def _json(name: str, *arguments: str) -> Any:
    done = _run([PYTHON, name, *arguments])
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )


def _of(complete: bool, met: bool) -> bool | None:
    """Return whether a bar is met, None where too little was measured."""
    return met if complete else None


def _points(paths: Sequence[str], pattern: str | None) -> list[Point]:
    points, left = points_of(Asked("", paths, pattern))
    if left:
        click.echo(f"left out: {left}", err=True)
    return points


def _test(points: Sequence[Point], tally: Tally, **changes: Any) -> SelfTest:
    asked = session.Asked(())
    how = session.settings(config.load(), asked, check=True, allocations=False)
    policy = policy_of(points)
    return SelfTest(points, how, tally, say=_say, policy=policy, **changes)


def _able(test: SelfTest) -> bool:
    failed = len(test.tally.failed)
    return failed < len(test.points)


def _figures(test: SelfTest) -> dict[str, Any]:
    """Return what a reader of the figures may want to look up."""
    tally, known = test.tally, test.tally.detectable(test.policy)
    return {
        "undecided": [
            [*key, verdict, blocks]
            for key, verdict, blocks in tally.same
            if verdict in calibration.UNDECIDED
        ],
        "comparisons": len(tally.same),
        "alarms": [[*key, verdict, blocks] for key, verdict, blocks in tally.alarms],
        "detectable": {" ".join(key): size for key, size in sorted(known.items())},
        "blocks": {" ".join(key): blocks for key, blocks in tally.blocks.items()},
        "planted": [[*key, size, verdict] for key, size, verdict in tally.planted],
        "failed": {" ".join(key): why for key, why in tally.failed.items()},
    }


def _say(line: str) -> None:
    click.echo(line, err=True)


@click.command(help=__doc__)
@click.argument("paths", nargs=-1)
@click.option("-k", "pattern", metavar="EXPR", help="Only these cases of PATHS.")
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True)
@click.option("--minutes", type=float, default=60.0, show_default=True)
@click.option("--quick", is_flag=True, help="Make every section small.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the JSON here too.")
def main(
    *,
    paths: tuple[str, ...],
    pattern: str | None,
    only: tuple[str, ...],
    minutes: float,
    quick: bool,
    out: str | None,
) -> None:
    """Run the sections and print what they found."""
    os.chdir(ROOT)
    options = Options(paths or ("suites",), pattern, minutes, quick)
    told: dict[str, Any] = {"machine": machine.describe(), "sections": {}}
    for name in only or SECTIONS:
        began = monotonic()
        bars, figures = SECTIONS[name](options)
        for bar in bars:
            _say(f"{_MARKS[bar.met]} {bar.what}: {bar.figure} (bar: {bar.bar})")
        told["sections"][name] = {
            "bars": [asdict(bar) for bar in bars],
            "took_s": round(monotonic() - began, 1),
            "figures": figures,
        }
        if out:  # after each: what was measured is kept when a later one is stopped
            Path(out).write_text(json.dumps(told, indent=1, default=str) + "\n")
    click.echo(json.dumps(told, indent=1, default=str))


_MARKS: Final = {True: "met ", False: "MISS", None: "?   "}


if __name__ == "__main__":
    main()

"""Write pages of HTML to look at and to send."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from steelyard.analyse import kinds
from steelyard.commands import _options as options
from steelyard.commands.verdict import outcome_of
from steelyard.errors import SteelyardError
from steelyard.gate import document
from steelyard.machine import files
from steelyard.machine.decoding import Malformed, parsed
from steelyard.process import stacks
from steelyard.report import stored
from steelyard.report.formats import Results
from steelyard.report.pages import gate, history, icicle, machines, overview, run
from steelyard.store import series
from steelyard.store.store import Store

GATE: Final = "gate"
HISTORY: Final = "history"
MACHINES: Final = "machines"
STORE: Final = "store"


@click.command()
@click.argument(
    "subject", metavar="[RUN|gate|history|machines|store|FILE]", required=False
)
@click.argument("case", metavar="[CASE]", required=False)
@options.option(
    "-o --output",
    "Write it there.",
    "report.html, or report for a store",
    metavar="FILE|FOLDER",
    type=options.PATH,
)
@options.option(
    "--samples/--no-samples",
    "Whether `import` can read a run from its page.",
    "up to 300 kB",
    default=None,
)
@options.option(
    "--runs count",
    "Runs of a store that have a page, the latest.",
    shown=True,
    type=click.IntRange(min=0),
    default=1,
)
@options.store_option
def command(
    *,
    subject: str | None,
    case: str | None,
    output: Path | None,
    samples: bool | None,
    count: int,
    store: str | None,
) -> None:
    """Write a run, a case, a gate, a history, machines or a store as pages of HTML.

    Pages need no network and can be read without JavaScript. RUN is named as in `show`;
    `gate` is the last one here. FILE is the JSON of a gate, a trace of `steelyard compile
    --trace`, or stacks: Speedscope's JSON, folded lines, what `perf script` prints.
    """
    if subject == STORE:
        _write_store(output or Path("report"), samples, count, store)
        return
    if subject == GATE:
        text = gate.dumps(outcome_of(None, store))
    elif subject and Path(subject).is_file():
        text = _of_file(Path(subject))
    else:
        with options.opened(store) as opened:
            if subject == HISTORY:
                text = _of_history(opened, case)
            elif subject == MACHINES:
                text = _of_machines(opened, case)
            else:
                text = _of_run(opened, subject, case, samples)
    _write(output or Path("report.html"), text)


def _write(place: Path, text: str) -> None:
    files.save(place, text, "-o")
    click.echo(f"{place}: {len(text.encode()) / 1000:.0f} kB")


def _of_run(
    opened: Store, name: str | None, case: str | None, samples: bool | None
) -> str:
    found, case = stored.locate(opened, name, case)
    trials = stored.of_case(opened.trials(found.uid), case)
    made = stored.rows_of(found, trials, None)
    return run.dumps(Results(found, trials, made), samples=samples)


def _of_history(opened: Store, case: str | None) -> str:
    found = series.histories(series.stored(opened, case))
    return history.dumps(found, [f"store {Path(opened.name).name}"])


def _of_machines(opened: Store, case: str | None) -> str:
    """Return the page of all kinds of machines beside each other."""
    measured = series.stored(opened, case, on=(kinds.ANY,))
    found = {
        kind: series.histories(group)
        for kind, group in sorted(series.by_kind(measured).items())
    }
    return machines.dumps(found, [f"store {Path(opened.name).name}"])


def _of_file(place: Path) -> str:
    """Return the page of a trace, of stacks, or of a gate's JSON."""
    try:
        content = files.read(place)
        if b'"traceEvents"' in content[:4096]:
            return icicle.dumps(parsed(content), place.name)
        if stacks.SPEEDSCOPE in content or content.lstrip()[:1] not in {b"{", b"<"}:
            return icicle.dumps_stacks(stacks.read(content), place.name)
    except Malformed as error:
        raise SteelyardError(
            f"{place} holds neither a trace nor stacks: {error}. Write one with `steelyard "
            "compile --trace`, or with py-spy's --format speedscope."
        ) from error
    except OSError as error:
        raise SteelyardError(f"{place}: {error.strerror}. Name another.") from error
    return gate.dumps(document.read(place))


def _write_store(
    folder: Path, samples: bool | None, count: int, store: str | None
) -> None:
    """Write a folder: an index, the history, the last gate, and the latest runs."""
    files.folder(folder, f"-o {folder}", "Name a folder that can be written.")
    url = options.url(store)
    pages: dict[str, str] = {}
    with Store.open(url, create=False) as opened:
        every = opened.runs()
        for one in every[len(every) - count :] if count else ():
            pages[one.short] = f"{one.short}.html"
            _write(folder / pages[one.short], _of_run(opened, one.uid, None, samples))
        if any(series.is_of_history(one, None) for one in every):
            pages[HISTORY] = f"{HISTORY}.html"
            _write(folder / pages[HISTORY], _of_history(opened, None))
        if len({kinds.of(one.machine) for one in every}) > 1:
            pages[MACHINES] = f"{MACHINES}.html"
            _write(folder / pages[MACHINES], _of_machines(opened, None))
        last = document.home(url) / document.LAST
        if last.exists():
            pages[GATE] = f"{GATE}.html"
            _write(folder / pages[GATE], gate.dumps(document.read(last)))
        index = overview.dumps(Path(opened.name).name, every, opened.counts(), pages)
    _write(folder / "index.html", index)

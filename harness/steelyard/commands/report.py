"""Write a page of HTML to look at and to send."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from steelyard.commands._options import store_option
from steelyard.commands.verdict import outcome_of
from steelyard.declare import config
from steelyard.errors import SteelyardError
from steelyard.machine import files
from steelyard.report import stored
from steelyard.report.formats import Results
from steelyard.report.pages import gate, run
from steelyard.store.store import Store

GATE: Final = "gate"


@click.command()
@click.argument("subject", metavar="[RUN|gate|FILE]", required=False)
@click.argument("case", metavar="[CASE]", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it there.",
)
@click.option(
    "--samples/--no-samples",
    default=None,
    help="Whether `import` can read the run from the page.",
    show_default="up to 300 kB",
)
@store_option
def command(
    *,
    subject: str | None,
    case: str | None,
    output: Path,
    samples: bool | None,
    store: str | None,
) -> None:
    """Write a run, one case of it, or a gate as a page of HTML.

    The page needs no network and can be read without JavaScript. RUN is named as in
    `show`; `gate` is the last one here, and FILE the JSON of one.
    """
    if subject == GATE or (subject and Path(subject).is_file()):
        source = None if subject == GATE else Path(subject or "")
        text = gate.dumps(outcome_of(source, store))
    else:
        text = _of_run(subject, case, samples=samples, store=store)
    try:
        files.replace(output, text.encode())
    except OSError as error:
        raise SteelyardError(
            f"-o {output}: {error.strerror}. Name another file."
        ) from error
    click.echo(f"{output}: {len(text.encode()) / 1000:.0f} kB")


def _of_run(
    subject: str | None, case: str | None, *, samples: bool | None, store: str | None
) -> str:
    with Store.open(config.load({"store": store}).store, create=False) as opened:
        found, case = stored.locate(opened, subject, case)
        trials = stored.of_case(opened.trials(found.uid), case)
        made = stored.rows_of(found, trials, None)
        return run.dumps(Results(found, trials, made), samples=samples)

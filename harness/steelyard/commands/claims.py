"""Measure what claims.toml states, and say whether it holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steelyard.commands import _options as options
from steelyard.declare import claims_file
from steelyard.errors import SteelyardError
from steelyard.machine import files

if TYPE_CHECKING:
    from steelyard.analyse.claims import Claim, Judged
    from steelyard.analyse.rows import Row
    from steelyard.analyse.trial import Run
    from steelyard.declare.config import Config

TAG = "claims"
"""Names the runs that were made for claims."""

AGAIN = f"Name another file; `steelyard claims --run {TAG}` judges the same run again."


@click.command(name="claims")
@click.argument(
    "path",
    metavar="[FILE]",
    default=claims_file.NAME,
    type=options.FILE,
)
@options.option(
    "-k pattern", "Only claims whose names have these words.", metavar="EXPR"
)
@options.option(
    "--run stored", "Judge a stored run and measure nothing.", metavar="RUN"
)
@options.blocks_option
@options.seed_option
@options.option("--budget", "End by then.", type=float, metavar="SECONDS")
@options.timeout_option
@options.wait_option
@options.gpu_option
@options.written(
    "--record",
    "Keep what was judged in this table too, a line a claim, case and machine.",
    type=options.FILE,
)
@options.format_option("claims")
@options.output_option
@options.store_option
def command(
    *,
    path: Path,
    pattern: str | None,
    stored: str | None,
    record: Path | None,
    wait: float,
    shape: str,
    output: str | None,
    **flags: Any,
) -> int:
    """Measure what the claims of FILE are about, and say whether they hold.

    FILE is claims.toml unless another is given. A claim is judged by the 95 % interval
    of what it bounds: it holds or fails where the whole interval does.

    Ends with 0 where all hold, 1 where one fails, 2 where a case of one failed, 3 where
    one cannot be judged, and 4 where the file or the command is wrong. Claims about
    another machine are skipped; where all are, nothing was judged, and that is 3.
    """
    from steelyard.analyse import claims, rows
    from steelyard.declare import claimed, config

    file = claims_file.load(path)
    missed = "no claim is called"
    asked = rows.selected(file.claims, lambda one: one.name, pattern, missed)
    if record:
        _recorded(record, (), None, ())  # refused before anything is measured
    suites = tuple(str(path.parent / suite) for suite in file.suites)
    if flags["blocks"] is None:
        flags["blocks"] = file.blocks
    chosen = config.load(flags | {"suites": suites or None})
    missing = {one.name: claimed.missing_modules(one) for one in asked}
    run: Run | None
    if stored:
        made, run = _stored(chosen.store, stored)
        machine, absent = run.machine, {}
    else:
        machine = _machine(chosen, asked)
        here = [
            one
            for one in asked
            if not (missing[one.name] or claims.elsewhere(one, machine))
        ]
        made, run, absent = _measured(here, chosen, wait) if here else ([], None, {})
    found = claims.judge(asked, made, machine, unavailable=missing, absent=absent)
    _write(found, run, shape, output)
    if record:
        text = _recorded(record, found, run, [one.name for one in file.claims])
        files.save(record, text, "--record", AGAIN)
    return claims.exit_code(found)


def _stored(url: str, name: str) -> tuple[list[Row], Run]:
    from steelyard.analyse import rows
    from steelyard.store.store import Store

    with Store.open(url, create=False) as opened:
        run = opened.find(name)
        return rows.rows(opened.trials(run.uid)), run


def _machine(chosen: Config, asked: Sequence[Claim]) -> dict[str, Any]:
    """Return the facts of this machine; a GPU is only looked for where it counts."""
    from steelyard.machine import facts, gpu_choice

    machine = facts.describe()
    if any("gpu" in one.where for one in asked) and gpu_choice.missing() is None:
        machine["gpu"] = gpu_choice.facts(gpu_choice.choose(chosen.gpu))
    return machine


def _measured(
    here: Sequence[Claim], chosen: Config, wait: float
) -> tuple[list[Row], Run, dict[str, str]]:
    """Measure what claims need in one run; why some have no cases is the last value."""
    from steelyard.analyse import rows
    from steelyard.declare import claimed, config, discovery, plan
    from steelyard.report import progress
    from steelyard.store import session

    pairs, absent = claimed.pairs(
        here, discovery.discover(config.suites(chosen), seconds=chosen.timeout)
    )
    if not pairs:
        raise SteelyardError(" ".join(dict.fromkeys(absent.values())))
    request = session.Request((), blocks=chosen.blocks, tags=(TAG,), wait=wait)
    how = session.settings(chosen, request)
    turns = plan.of_pairs(pairs, chosen.blocks, chosen.seed)
    how, device = session.on_gpu(turns, how, chosen)
    outcome = progress.measured(turns, how, request, chosen.store, device)
    progress.ending(outcome, chosen.store)
    if outcome.state == "interrupted":
        raise KeyboardInterrupt
    return rows.rows(outcome.trials), outcome.run, absent


def _recorded(
    record: Path, found: Sequence[Judged], run: Run | None, names: Sequence[str]
) -> str:
    """Return the text of a record with what was judged in it."""
    from steelyard.report import claims_report

    kept = files.read(record).decode(errors="replace") if record.exists() else ""
    return claims_report.merged(kept, found, run, names)


def _write(
    found: Sequence[Judged], run: Run | None, shape: str, output: str | None
) -> None:
    """Print judged claims, or write them to a file."""
    from steelyard.report import claims_report, formats, tables

    write = formats.formats()[shape].claims if shape != formats.TABLE else None
    if write is None and output in {None, "-"}:
        tables.console().print(*claims_report.page(found), sep="\n")
        return
    said = write(formats.Claims(found, run)) if write else claims_report.table(found)
    if output in {None, "-"}:
        click.echo(said, nl=False)
        return
    files.save(str(output), said, "--output", AGAIN)

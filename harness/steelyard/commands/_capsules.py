"""What commands that write capsules share: a case is measured, then it is all one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from steelyard.declare.config import Config
from steelyard.declare.plan import Plan, Settings
from steelyard.errors import FINE, SteelyardError
from steelyard.machine import files
from steelyard.report import progress, stored
from steelyard.store import capsules, session


def require_place(output: Path) -> None:
    """Refuse a file that no capsule can be written to.

    Raises:
        SteelyardError: of another name, or not writable.
    """
    if output.suffix != capsules.SUFFIX:
        raise SteelyardError(
            f"-o {output}: a capsule's name ends in {capsules.SUFFIX}."
        )
    files.require_writable(output, "-o")


def write(
    output: Path,
    turns: Plan,
    request: session.Request,
    chosen: Config,
    recorded: Callable[[Settings], tuple[Mapping[str, Any], Path]],
) -> int:
    """Measure turns of one case and write its capsule; return what the run ends with.

    ``recorded`` gives the manifest's content and the folder of the members: it is asked
    first, lest something be measured for nothing.
    """
    how = session.settings(chosen, request)
    how, device = session.on_gpu(turns, how, chosen)
    content, folder = recorded(how)
    outcome = progress.measured(turns, how, request, chosen.store, device)
    progress.ending(outcome, chosen.store)
    made = stored.rows_of(outcome.run, outcome.trials, None)
    stored.print_rows(outcome.run, made, [], None)
    if outcome.exit_code:
        click.echo(f"{output} is not written: it would lack numbers", err=True)
        return outcome.exit_code
    data = capsules.write(content, folder, outcome.run, outcome.trials)
    files.save(output, data, "-o")
    click.echo(f"{output}: {len(data)} bytes; `steelyard replay {output} --trust`")
    return FINE

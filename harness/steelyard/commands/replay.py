"""Measure a capsule's instructions on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from steelyard.analyse import compare
from steelyard.analyse.trial import Run
from steelyard.commands import _options as options
from steelyard.commands import gate as gating
from steelyard.declare import mode as modes
from steelyard.declare import plan
from steelyard.declare.config import Config
from steelyard.errors import FINE, SteelyardError
from steelyard.prepare import capsule_work
from steelyard.process import scratch
from steelyard.report import comparison, gate_terminal, progress, stored, tables, text
from steelyard.store import capsules, session
from steelyard.store.capsules import Measured
from steelyard.store.store import Store

HERE = "."
"""The working tree, as --beside names it."""

TAG = "replay"
"""Of runs of capsules, which say nothing of the commit that is checked out; another has
the capsule's digest behind it."""


@click.command()
@click.argument("path", type=options.PATH)
@click.argument("paths", nargs=-1)
@options.trust_option
@options.option(
    "--beside",
    "Measure this commit's build, or the working tree's, in turn with it.",
    metavar="COMMIT|.",
)
@options.option("--dry-run", "Print the plan and run nothing.", is_flag=True)
@options.modes_option("those that it was measured in")
@options.turns_options
def command(
    *,
    path: Path,
    paths: tuple[str, ...],
    trusted: bool,
    beside: str | None,
    dry_run: bool,
    **asked: Any,
) -> int:
    """Measure the instructions of capsule PATH here: first what differs, then the times.

    Nothing of it runs before --trust, or a signature by a key that you listed. With
    --beside its case is found in PATHS, the suites, and it ends as `gate` does.
    """
    if paths and not beside:
        raise SteelyardError(
            f"replay got {' '.join(paths)}, but measures the capsule alone: pass --beside "
            "COMMIT, or . for the working tree, or leave them out."
        )
    found = capsules.read(path)
    console = tables.console()
    console.print(*map(Text, text.capsule(found.capsule)), sep="\n")
    chosen = options.loaded(asked, paths, seed=found.capsule.manifest["seed"])
    with scratch.folder() as home:
        turns = _turns(found, Path(home), chosen, asked["modes"])
        if dry_run:
            made = stored.rows_of(found.run, found.trials, None)
            stored.print_header(found.run, len(found.trials))
            stored.print_rows(found.run, made, [], None)
            progress.plan(turns)
            return FINE
        why = capsules.require_trust(found, path, by_user=trusted)
        console.print(Text(f"\n{path}: {why}"))
        if beside:
            return _beside(path, beside, chosen, found, asked)
        return _alone(found, turns, chosen, asked)


def _turns(
    found: Measured, home: Path, chosen: Config, wanted: Sequence[str]
) -> plan.Plan:
    """Return the turns of a capsule that is unpacked to a folder; nothing is loaded.

    Raises:
        SteelyardError: it needs a GPU, or has another mode than there is.
    """
    cases, _ = plan.require_able([capsule_work.unpack(found.capsule, home).case()])
    every = modes.parse_all(wanted or found.modes)
    return plan.plan(cases, every, chosen.blocks, chosen.seed)


def _alone(
    found: Measured, turns: plan.Plan, chosen: Config, asked: dict[str, Any]
) -> int:
    """Measure it, and hold the times against those of where it was made."""
    tags = (TAG, f"{TAG}/{found.capsule.digest}")
    request = session.Request((), blocks=chosen.blocks, tags=tags, **asked)
    how = session.settings(chosen, request)
    console = tables.console()

    def start(run: Run) -> None:
        around = compare.differences(found.run, run)
        console.print(*comparison.heading(found.run, run, around), sep="\n")

    how, device = session.on_gpu(turns, how, chosen)
    outcome = progress.measured(
        turns, how, request, chosen.store, device, on_start=start
    )
    stored.print_rows(
        outcome.run, stored.rows_of(outcome.run, outcome.trials, None), [], None
    )
    planned = {str(turn.mode) for turn in outcome.turns}
    then = [trial for trial in found.trials if trial.mode in planned]
    ratios = compare.compare(then, outcome.trials)
    console.print(*comparison.ratios(ratios), sep="\n")
    progress.ending(outcome, chosen.store)
    return outcome.exit_code


def _beside(
    path: Path, ref: str, chosen: Config, found: Measured, asked: dict[str, Any]
) -> int:
    """Measure it and today's build in turn; return what a gate would end with."""
    here = "" if ref == HERE else ref
    outcome = gating.measured(str(path), chosen, asked, sealed=found, ref=here)
    if outcome.problem is not None:
        raise outcome.problem
    console = tables.console()
    with Store.open(chosen.store, create=False) as store:
        for number, uid in enumerate(outcome.runs.values()):
            run = store.find(uid)
            if not number:
                around = compare.differences(found.run, run)
                console.print(*comparison.heading(found.run, run, around), sep="\n")
            made = stored.rows_of(run, store.trials(uid), None)
            if made:
                console.print(Text(f"\n{run.tags[0]}", style="bold"))
                stored.print_rows(run, made, [], None)
    gate_terminal.write(outcome, "table", None, annotations=False)
    return outcome.exit_code

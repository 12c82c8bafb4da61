"""Compare the checkout with a commit, both measured in turn."""

from __future__ import annotations

import functools
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steelyard.commands import _options as options
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from steelyard.declare.config import Config
    from steelyard.gate.outcome import Outcome
    from steelyard.store.capsules import Measured


@click.command()
@click.argument("baseline", required=False)
@click.argument("paths", nargs=-1)
@options.option(
    "--lane",
    "Compare code without running it, or measure both sides in turn.",
    shown=True,
    type=click.Choice(["static", "gate"]),
    default="gate",
)
@options.pattern_option
@options.overrides_option
@options.modes_option("what the benchmark asks for")
@options.seed_option
@options.option(
    "--budget",
    "Leave unresolved what is undecided after this long.",
    "none",
    type=float,
    metavar="SECONDS",
)
@options.timeout_option
@options.wait_option
@options.format_option("gate")
@options.output_option
@options.option(
    "--annotations", "Print ::error lines for GitHub's checks.", is_flag=True
)
@options.option(
    "--ci folder",
    "Refuse a fork's code, leave gate.json, summary.md and junit.xml in FOLDER, "
    "and print annotations.",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
)
@options.trust_option
@options.gpu_option
@options.store_option
def command(
    *,
    baseline: str | None,
    paths: Sequence[str],
    lane: str,
    shape: str,
    output: str | None,
    annotations: bool,
    folder: Path | None,
    trusted: bool,
    **asked: Any,
) -> int:
    """Judge the checkout by BASELINE: a commit, measured again beside it in turn.

    BASELINE may also be a capsule, which is measured as it is, or a stored run, named as
    in `show`: the weakest, for its numbers are from another time. PATHS are the suites, as in `run`.

    Ends with 0 where nothing is slower than the policy lets pass, 1 at a regression, 2
    where a case failed, 3 where one is not resolved, and 4 where nothing can be said.
    """
    from steelyard.gate import document
    from steelyard.report import ci, gate_terminal

    if baseline is not None and not baseline.strip():
        raise SteelyardError("the baseline is empty: name a commit, such as main.")
    if folder is not None:
        ci.prepare(folder)
        if lane != "static":
            ci.require_own_code()
    chosen = options.loaded(asked, paths)
    if lane != "static" and baseline is None:
        raise SteelyardError(
            "name a baseline: a commit, such as main, or a stored run."
        )
    home = document.home(chosen.store)
    with document.under_way(baseline or f"the {lane} lane's file", home):
        if lane == "static":
            outcome = _static(baseline)
        else:
            sealed = _sealed(str(baseline), trusted=trusted)
            outcome = measured(str(baseline), chosen, asked, sealed=sealed)
    try:
        if folder is not None:
            ci.leave(outcome, folder)
        gate_terminal.write(
            outcome, shape, output, annotations=annotations or folder is not None
        )
    finally:  # also where nobody reads on, or the file cannot be written
        document.keep(outcome, home)
    return outcome.exit_code


def measured(
    baseline: str,
    chosen: Config,
    asked: dict[str, Any],
    *,
    sealed: Measured | None,
    ref: str = "",
) -> Outcome:
    """Judge what lies here, or a commit, by a baseline; of a capsule by what was read."""
    from steelyard.declare import config
    from steelyard.gate import run
    from steelyard.store import session

    signal.signal(signal.SIGTERM, _interrupt)  # a job that is cancelled cleans up too
    request = session.Request(config.own_suites(chosen), **asked)
    how = session.settings(chosen, request)
    say = functools.partial(click.echo, err=True)
    return run.gate(baseline, request, chosen, how, say, sealed=sealed, ref=ref)


def _sealed(baseline: str, *, trusted: bool) -> Measured | None:
    """Return the capsule that a baseline names, if it names one whose code may run."""
    from steelyard.store import capsules

    if not baseline.endswith(capsules.SUFFIX):
        return None
    found = capsules.read(Path(baseline))
    capsules.require_trust(found, Path(baseline), by_user=trusted)
    return found


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _static(baseline: str | None) -> Outcome:
    from steelyard.gate import policy, policy_file, run, sides, static, worktrees
    from steelyard.gate.outcome import Outcome

    head = sides.Side.head()
    commit = worktrees.require_commit(baseline, head.root) if baseline else ""
    rules = policy_file.load()
    found = static.check(head.root, commit)
    outcome = Outcome(
        worktrees.name_of(baseline, commit) if baseline else static.FILE,
        run.judged(head),
        found.findings,
        found.changes,
        problem=found.problem,
        notes=found.notes,
    )
    return policy.apply(outcome, rules)

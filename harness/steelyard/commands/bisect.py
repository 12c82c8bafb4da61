"""Find the commit that made a case slower or faster."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from steelyard.commands import _fleet
from steelyard.commands import _options as options
from steelyard.errors import FINE

if TYPE_CHECKING:
    from steelyard.fleet.bisect import Outcome
    from steelyard.fleet.jobs import Job
    from steelyard.fleet.record import Entry


@click.command()
@click.argument("case_name", metavar="CASE")
@click.argument("good")
@click.argument("bad")
@click.argument("paths", nargs=-1)
@options.overrides_option
@options.modes_option("the first that the benchmark asks for")
@options.seed_option
@options.timeout_option
@options.wait_option
@options.gpu_option
@options.option(
    "--on",
    "Search on all machines of a fleet's kind at once.",
    "this machine",
    metavar="gpu=H200,...",
)
@_fleet.joining
@click.option("--pair", hidden=True)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    case_name: str,
    good: str,
    bad: str,
    paths: Sequence[str],
    on: str | None,
    pair: str | None,
    **asked: Any,
) -> int:
    """Find the commit after GOOD, up to BAD, that changed CASE.

    Both ends are measured first; every step is decided like a gate. PATHS are the
    suites, as in `run`; those of the checkout measure every commit.

    With --on each machine measures both ends, and then a commit of its own a step. The
    suites are those of HEAD; no two machines are compared.

    Ends with 0 where one commit was found, 2 where CASE fails, 3 where nothing is
    certain, and 4 where there is nothing to search.
    """
    from steelyard.declare import config
    from steelyard.fleet import bisect, commits, pairs
    from steelyard.machine import lock
    from steelyard.store import session

    joining = {name: asked.pop(name) for name in JOINING}
    if on:
        joining["store"] = asked["store"]
        given = _given(context)
        return _elsewhere(
            case_name, (good, bad), paths, on=on, options=given, joining=joining
        )
    chosen = options.loaded(asked, paths)
    request = session.Request(config.own_suites(chosen), **asked)
    how = session.settings(chosen, request)
    with (
        lock.measuring(request.wait),
        commits.Commits.opened(case_name, request, chosen, how) as compare,
    ):
        if pair:
            (found,) = compare([pairs.pair_of(good, bad, pair)])
            click.echo(pairs.answered(found))
            return FINE
        ends = _ends(compare.head.root, good, bad)
        return _said(
            bisect.bisect(compare.point.key, *ends, compare, _say), compare.head.root
        )


JOINING: Final = ("repository", "lease", "per", "address")
"""Options that say nothing of a search on this machine."""

FORWARDED: Final = ("overrides", "modes", "seed", "timeout", "gpu")
"""Options that each machine is given."""

_say = functools.partial(click.echo, err=True)


def _elsewhere(
    case: str,
    ends: tuple[str, str],
    paths: Sequence[str],
    *,
    on: str,
    options: tuple[str, ...],
    joining: Mapping[str, Any],
) -> int:
    """Search on a fleet's machines."""
    from steelyard.fleet import bisect
    from steelyard.fleet.pairs import OnMachines, equal
    from steelyard.gate.worktrees import require_commit

    root = _fleet.root()
    suites = tuple(_fleet.places(root, paths))
    tip = require_commit("HEAD", root)
    good, every = _ends(root, *ends)
    with _fleet.joined(root, **joining) as fleet:

        def drive(jobs: Sequence[Job]) -> Sequence[Entry]:
            name = fleet.record.add(jobs)
            try:
                return fleet.drive(name, tip)
            except KeyboardInterrupt:
                fleet.record.give_up(name)
                raise

        machines = equal(fleet.engine.machines(), on)
        compare = OnMachines(machines, case, suites, tip, options, drive)
        return _said(bisect.bisect(case, good, every, compare, _say), root)


def _ends(root: Path, good: str, bad: str) -> tuple[str, list[str]]:
    """Return the good end, and the commits after it up to the bad one."""
    from steelyard.fleet import commits
    from steelyard.gate.worktrees import require_commit

    first, last = (require_commit(one, root) for one in (good, bad))
    return first, commits.between(root, first, last)


def _said(found: Outcome, root: Path) -> int:
    """Print what was found and return the exit code."""
    from steelyard.report import bisected

    for line in bisected.lines(found, root):
        click.echo(line)
    return found.exit_code


def _given(context: click.Context) -> tuple[str, ...]:
    """Return the options of the command line that each machine is given."""
    words = []
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if option.name in FORWARDED and value not in {None, ()}:
            each = value if isinstance(value, tuple) else (value,)
            words += [word for one in each for word in (option.opts[0], str(one))]
    return tuple(words)

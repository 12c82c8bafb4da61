"""Find the commit that made a case slower or faster."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click

from steelyard.commands._options import (
    gpu_option,
    modes_option,
    overrides_option,
    seed_option,
    store_option,
    timeout_option,
    wait_option,
)


@click.command()
@click.argument("case_name", metavar="CASE")
@click.argument("good")
@click.argument("bad")
@click.argument("paths", nargs=-1)
@overrides_option
@modes_option("the first that the benchmark asks for")
@seed_option
@timeout_option
@wait_option
@gpu_option
@store_option
def command(
    *, case_name: str, good: str, bad: str, paths: Sequence[str], **asked: Any
) -> int:
    """Find the commit after GOOD, up to BAD, that changed CASE.

    Both ends are measured first; every step is decided like a gate. PATHS are the
    suites, as in `run`; those of the checkout measure every commit.

    Ends with 0 where one commit was found, 2 where CASE fails, 3 where nothing is
    certain, and 4 where there is nothing to search.
    """
    from steelyard.declare import config
    from steelyard.fleet import bisect, commits
    from steelyard.gate.worktrees import require_commit
    from steelyard.machine import lock
    from steelyard.report import bisected
    from steelyard.store import session

    flags = {key: asked.pop(key) for key in config.READERS.keys() & asked}
    chosen = config.load(flags | {"suites": tuple(paths) or None})
    request = session.Request(config.suites(chosen), **asked)
    how = session.settings(chosen, request)
    say = functools.partial(click.echo, err=True)
    with (
        lock.measuring(request.wait),
        commits.Commits.opened(case_name, request, chosen, how) as compare,
    ):
        root = compare.head.root
        first, last = (require_commit(one, root) for one in (good, bad))
        every = commits.between(root, first, last)
        found = bisect.bisect(compare.point.key, first, every, compare, say)
        for line in bisected.lines(found, root):
            click.echo(line)
    return found.exit_code

"""Run suites on many machines, at many commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from steelyard.commands import _fleet
from steelyard.commands import _options as options
from steelyard.errors import SteelyardError


@click.group()
def command() -> None:
    """Run suites on many machines, at many commits."""


@command.command()
@_fleet.address_option
@options.option(
    "--bind",
    "This machine's address for the others; keep it in a private network.",
    shown=True,
    default="127.0.0.1",
    metavar="IP[:PORT]",
)
@options.option(
    "--local",
    "Start N nodes here that pass for machines, to try it.",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
)
@options.option(
    "--ray more",
    "More options of `ray start`, of a machine that others reach.",
    default="",
    metavar="WORDS",
)
def up(*, address: str | None, bind: str, local: int, more: str) -> None:
    """Make this machine one of a fleet: of the cluster at --address, or of a new one.

    A new cluster's head runs here too. Other machines join with the command that is
    printed, once they have its token.
    """
    from steelyard.fleet import cluster

    state = cluster.up(address, bind, local, _fleet.words(more, "--ray"))
    click.echo(f"up at {state['address']}: {max(local, 1)} machines here")
    if address is None and not cluster.is_local(bind):
        click.echo(
            f"others join with: steelyard fleet up --address {state['address']} --bind "
            f"THEIR_IP, with a copy of {cluster.token_file()}"
        )


@command.command()
def down() -> None:
    """End the nodes that `fleet up` started on this machine."""
    from steelyard.fleet import cluster

    click.echo("ended" if cluster.down() else "nothing of a cluster ran here")


@command.command()
@_fleet.address_option
@options.store_option
def status(*, address: str | None, store: str | None) -> None:
    """List the machines with their facts and jobs, and the campaigns under way."""
    from steelyard.fleet import campaign, cluster, jobs
    from steelyard.fleet.engine import NODE, machines
    from steelyard.fleet.record import Record

    cluster.connected(address)
    record = Record(_fleet.url(store))
    entries = record.entries()
    record.close()
    for name, facts in machines().items():
        facts.pop(NODE)
        said = "  ".join(f"{k}={v}" for k, v in jobs.said(facts).items())
        doing = [
            f"{one.job.what} of {one.job.commit[:10]} on {one.machine}"
            for one in entries
            if one.state == "running" and str(one.machine).partition("/")[0] == name
        ]
        click.echo(f"{said}  {', '.join(doing) or 'free'}")
    for name in dict.fromkeys(one.campaign for one in entries):
        mine = [one for one in entries if one.campaign == name]
        click.echo("\n".join(campaign.lines(name, mine)))


@command.command()
@click.argument("suites", nargs=-1)
@options.option("--commits", "Or one.", shown=True, default="HEAD", metavar="A..B")
@options.option(
    "--repeat",
    "Run each so many times.",
    shown=True,
    type=click.IntRange(min=1),
    default=1,
)
@options.option("--resume", "Go on with one that was stopped.", metavar="CAMPAIGN")
@_fleet.driving
def run(
    *,
    suites: Sequence[str],
    commits: str,
    repeat: int,
    resume: str | None,
    on: Sequence[str],
    options: str,
    **asked: Any,
) -> int:
    """Run SUITES at every commit on every kind of machine; trials go to the store.

    The suites are those of the last commit. Ctrl-C leaves a campaign that --resume goes
    on with.
    """
    from steelyard.fleet import jobs

    root = _fleet.root()
    planned = jobs.planned(
        *(_commits(root, commits), _fleet.places(root, suites), on, repeat),
        options=_fleet.words(options),
    )
    return _drive(planned, resume, root, **asked)


@command.command()
@click.argument("baseline")
@click.argument("suites", nargs=-1)
@_fleet.driving
def gate(
    *,
    baseline: str,
    suites: Sequence[str],
    on: Sequence[str],
    options: str,
    **asked: Any,
) -> int:
    """Judge HEAD by BASELINE on every kind of machine at once.

    The verdicts are printed one after the other; the exit code is the gravest.
    """
    from steelyard.fleet import jobs
    from steelyard.gate.worktrees import require_commit

    root = _fleet.root()
    base, head = (require_commit(name, root) for name in (baseline, "HEAD"))
    words = (base, *_fleet.words(options))
    places = _fleet.places(root, suites)
    planned = jobs.planned([head], places, on, 1, options=words, what=jobs.GATE)
    return _drive(planned, None, root, **asked)


def _drive(planned: Iterable[Any], resume: str | None, root: Path, **asked: Any) -> int:
    """Drive a campaign to its end, and print what became of it."""
    from steelyard.fleet import campaign

    with _fleet.joined(root, **asked) as fleet:
        name = resume or fleet.record.add(planned)
        known = fleet.record.entries(name)
        if not known:
            raise SteelyardError(
                f"--resume {name}: the store has no such campaign. `steelyard fleet "
                "status` lists those that are not done."
            )
        fleet.say(f"campaign {name}")
        try:  # jobs are in the order of their commits
            entries = fleet.drive(name, known[-1].job.commit)
        except KeyboardInterrupt:
            fleet.say(f"go on with: steelyard fleet run --resume {name}")
            raise
    click.echo("\n".join(campaign.lines(name, entries)))
    return campaign.exit_code(entries)


def _commits(root: Path, words: str) -> list[str]:
    """Return the commits of A..B, the oldest first, A itself among them; or of one."""
    from steelyard.fleet.commits import between
    from steelyard.gate.worktrees import require_commit

    first, dots, last = words.partition("..")
    if not dots:
        return [require_commit(first, root)]
    good, bad = (require_commit(name or "HEAD", root) for name in (first, last))
    return [good, *between(root, good, bad)]

"""Run suites on many machines, at many commits."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from steelyard.commands._options import Decorator, store_option
from steelyard.errors import SteelyardError
from steelyard.fleet.shares import GPU, MACHINE


@click.group()
def command() -> None:
    """Run suites on many machines, at many commits."""


address_option = click.option(
    "--address",
    metavar="HOST:PORT",
    help="The cluster's head.",
    show_default="the one that was started here",
)


@command.command()
@address_option
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="IP",
    help="This machine's address for the others; keep it in a private network.",
)
@click.option(
    "--local",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start N nodes here that pass for machines, to try it.",
)
def up(*, address: str | None, bind: str, local: int) -> None:
    """Make this machine one of a fleet: of the cluster at --address, or of a new one.

    A new cluster's head runs here too. Other machines join with the command that is
    printed, once they have its token.
    """
    from steelyard.fleet import cluster

    state = cluster.up(address, bind, local)
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
@address_option
@store_option
def status(*, address: str | None, store: str | None) -> None:
    """List the machines with their facts and jobs, and the campaigns under way."""
    from steelyard.fleet import campaign, cluster, shares
    from steelyard.fleet.engine import NODE, machines
    from steelyard.fleet.record import Record

    cluster.connected(address)
    record = Record(_url(store))
    entries = record.entries()
    record.close()
    for name, facts in machines().items():
        facts.pop(NODE)
        said = "  ".join(f"{k}={v}" for k, v in shares.said(facts).items())
        doing = [
            f"{one.job.what} of {one.job.commit[:10]} on {one.machine}"
            for one in entries
            if one.state == "running" and str(one.machine).partition("/")[0] == name
        ]
        click.echo(f"{said}  {', '.join(doing) or 'free'}")
    for name in dict.fromkeys(one.campaign for one in entries):
        mine = [one for one in entries if one.campaign == name]
        click.echo("\n".join(campaign.lines(name, mine)))


def _driving(command: Any) -> Any:
    """Give a command the options by which jobs are driven."""
    options: Sequence[Decorator] = (
        click.option(
            "--on",
            multiple=True,
            default=["any"],
            show_default=True,
            metavar="gpu=H200,...",
            help="Kinds of machines, each of which does everything.",
        ),
        click.option(
            "--options",
            default="",
            metavar="WORDS",
            help="Options of the command on each machine, such as '--blocks 8'.",
        ),
        click.option(
            "--repository",
            metavar="PATH|URL",
            help="Where machines fetch commits.",
            show_default="this checkout",
        ),
        click.option(
            "--lease",
            type=click.FloatRange(min=2),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="Give a machine up that was silent for so long.",
        ),
        click.option(
            "--per",
            type=click.Choice([MACHINE, GPU]),
            default=MACHINE,
            show_default=True,
            help="What a job has alone; of a GPU also its share of the cores.",
        ),
        address_option,
        store_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@command.command()
@click.argument("suites", nargs=-1)
@click.option(
    "--commits", default="HEAD", show_default=True, metavar="A..B", help="Or one."
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Run each so many times.",
)
@click.option("--resume", metavar="CAMPAIGN", help="Go on with one that was stopped.")
@_driving
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

    root = _root()
    planned = jobs.planned(
        *(_commits(root, commits), _places(root, suites), on, repeat),
        options=_words(options),
    )
    return _drive(planned, resume, root, **asked)


@command.command()
@click.argument("baseline")
@click.argument("suites", nargs=-1)
@_driving
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

    root = _root()
    base, head = (require_commit(name, root) for name in (baseline, "HEAD"))
    words = (base, *_words(options))
    places = _places(root, suites)
    planned = jobs.planned([head], places, on, 1, options=words, what=jobs.GATE)
    return _drive(planned, None, root, **asked)


def _drive(
    planned: Iterable[Any],
    resume: str | None,
    root: Path,
    *,
    repository: str | None,
    lease: float,
    per: str,
    address: str | None,
    store: str | None,
) -> int:
    """Drive a campaign to its end, and print what became of it."""
    from steelyard.declare import config
    from steelyard.fleet import campaign, cluster
    from steelyard.fleet.agent import Order
    from steelyard.fleet.engine import Ray
    from steelyard.fleet.record import Record

    url, build = _url(store), config.load({}).build
    cluster.connected(address)
    record = Record(url, lease)
    name = resume or record.add(planned)
    known = record.entries(name)
    if not known:
        raise SteelyardError(
            f"--resume {name}: the store has no such campaign. `steelyard fleet status` "
            "lists those that are not done."
        )
    tip = known[-1].job.commit  # jobs are in the order of their commits
    order = Order(name, url, repository or str(root), tip, lease, build)
    say = functools.partial(click.echo, err=True)
    say(f"campaign {name}")
    try:
        entries = campaign.Campaign(name, record, Ray(order, per), say).run(lease)
    except KeyboardInterrupt:
        say(f"go on with: steelyard fleet run --resume {name}")
        raise
    finally:
        record.close()
    click.echo("\n".join(campaign.lines(name, entries)))
    return campaign.exit_code(entries)


def _url(store: str | None) -> str:
    """Return the store's URL or its absolute path: other processes have other folders."""
    from steelyard.declare import config
    from steelyard.store.store import Store

    url = config.load({"store": store}).store
    url = url if "://" in url else str(Path(url).absolute())
    with Store.open(url):  # its tables are there before anybody needs them
        return url


def _root() -> Path:
    from steelyard.machine import git

    found = git.output(Path.cwd(), "rev-parse", "--show-toplevel")
    if found is None:
        raise SteelyardError("a fleet measures commits: run it in a git checkout.")
    return Path(found)


def _commits(root: Path, words: str) -> list[str]:
    """Return the commits of A..B, the oldest first, A itself among them; or of one."""
    from steelyard.fleet.commits import between
    from steelyard.gate.worktrees import require_commit

    first, dots, last = words.partition("..")
    if not dots:
        return [require_commit(first, root)]
    good, bad = (require_commit(name or "HEAD", root) for name in (first, last))
    return [good, *between(root, good, bad)]


def _places(root: Path, suites: Sequence[str]) -> list[str]:
    """Return the suites as folders and files of every checkout."""
    from steelyard.declare import config

    chosen = config.suites(config.load({"suites": tuple(suites) or None}))
    try:
        return [Path(one).resolve().relative_to(root).as_posix() for one in chosen]
    except ValueError as error:
        raise SteelyardError(
            f"{error}: the suites of a fleet are committed; name some of this checkout."
        ) from error


def _words(options: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise SteelyardError(f"--options cannot be read: {error}.") from error

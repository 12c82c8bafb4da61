"""What commands that use a fleet share: their options, and what these say."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from steelyard.commands import _options as options
from steelyard.errors import SteelyardError
from steelyard.fleet.jobs import GPU, MACHINE

if TYPE_CHECKING:
    from steelyard.fleet.cluster import Fleet

address_option = options.option(
    "--address",
    "The cluster's head.",
    "the one that was started here",
    metavar="HOST:PORT",
)


_ON = options.option(
    "--on",
    "Kinds of machines, each of which does everything.",
    shown=True,
    multiple=True,
    default=["any"],
    metavar="gpu=H200,...",
)
_OPTIONS = options.option(
    "--options",
    "Options of the command on each machine, such as '--blocks 8'.",
    default="",
    metavar="WORDS",
)
joining = options.together(
    options.option(
        "--repository",
        "Where machines fetch commits.",
        "this checkout",
        metavar="PATH|URL",
    ),
    options.option(
        "--lease",
        "Give a machine up that was silent for so long.",
        shown=True,
        type=click.FloatRange(min=2),
        default=60.0,
        metavar="SECONDS",
    ),
    options.option(
        "--per",
        "What a job has alone; of a GPU also its share of the cores.",
        shown=True,
        type=click.Choice([MACHINE, GPU]),
        default=MACHINE,
    ),
    address_option,
    options.store_option,
)
"""The options of `joined`."""

driving = options.together(_ON, _OPTIONS, joining)
"""Those, and what its jobs are."""


def joined(
    root: Path, *, store: str | None, repository: str | None, **asked: Any
) -> AbstractContextManager[Fleet]:
    """Give a cluster and a store, connected as the options say.

    Raises:
        SteelyardError: one of them does not answer.
    """
    from steelyard.declare import config
    from steelyard.fleet import cluster

    say = functools.partial(click.echo, err=True)
    build = config.load({}).build
    return cluster.joined(url(store), repository or str(root), build, say=say, **asked)


def url(store: str | None) -> str:
    """Return the store's URL or its absolute path: other processes have other folders.

    Raises:
        StoreError: it cannot be opened.
    """
    from steelyard.store.store import Store

    url = options.url(store)
    url = url if "://" in url else str(Path(url).absolute())
    with Store.open(url):  # its tables are there before anybody needs them
        return url


def root() -> Path:
    """Return the checkout's folder.

    Raises:
        SteelyardError: this is none.
    """
    from steelyard.machine import git

    found = git.output(Path.cwd(), "rev-parse", "--show-toplevel")
    if found is None:
        raise SteelyardError("a fleet measures commits: run it in a git checkout.")
    return Path(found)


def places(root: Path, suites: Sequence[str]) -> list[str]:
    """Return the suites as folders and files of every checkout.

    Raises:
        SteelyardError: one lies outside of it.
    """
    from steelyard.declare import config

    chosen = config.suites(config.load({"suites": tuple(suites) or None}))
    try:
        return [Path(one).resolve().relative_to(root).as_posix() for one in chosen]
    except ValueError as error:
        raise SteelyardError(
            f"{error}: the suites of a fleet are committed; name some of this checkout."
        ) from error


def words(options: str, name: str = "--options") -> tuple[str, ...]:
    """Return the words of an option.

    Raises:
        SteelyardError: a quote is open.
    """
    try:
        return tuple(shlex.split(options))
    except ValueError as error:
        raise SteelyardError(f"{name} cannot be read: {error}.") from error

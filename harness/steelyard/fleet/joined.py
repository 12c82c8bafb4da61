"""A cluster and a store that campaigns are driven on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from steelyard.fleet import cluster
from steelyard.fleet.agent import Order
from steelyard.fleet.campaign import Campaign
from steelyard.fleet.engine import Ray
from steelyard.fleet.record import Entry, Record


@dataclass(slots=True)
class Fleet:
    """A cluster that campaigns are driven on."""

    record: Record
    engine: Ray
    lease: float
    say: Callable[[str], None]

    def drive(self, name: str, tip: str) -> list[Entry]:
        """Drive a campaign, whose suites are those of a commit, to its end."""
        self.engine.order = replace(self.engine.order, campaign=name, tip=tip)
        return Campaign(name, self.record, self.engine, self.say).run(self.lease)


@contextmanager
def joined(
    store: str,
    repository: str,
    build: str,
    *,
    say: Callable[[str], None],
    lease: float,
    per: str,
    address: str | None,
) -> Iterator[Fleet]:
    """Connect to a cluster and a store; what machines build is the project's command.

    Raises:
        SteelyardError: one of them does not answer.
    """
    cluster.connected(address)
    order = Order("", store, repository, "", lease, build)
    record = Record(store, lease)
    try:
        yield Fleet(record, Ray(order, per), lease, say)
    finally:
        record.close()

"""Whether leases of a machine overlap where two fleets do many jobs on few machines.

python tests/fleet_leases.py [--jobs 1000]

Eight holders claim jobs of two campaigns at random, on machines and on parts of one, in a
PostgreSQL server that is started for it. Some die without a word, so that their lease
runs out, some fail. Prints what came of it as JSON and exits with 1 if two holders had a
machine, or a job, at one time, or if a job was not done.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import click
import postgresql

from steelyard.fleet import jobs
from steelyard.fleet.record import Claim, Record, State

MACHINES: Final = ("box", "box/gpu0", "box/gpu1", "lathe", "mill")
HOLDERS: Final = 8

LEASE: Final = 3.0
"""Seconds, far more than anyone holds a machine here."""

HELD: Final = 0.01
"""Seconds that a machine is held at most."""

DEATHS: Final = 0.01
"""The share of holders that die with their lease."""


@dataclass(slots=True)
class Campaigns:
    """The jobs of two fleets, and who had which machine when."""

    url: str
    left: set[tuple[str, int]]
    spans: list[tuple[float, float, str, str]] = field(default_factory=list)
    """Begin, end, machine and job of each holding, in seconds of one clock."""
    died: int = 0

    def hold(self, seed: int) -> None:
        """Claim jobs that are left, until none is."""
        draw, book = random.Random(seed), Record(self.url, lease=LEASE)
        while left := sorted(self.left):
            name, job = draw.choice(left)
            claim = Claim(name, job, draw.choice(MACHINES), f"{seed}")
            if not book.claim(claim):
                continue
            began = time.monotonic()
            time.sleep(draw.uniform(0, HELD))
            whose = f"{name} {job}"
            self.spans.append((began, time.monotonic(), claim.machine, whose))
            if draw.random() < DEATHS:
                self.died += 1
            elif book.end(claim, 0, "", fine=True):
                self.left.discard((name, job))
        book.close()

    def overlapping(self) -> list[str]:
        """Return which holdings of a machine, or of a job, were at one time."""
        return [
            f"{one[2:]} and {other[2:]}"
            for one, other in combinations(sorted(self.spans), 2)
            if other[0] < one[1] and (meet(one[2], other[2]) or one[3] == other[3])
        ]


def meet(one: str, other: str) -> bool:
    """Whether two are one machine, or one is a part of the other."""
    return one == other or f"{one}/" in other or f"{other}/" in one


def done(url: str, count: int) -> dict[str, Any]:
    """Do so many jobs of two campaigns; return what came of it."""
    book = Record(url)
    planned = [jobs.planned(["a"] * (count // 2), ["s"], ["any"], 1) for _ in "ab"]
    names = [book.add(one) for one in planned]
    left = {(name, e.job.id) for name in names for e in book.entries(name)}
    campaigns = Campaigns(url, set(left))
    holders = [
        threading.Thread(target=campaigns.hold, args=[seed]) for seed in range(HOLDERS)
    ]
    for one in holders:
        one.start()
    for one in holders:
        one.join()
    states = [e.state for name in names for e in book.entries(name)]
    book.close()
    return {
        "jobs": len(left),
        "done": states.count(State.DONE),
        "holdings": len(campaigns.spans),
        "died with a lease": campaigns.died,
        "machines": len(MACHINES),
        "overlapping": campaigns.overlapping(),
    }


def main() -> None:
    """Start a server, do the jobs and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    count = parser.parse_args().jobs
    servers = postgresql.serve()
    try:
        found = done(next(servers).url(), count)
    finally:
        servers.close()
    click.echo(json.dumps(found, indent=1))
    sys.exit(bool(found["overlapping"]) or found["done"] < found["jobs"])


if __name__ == "__main__":
    main()

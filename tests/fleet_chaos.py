"""A fleet whose agents, nodes, driver and database are killed, and what it may not lose.

python tests/fleet_chaos.py [--kills 100] [--seed 0]

Two nodes of Ray on this machine and a server of PostgreSQL work through a campaign while
something is killed about four times in the time of a job. Every job must end; no trial
that was stored may be missing later; no job may run twice at once, nor two on one
machine: the suite writes down when it runs. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import click
import postgresql
import psutil
import shell

from steelyard.fleet import cluster, local
from steelyard.fleet.record import Record, State
from steelyard.store.store import Store

LEASE: Final = 6.0
SUITE: Final = """
import os
import threading
import time
from pathlib import Path

from steelyard import benchmark

JOB = os.environ.get("STEELYARD_JOB", "")


def beat(folder=Path({folder!r})):
    with open(folder / f"{{os.getpid()}}-{{time.monotonic_ns()}}", "a") as file:
        while True:
            print(time.monotonic(), JOB, file=file, flush=True)
            time.sleep(0.05)


if JOB:
    threading.Thread(target=beat, daemon=True).start()


def add(x, out):
    out[:] = x
    time.sleep(0.001)


@benchmark(n=[1, 2, 3])
def slow(b, n):
    b.mode("kernel/warm")
    x = b.input(n)
    y = b.output(n)
    return b.launch(add, x, out=y)
"""


class World:
    """Everything that can be killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)  # no secret
        self.root, self.beats = folder / "repository", folder / "beats"
        self.beats.mkdir()
        os.environ["STEELYARD_CACHE"] = str(folder / "cache")
        os.environ["STEELYARD_LOCK"] = str(folder / "lock")
        suite = SUITE.format(folder=str(self.beats))
        shell.commit(shell.files(self.root, {"suites/bench_slow.py": suite}))
        self.servers = postgresql.serve()
        self.server = next(self.servers)
        os.environ["STEELYARD_STORE"] = self.url = self.server.url()
        with Store.open(self.url):
            pass
        os.environ |= cluster.authenticated()
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self.ray = local.cluster([])
        for number in range(2):
            self.join(number)
        self.log = (folder / "driver.log").open("a+")
        self.driver: subprocess.Popen[bytes] | None = None
        self.campaign = ""
        self.most = 0

    def join(self, number: int) -> None:
        """Start a node that passes for a machine."""
        labels = {"steelyard/name": f"local-{number}"}
        own = {"resources": local.resources(labels), "labels": labels}
        for _ in range(5):  # Ray gives each 30 s, which a busy machine may not
            with suppress(Exception):  # it raises no other
                self.ray.add_node(**local.NODE, **own)
                return
        raise SystemExit("Ray starts no node")

    def drive(self, *words: str) -> None:
        """Start the driver, which goes on where the last one ended."""
        line = [sys.executable, "-m", "steelyard.cli", "fleet", "run", *words]
        line += ["--address", self.ray.address, "--lease", str(LEASE)]
        out = {"stdout": self.log, "stderr": subprocess.STDOUT}
        self.driver = subprocess.Popen(line, cwd=self.root, env=os.environ, **out)

    def kill_agent(self) -> None:
        """Kill a process of Ray's that watches a child."""
        named = [p for p in psutil.process_iter(["name"]) if self._is_agent(p)]
        if named:
            self.draw.choice(named).kill()

    def _is_agent(self, process: psutil.Process) -> bool:
        own = str(self.ray.head_node.gcs_address).rpartition(":")[2]
        try:
            told = " ".join(process.cmdline())
            parents = " ".join(" ".join(p.cmdline()) for p in process.parents())
        except psutil.Error:
            return False
        return "ray::Agent" in told and own in parents

    def kill_node(self) -> None:
        """Kill a raylet, and start another in its place."""
        node = self.draw.choice(sorted(self.ray.worker_nodes, key=id))
        number = int(node._ray_params.labels["steelyard/name"][-1])
        self.ray.remove_node(node, allow_graceful=False)
        self.join(number)

    def kill_driver(self) -> None:
        """Kill the driver, and resume the campaign with another."""
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()
        self.drive("--resume", self.campaign)

    def kill_database(self) -> None:
        """End the server at once; it comes back after a while."""
        self.server.stop()
        time.sleep(self.draw.uniform(0.1, 3))
        self.server.start()

    def keep_driving(self) -> None:
        """Resume where the driver gave up: one that starts without a database does."""
        assert self.driver is not None
        if self.driver.poll():
            self.drive("--resume", self.campaign)

    def finish(self, seconds: float) -> int | None:
        """Wait for the end of the campaign; return what its driver ended with."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.keep_driving()
            if self.driver is not None and self.driver.poll() == 0:
                return 0
            time.sleep(0.5)
        return self.driver and self.driver.poll()

    def begun(self) -> str:
        """Return the name of the campaign once it is kept."""
        for _ in range(600):
            time.sleep(0.2)
            found = Record(self.url).entries()
            if found:
                return found[0].campaign
        raise SystemExit("the campaign did not begin")

    def first(self) -> float:
        """Return the seconds that the first jobs take, of which nothing is killed."""
        began = time.monotonic()
        while not any(
            one.state == State.DONE for one in Record(self.url).entries(self.campaign)
        ):
            time.sleep(0.2)
        return time.monotonic() - began

    def check_trials(self) -> None:
        """Refuse a store with fewer trials than it ever had; each is as it was written."""
        with Store.open(self.url) as store:
            uids = list(store.counts())
            there = sum(len(store.trials(uid)) for uid in uids)
        if there < self.most:
            raise SystemExit(f"{self.most - there} trials were lost")
        self.most = there

    def end(self) -> None:
        """End whatever is left."""
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
        self.ray.shutdown()
        self.servers.close()


def attempts(folder: Path) -> dict[str, list[float]]:
    """Return the moments at which each attempt at a job was seen to run."""
    spans: dict[str, list[float]] = {}
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            moment, _, job = line.partition(" ")
            if job.count(" ") == 2:  # the last line may be cut
                spans.setdefault(job, []).append(float(moment))
    return spans


def overlaps(spans: Mapping[str, list[float]]) -> list[str]:
    """Return which attempts ran at once that were of one job or on one machine."""
    shared = defaultdict(list)
    for job, moments in spans.items():
        name, _, machine = job.split(" ")
        for what in (name, machine):
            shared[what].append((min(moments), max(moments), job))
    return [
        f"{what}: {one[2]} and {two[2]}"
        for what, every in shared.items()
        for one, two in combinations(sorted(every), 2)
        if two[0] < one[1]
    ]


def survived(world: World, kills: int, count: int) -> dict[str, Any]:
    """Kill so often while so many jobs are done; return what came of it."""
    options = ["--options", "--blocks 2"]
    world.drive("suites", "--repeat", str(count), *options)
    world.campaign = world.begun()
    most = world.first() / 2
    ways = [world.kill_agent, world.kill_node, world.kill_driver, world.kill_database]
    made: dict[str, int] = defaultdict(int)
    for number in range(kills):
        time.sleep(world.draw.uniform(0, most))
        world.keep_driving()
        way = ways[number % 4]
        way()
        made[way.__name__] += 1
        world.check_trials()
        states = [one.state for one in Record(world.url).entries(world.campaign)]
        click.echo(f"{number + 1} {way.__name__}: {states.count(State.DONE)} done")
    code = world.finish(60 + 30 * count)
    world.check_trials()
    entries = Record(world.url).entries(world.campaign)
    spans = attempts(world.beats)
    return {
        "kills": dict(made),
        "jobs": len(entries),
        "done": sum(one.state == State.DONE for one in entries),
        "trials stored": world.most,
        "attempts": len(spans),
        "overlapping": overlaps(spans),
        "driver": code,
    }


def main() -> None:
    """Kill, look, and say what came of it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        world = World(options.folder or Path(made), options.seed)
        try:
            found = survived(world, options.kills, 4 + options.kills // 2)
        finally:
            world.end()
        if found["done"] != found["jobs"] or found["driver"]:
            world.log.seek(0)
            click.echo(world.log.read())
    click.echo(json.dumps(found, indent=1))
    fine = found["done"] == found["jobs"] <= found["attempts"]
    fine = fine and not found["overlapping"]
    sys.exit(not (fine and found["driver"] == 0))


if __name__ == "__main__":
    main()

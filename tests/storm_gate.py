"""`run` and `gate` killed at random moments, and what is left of them.

python tests/storm_gate.py --kills 200 --seed 1 [--only run|gate]

In a repository of its own one command after the other is started and killed with
SIGKILL, at a moment drawn from the whole of its time. Before each kill the store is
read: what is in it then must be in it afterwards. Every few kills a command must go
through to its end. Prints counts as JSON and exits with 1 if a trial was lost or
cannot be read, a process outlived its command, a command that was let be failed, or a
worktree is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import shell

from steelyard.errors import StoreError
from steelyard.store.store import Store

SUITE = '''
import numpy as np

from steelyard import benchmark


@benchmark(size=[64, 4096])
def negate(b, size):
    """Negate some numbers."""
    b.mode("kernel/warm")
    x = b.input(size)
    y = b.output(size)
    b.check(np.negative, x)
    return b.launch(np.negative, x, out=y)
'''

COMMANDS = {
    "run": ["run", "--blocks", "3", "--tag", "storm"],
    "gate": ["gate", "HEAD", "--budget", "1"],
}
FINE = {"run": {0}, "gate": {0, 1, 3}}
"""How a command may end that is let be: a gate of a busy machine may be wrong about
code, but not about whether it can be measured."""

EVERY = 20
"""Kills after which a command is let be."""

AFTER = 60.0
"""Seconds in which what a killed command started has ended, on however busy a machine."""


class Shop:
    """A repository with a suite, and where its commands run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "shop"
        self.temporary = folder / "tmp"
        self.store = self.root / ".steelyard" / "steelyard.db"
        self.temporary.mkdir()
        texts = {
            "suites/small.py": SUITE,
            ".gitignore": ".steelyard\n__pycache__\n",
            "pyproject.toml": "[tool.steelyard]\n",
        }
        shell.commit(shell.files(self.root, texts))
        self.variables = os.environ | {
            "STEELYARD_LOCK": str(folder / "lock"),
            "TMPDIR": str(self.temporary),
        }

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command and leave it to itself."""
        return subprocess.Popen(
            [sys.executable, "-m", "steelyard.cli", *COMMANDS[command]],
            cwd=self.root,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def owns(self, process: psutil.Process) -> bool:
        """Say whether a process has the variables of the shop's commands."""
        try:
            return process.environ().get("TMPDIR") == str(self.temporary)
        except psutil.Error:  # it ended, or is somebody else's
            return False

    def stored(self) -> set[tuple[str, int, str, str, int]]:
        """Return the names of all trials that are in the store; reads each of them.

        Raises:
            StoreError: one cannot be read.
        """
        if not self.store.exists():
            return set()
        try:
            store = Store.open(str(self.store), create=False)
        except StoreError as error:
            if "is empty" in str(error):  # killed before it had tables
                return set()
            raise
        with store:
            return {
                (run.uid, t.position, t.case, t.mode, t.block)
                for run in store.runs()
                for t in store.trials(run.uid)
            }

    def worktrees(self) -> int:
        """Return how many worktrees git knows beside the checkout."""
        return (
            shell.git(self.root, "worktree", "list", "--porcelain").count("worktree ")
            - 1
        )


def left(shop: Shop) -> list[psutil.Process]:
    """Return the processes of a shop's commands that go on, waiting for their end."""
    until = time.monotonic() + AFTER
    while (found := list(filter(shop.owns, psutil.process_iter()))) and (
        time.monotonic() < until
    ):
        time.sleep(0.05)
    return found


def kill(shop: Shop, command: str, after: float) -> dict[str, int]:
    """Kill a command some seconds after its start; count what is wrong then."""
    process = shop.start(command)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after)
    before = shop.stored()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    alive = left(shop)
    for one in alive:
        one.kill()
    return {
        "started": 1,
        "kills": int(process.returncode == -signal.SIGKILL),
        "lost": len(before - shop.stored()),
        "outlived": len(alive),
    }


def let_be(shop: Shop, command: str) -> dict[str, int]:
    """Let a command come to its end, which must be a good one."""
    before = len(shop.stored())
    process = shop.start(command)
    _, said = process.communicate()
    good = process.returncode in FINE[command] and len(shop.stored()) > before
    if not good:
        sys.stderr.write(f"{command} ended with {process.returncode}: {said.decode()}")
    return {"let_be": 1, "failed": int(not good)}


def storm(
    folder: Path, kills: int, seed: int, length: dict[str, float]
) -> dict[str, int]:
    """Return counts of all that happened, and of what was found wrong.

    ``length`` is in which seconds each command is killed; 0: in what it takes.
    """
    rng, shop = random.Random(seed), Shop(folder)
    names = ("started", "kills", "let_be", "lost", "outlived", "failed")
    totals = dict.fromkeys(names, 0)

    def count(found: dict[str, int]) -> None:
        for name, number in found.items():
            totals[name] += number

    commands = list(length)
    for command in commands:
        began = time.monotonic()
        if not length[command]:
            count(let_be(shop, command))
            length[command] = time.monotonic() - began
    while totals["kills"] < kills:
        number = totals["kills"]
        command = commands[number % len(commands)]
        began = time.monotonic()
        count(kill(shop, command, rng.uniform(0, length[command])))
        if totals["kills"] == number:  # it was done before: the machine is quieter now
            length[command] = min(length[command], time.monotonic() - began)
        elif number % EVERY == EVERY - 1:
            count(let_be(shop, rng.choice(commands)))
    for command in commands:
        count(let_be(shop, command))
    return totals | aftermath(shop)


def aftermath(shop: Shop) -> dict[str, int]:
    """Return what is left once the last command went through."""
    return {
        "trials": len(shop.stored()),
        "worktrees": shop.worktrees(),
        "folders": len(list(shop.temporary.iterdir())),
    }


WRONG = ("lost", "outlived", "failed", "worktrees", "folders")


def main() -> None:
    """Run a storm in a folder of its own and print its counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(COMMANDS))
    options = parser.parse_args()
    length = dict.fromkeys([options.only] if options.only else COMMANDS, 0.0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        totals = storm(Path(folder), options.kills, options.seed, length)
    sys.stdout.write(json.dumps(totals) + "\n")
    sys.exit(any(totals[name] for name in WRONG))


if __name__ == "__main__":
    main()

"""Which tests run when slow ones take turns: all that are quick, a seventh of the others.

`tests/slow.txt` names the functions whose cases take more than `LONG` together. Their cases
are dealt to `TURNS` turns, each function's one after another, and the commit says whose turn
it is: each case runs in one of seven commits, and a commit's tests are the same everywhere.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from zlib import crc32

SLOW = Path(__file__).parent / "slow.txt"
TURNS = 7  # with which `make test` ends within 180 s of two cores
LONG = 0.5  # seconds: what is quicker is seven of eight functions, and an eighth of the time


def function(nodeid):
    """Return the name of a test without its parameters."""
    return nodeid.split("[")[0]


def turn():
    """Return whose turn it is: STEELYARD_TURN, or what the commit's name comes to."""
    if asked := os.environ.get("STEELYARD_TURN"):
        return int(asked) % TURNS
    command = ["git", "-C", str(SLOW.parent), "rev-parse", "HEAD"]
    try:
        return (
            int(subprocess.check_output(command, stderr=subprocess.DEVNULL), 16) % TURNS
        )
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0  # sources without a repository


def deal(nodeids, now):
    """Return whether each test runs in turn `now`; the first cases are spread by name."""
    slow, seen = set(SLOW.read_text().split()), Counter()
    runs = []
    for name in map(function, nodeids):
        runs.append(
            name not in slow or (crc32(name.encode()) + seen[name]) % TURNS == now
        )
        seen[name] += 1
    return runs


def write(seconds):
    """Name the functions that took long, of `seconds` of each."""
    slow = sorted(name for name, took in seconds.items() if took > LONG)
    SLOW.write_text("".join(f"{name}\n" for name in slow))

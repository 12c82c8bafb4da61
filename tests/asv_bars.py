"""`asv continuous` and the whole of a history, on a repository made for it.

    python tests/asv_bars.py [--times 20] [--rounds 8] [--factor 1.05] [--only NAME]

`same` compares two commits of equal code so many times: the bar is exit code 0 each
time. `planted` compares a commit with one whose work is 10 % longer: exit code 1, and the
right case. `history` measures ten commits, of which the seventh has it, with `asv run` and
with `steelyard run`: `asv publish` and `steelyard history` must name the commit. Writes
JSON. Takes half a minute a comparison; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asv_commits
import shell
from asv_commits import PLANTED

CHANGE = 0.10
SLOWER = "asv_suite.work.track_seconds('planted', 'kernel/warm')"
OURS = "work[which=planted] kernel/warm"


def compared(
    folder: Path, base: str, head: str, factor: float
) -> tuple[int, list[str]]:
    """Return the exit code of `asv continuous`, and the rows it found slower."""
    done = asv_commits.asv(folder, "continuous", f"--factor={factor}", base, head)
    lines = [line for line in done.stdout.splitlines() if line.startswith("| +")]
    return done.returncode, lines


def same(folder: Path, commits: Sequence[str], times: int, factor: float) -> Any:
    """Compare two commits of equal code."""
    found = [compared(folder, commits[0], commits[1], factor) for _ in range(times)]
    return {
        "exit codes": [code for code, _ in found],
        "slower": [line for _, lines in found for line in lines],
        "bar met": all(code == 0 for code, _ in found),
    }


def planted(folder: Path, commits: Sequence[str], factor: float) -> Any:
    """Compare the commit before the extra work with the one that has it."""
    code, lines = compared(folder, commits[PLANTED - 1], commits[PLANTED], factor)
    right = len(lines) == 1 and SLOWER in lines[0]
    return {"exit code": code, "slower": lines, "bar met": code == 1 and right}


def history(folder: Path, commits: Sequence[str]) -> Any:
    """Measure every commit with both; return what both say of it."""
    once = ("--no-interleave-rounds", "--attribute=rounds=1")
    ran = asv_commits.asv(folder, "run", *once, "main")
    asv_commits.asv(folder, "publish")
    page = folder / ".asv" / "html" / "regressions.json"
    regressions = json.loads(page.read_text())["regressions"]
    for commit in commits:
        shell.git(folder, "checkout", "--quiet", commit)
        asv_commits.steelyard(folder, "run", "suites", "--blocks=2")
    shell.git(folder, "checkout", "--quiet", "main")
    said = asv_commits.steelyard(folder, "history", "--branch=main").stdout
    results = str(folder / ".asv" / "results")
    said_of_asv = asv_commits.steelyard(folder, "history", "--asv", results).stdout
    found = [(one[0], one[6][0][1]) for one in regressions]
    ours = [
        text.startswith("1 of 2 rows stepped, at 1 commit")
        and f"{commits[PLANTED][:10]}  1 slower" in text
        and f"slower  {row}" in text
        for text, row in ((said, OURS), (said_of_asv, SLOWER))
    ]
    return {
        "set up": ran.stdout.count("Setting up plugins.asv:"),
        "asv publish": found,
        "steelyard history": said,
        "steelyard history --asv": said_of_asv,
        "bar met": found == [(SLOWER, PLANTED)] and all(ours),
    }


def main() -> None:
    """Print what each part found as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--times", type=int, default=20)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--factor", type=float, default=1.05)
    options.add_argument("--only", choices=("same", "planted", "history"))
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "repository"
        commits = asv_commits.make(folder, CHANGE, rounds=asked.rounds)
        asv_commits.asv(folder, "machine", "--yes")
        parts = {
            "same": lambda: same(folder, commits, asked.times, asked.factor),
            "planted": lambda: planted(folder, commits, asked.factor),
            "history": lambda: history(folder, commits),
        }
        found = {
            name: part() for name, part in parts.items() if asked.only in {None, name}
        }
    print(json.dumps(found, indent=1))  # noqa: T201 # the result


if __name__ == "__main__":
    main()

"""Processes that this one starts and waits for: their environment, and their end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from steelyard.machine import keeper

CREDENTIALS: Final = ("STEELYARD_STORE", "PGPASSWORD")
"""Variables that let in to a store: no business of the code that is measured or built,
nor of git's hooks."""

REPOSITORY: Final = (
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
"""Variables that git gives its hooks: a worktree would be written into the index of the
commit that is being made."""


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with ``changes``.

    It has neither `CREDENTIALS` nor what leads git to a `REPOSITORY`.
    """
    left_out = {*CREDENTIALS, *REPOSITORY}
    kept = {n: value for n, value in os.environ.items() if n not in left_out}
    return kept | changes


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended and what it printed."""

    code: int
    output: str
    errors: str

    def answer(self, keys: Collection[str]) -> dict[str, Any] | None:
        """Return the last line that is a JSON object of just these keys."""
        for line in reversed(self.output.splitlines()):
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and found.keys() == set(keys):
                    return found
        return None

    def reason(self) -> str:
        """Return the last line of its errors."""
        return "".join(self.errors.strip().splitlines()[-1:])


def run(
    command: Sequence[str],
    seconds: float,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
    output: int | IO[str] = subprocess.PIPE,
    *,
    wait: Callable[[subprocess.Popen[str]], object] = lambda _: None,
) -> ProcessResult:
    """Run a program, and end all that it starts when it ends.

    It has this environment unless given another. Its errors go where its output goes if
    that is not kept. ``wait`` may wait for it first, and end it.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it was not done in time, and was ended.
    """
    kept = output == subprocess.PIPE
    with subprocess.Popen(
        keeper.command(command),
        env=environment() if variables is None else variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE if kept else subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            wait(process)
            said, errors = process.communicate(timeout=seconds)
        except BaseException:
            keeper.end_kept(process)
            raise
    return ProcessResult(process.returncode, said or "", errors or "")

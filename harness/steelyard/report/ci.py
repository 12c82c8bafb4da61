"""What continuous integration asks of a gate: no fork's code, and files of one run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.gate.outcome import Outcome
from steelyard.machine import files
from steelyard.report import gate_terminal

FILES: Final = {
    "json": "gate.json",
    "markdown": "summary.md",
    "junit": "junit.xml",
    "html": "report.html",
}
"""What a lane leaves in its folder, by form."""


def prepare(folder: Path) -> None:
    """Make the folder and remove what an older run left there.

    Raises:
        SteelyardError: it cannot be written.
    """
    hint = "Name a folder that can be written."
    files.folder(folder, f"--ci {folder}", hint)
    try:
        for name in FILES.values():
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise SteelyardError(f"--ci {folder}: {error.strerror}. {hint}") from error


def require_own_code() -> None:
    """Refuse to run code of a fork, by the event that started the workflow.

    Measuring runs what it measures. The workflow asks this too; it is asked again so
    that no other workflow forgets. Outside of GitHub there is no event.

    Raises:
        SteelyardError: the code is, or may be, of another repository.
    """
    place = os.environ.get("GITHUB_EVENT_PATH")
    if not place:
        return
    try:
        event = json.loads(Path(place).read_bytes())
        homes = list(_homes(event))
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise SteelyardError(
            f"the event {place} cannot be read ({error}): whose code this is is not "
            "known, and it is not run."
        ) from error
    if any(home != os.environ.get("GITHUB_REPOSITORY") for home in homes):
        raise SteelyardError(
            "this is a fork's code and is not run on this machine; somebody who has "
            "read it pushes it to a branch of this repository."
        )


def _homes(event: dict[str, Any]) -> Iterator[str | None]:
    """Yield the repositories that the event's code comes from; None of an unknown one.

    An event without any is of this repository: a push, a schedule, a dispatch.
    """
    if pull := event.get("pull_request"):
        yield ((pull.get("head") or {}).get("repo") or {}).get("full_name")
    if run := event.get("workflow_run"):
        yield (run.get("head_repository") or {}).get("full_name")
    if (event.get("issue") or {}).get("pull_request"):
        yield None  # a comment's event does not say whose branch it is about


def leave(outcome: Outcome, folder: Path) -> None:
    """Write the outcome's files, and the summary of the job where there is one.

    Raises:
        SteelyardError: a file cannot be written.
    """
    for shape, name in reversed(FILES.items()):  # gate.json is last, and whole
        gate_terminal.write(outcome, shape, str(folder / name))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(gate_terminal.dumps(outcome, "markdown"))

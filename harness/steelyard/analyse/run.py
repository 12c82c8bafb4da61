"""A run: what was asked for, on which machine, by which process, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

UNKNOWN: Final = "unknown"
"""What a machine does not say."""

STATES: Final = ("running", "finished", "budget", "interrupted", "failed")
"""As stored; ``budget`` is a run that ended because its budget did, and a ``running`` run whose process is gone reads `KILLED`."""

KILLED: Final = "killed"


@dataclass(frozen=True, slots=True)
class Run:
    """One stored run; its trials are kept beside it."""

    uid: str
    started: str
    """ISO 8601 in UTC with microseconds, so that text order is time order."""
    command: str
    version: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    commit: str = UNKNOWN
    dirty: bool | None = None
    """Whether tracked files differed from the commit; None where unknown."""
    writer: Mapping[str, Any] = field(default_factory=dict)
    state: str = "running"
    finished: str | None = None

    @property
    def short(self) -> str:
        """The id as people type it."""
        return self.uid[:8]

    @property
    def partial(self) -> bool:
        """Whether some of its turns may be missing."""
        return self.state != "finished"

    @property
    def peaks(self) -> Mapping[str, Any]:
        """What its GPU was measured to do at most; empty where that is not known."""
        found: Mapping[str, Any] = self.machine.get("gpu", {}).get("peaks", {})
        return found

"""The static lane: what changed in the code of the library's kernels, without a run.

The kernels' package makes the code and says what changed in words; here it is found by
its name, as commands are. Nothing here needs a GPU.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.verdict import Verdict
from steelyard.errors import FAILED, BenchmarkError, SteelyardError
from steelyard.gate.outcome import Finding, StaticChange
from steelyard.machine import git

FILE: Final = "ci/kernels.lock"
COMPARE: Final = "steelyard_lock.lock:compare"
MODE: Final = "kernel"
VANISHED: Final = "vanished"
"""How the note of a case begins that only the baseline has."""


@dataclass(frozen=True, slots=True)
class Static:
    """What the static lane came to: parts of a gate's outcome."""

    findings: tuple[Finding, ...] = ()
    """Identical code, a finding a case, and what vanished."""
    changes: tuple[StaticChange, ...] = ()
    """Suspects, a case and target each."""
    problem: SteelyardError | None = None
    notes: tuple[str, ...] = ()


def check(root: Path, commit: str = "") -> Static:
    """Hold the installed kernels' code against the lock file of a commit.

    Without a commit it is that of the checkout under `root`.
    """
    own = _of_tree(root)
    if isinstance(own, SteelyardError):
        return Static(problem=own)
    base = _of_commit(root, commit) if commit else own
    name = f"{FILE} of {commit[:12]}" if commit else FILE
    found = _read(base, name)
    if found.problem is not None or base == own:
        stale = found.changes or not all(one.verdict for one in found.findings)
        notes = (_STALE,) if stale and commit else ()
        return replace(found, notes=notes)
    return replace(found, notes=_notes_of(_read(own, FILE)))


_STALE: Final = f"{FILE} is not of these sources: write it anew with `steelyard lock`"


def _notes_of(own: Static) -> tuple[str, ...]:
    """Say what is wrong with head's file, which will be the next baseline."""
    if own.problem is not None:
        return (str(own.problem),)
    right = not own.changes and all(one.verdict for one in own.findings)
    return () if right else (_STALE,)


def _of_tree(root: Path) -> str | SteelyardError | None:
    """Return the text of a checkout's file; None if there is none."""
    path = root / FILE
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        return SteelyardError(
            f"{path} cannot be read ({said}): write it anew with `steelyard lock`."
        )


def _of_commit(root: Path, commit: str) -> str | None:
    """Return the text that a commit has; what is no text is one that nobody reads."""
    try:
        done = git.run(root, "show", f"{commit}:./{FILE}")
    except (OSError, subprocess.TimeoutExpired):
        return None
    raw = done.stdout.encode(errors="surrogateescape")
    return raw.decode(errors="replace") if done.returncode == 0 else None


def _read(content: str | None, name: str) -> Static:
    """Return what the kernels' package says of a file."""
    module, _, function = COMPARE.partition(":")
    try:
        compare = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        return Static(
            problem=SteelyardError(
                f"the static lane cannot be loaded from {COMPARE} ({error}): install or "
                "upgrade the package that brings it."
            )
        )
    said: Mapping[str, Any] = compare(content, name)
    if "problem" in said:
        failed = said["exit_code"] == FAILED
        kind = BenchmarkError if failed else SteelyardError
        return Static(problem=kind(said["problem"]))
    return _static(said, name)


def _static(said: Mapping[str, Any], name: str) -> Static:
    changes = tuple(
        StaticChange(case, target, tuple(words))
        for case, target, words in said["changed"]
    )
    gone = tuple(
        Finding(
            case, MODE, None, note=f"{VANISHED}: {name} has it for {', '.join(targets)}"
        )
        for case, targets in _by_case(said["gone"]).items()
    )
    suspect = {one.case for one in changes} | {one.case for one in gone}
    same = tuple(
        Finding(case, MODE, Verdict.IDENTICAL_CODE, note=f"{len(targets)} targets")
        for case, targets in _by_case(said["same"]).items()
        if case not in suspect
    )
    return Static((*same, *gone), changes)


def _by_case(keys: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the targets of each case."""
    found: dict[str, list[str]] = {}
    for case, target in keys:
        found.setdefault(case, []).append(target)
    return found

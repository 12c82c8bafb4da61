"""Capsules with the runs that measured them, whole: what `prepare.capsules` leaves out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steelyard.analyse.trial import Run, Trial
from steelyard.errors import SteelyardError
from steelyard.machine import files, trust
from steelyard.machine.decoding import Malformed, checked
from steelyard.prepare import capsules
from steelyard.prepare.capsules import RUN, SUFFIX, Capsule
from steelyard.store import archive, codec, shapes

__all__ = ["SUFFIX", "Measured", "read", "require_trust", "write"]

TAKEN: Final = "code_hash"
"""The fact that tells whether what was measured is what a capsule holds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A capsule with what it came to where it was made."""

    capsule: Capsule
    run: Run
    trials: Sequence[Trial]

    @property
    def case(self) -> str:
        """The id of its case."""
        return self.capsule.manifest["case"]

    @property
    def modes(self) -> list[str]:
        """The modes that it was measured in."""
        return list(dict.fromkeys(trial.mode for trial in self.trials))


def write(
    content: Mapping[str, Any], folder: Path, run: Run, trials: Sequence[Trial]
) -> bytes:
    """Return the capsule of what a worker recorded in a folder, and of its run.

    Raises:
        SteelyardError: the code is not what was measured, or it is no capsule.
    """
    made = content["launch"]["facts"].get(TAKEN)
    seen = {trial.facts.get(TAKEN) for trial in trials if not trial.error}
    if seen - {made}:
        raise SteelyardError(
            f"{content['case']}: its code is another than was measured ({made}, not "
            f"{', '.join(map(str, seen))}): a build that changes from process to "
            "process. Have it build the same code each time."
        )
    modes = list(dict.fromkeys(trial.mode for trial in trials))
    manifest = codec.plain({**content, "modes": modes})
    document = archive.for_page(run, trials)
    data = capsules.write(
        manifest, {RUN: json.dumps(document).encode()} | members(folder)
    )
    _whole(data)  # whatever the worker said: what is written can be read
    return data


def members(folder: Path) -> dict[str, bytes]:
    """Return the members that a process wrote to a folder."""
    every = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in every}


def read(path: Path) -> Measured:
    """Return the capsule that lies in a file, looked at whole; nothing of it is loaded.

    Raises:
        SteelyardError: it cannot be read, or is no capsule, or damaged.
    """
    try:
        data = files.read(path, limit=capsules.LARGEST)
    except OSError as error:
        raise SteelyardError(f"{path}: {error.strerror}. Name a capsule.") from error
    try:
        return _whole(data)
    except SteelyardError as error:
        raise SteelyardError(f"{path}: {error}") from error


def require_trust(found: Measured, path: Path, *, by_user: bool) -> str:
    """Say why the code of a capsule, read from a file, may run.

    Raises:
        SteelyardError: neither the user nor a key that is listed vouches for it.
    """
    signer = trust.signer(path, found.capsule.data)
    if signer is not None:
        return f"signed by key {signer.number}: {signer.comment}"
    if by_user:
        return "not signed; trusted by --trust"
    raise SteelyardError(
        f"{path}: nothing of it was run, for nobody that you listed signed it. Pass "
        f"--trust if you know who made it, or list the key that signed {path.name}"
        f"{trust.SUFFIX} in {trust.keys_file()}."
    )


def _whole(data: bytes) -> Measured:
    capsule = capsules.read(data)
    run, trials = archive.read(capsule.members[RUN])
    case = capsule.manifest["case"]
    try:
        facts = codec.restore(capsule.manifest["launch"]["facts"])
        checked(facts, shapes.Facts, "facts")
        if {trial.case for trial in trials} != {case}:
            raise Malformed("its run is not of its case alone")  # noqa: TRY301
        if not any(len(trial.samples) for trial in trials):
            raise Malformed("its run has no sample")  # noqa: TRY301
    except Malformed as error:
        raise SteelyardError(
            f"this capsule is not what was written ({error}); nothing of it was loaded. "
            "Make or fetch it again."
        ) from error
    return Measured(capsule, run, trials)

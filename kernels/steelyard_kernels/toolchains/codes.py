"""What compilers give: the code of one candidate, or of several one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from steelyard_device.errors import DeviceError
from steelyard_device.nvrtc import Compiled
from steelyard_kernels.artifact import Code, Times
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.targets import Target

if TYPE_CHECKING:
    from steelyard_device.cubin import Resources


def one_by_one(
    compile_text: Callable[[str, Target], Code],
    parts: Sequence[tuple[str, str]],
    target: Target,
) -> dict[str, Code | DeviceError]:
    """Compile each text alone: to LLVM a module costs nothing."""
    found: dict[str, Code | DeviceError] = {}
    for entry, text in parts:
        try:
            found[entry] = compile_text(text, target)
        except DeviceError as error:
            found[entry] = error
    return found


def unlike_ours(phase: str) -> str:
    """Return LLVM's name of a phase; we have a "verify" of our own."""
    return "check" if phase == "verify" else phase


def code_of(
    compiled: Compiled,
    entry: str,
    compiler: str,
    every: dict[str, Resources],
    phases: Times = (),
) -> Code:
    """Return one entry of a cubin, of which `every` is what was read."""
    found = every.get(entry)
    if found is None:
        raise CompilerBug(f"the cubin has no entry {entry}; report it with its source.")
    logged = {log.entry: log for log in compiled.kernels}.get(entry)
    return Code(
        compiled.cubin,
        entry,
        found.code_hash,
        compiler,
        compiled.nanoseconds,
        found,
        logged.spill_stores if logged else 0,
        logged.spill_loads if logged else 0,
        phases,
    )

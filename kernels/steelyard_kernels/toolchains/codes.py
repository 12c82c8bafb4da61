"""What compilers give: the code of one candidate, or of several one by one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from steelyard_device.errors import DeviceError
from steelyard_device.nvrtc import Compiled
from steelyard_kernels.artifact import Code, Times
from steelyard_kernels.errors import CompilerBug, KernelError
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


def given(text: str, _target: Target) -> str:
    """Return the text that was emitted."""
    return text


def disassembled(cubin: bytes) -> str:
    """Return a cubin's instructions; raises KernelError without NVIDIA's tool."""
    tool = nvdisasm()
    if tool is None:
        raise KernelError(
            "--emit sass needs nvdisasm, which is not installed: pip install "
            "nvidia-cuda-nvdisasm; --resources has the instruction mix without it."
        )
    # In memory: of it nothing is left however the process ends.
    with os.fdopen(os.memfd_create("kernel.cubin"), "wb") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [tool, "--print-code", f"/proc/self/fd/{file.fileno()}"],
            capture_output=True,
            text=True,
            check=False,
            pass_fds=[file.fileno()],
        )
    if done.returncode:
        raise KernelError(
            f"{tool} cannot read this cubin: {done.stderr.strip()}. Upgrade the package "
            "nvidia-cuda-nvdisasm to the compiler's version."
        )
    return done.stdout


def nvdisasm() -> str | None:
    """Return the disassembler of the path, or of NVIDIA's package beside us."""
    found = shutil.which("nvdisasm")
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = found or shutil.which("nvdisasm", path=f"{folder}/cu13/bin")
    return found

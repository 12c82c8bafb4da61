"""What people read of a kernel: its text as it is, its machine code by nvdisasm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess

from steelyard_kernels.errors import KernelError
from steelyard_kernels.targets import Target


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

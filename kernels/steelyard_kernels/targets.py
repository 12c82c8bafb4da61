"""What code is made for: `cpu`, this machine, or a GPU that need not be here.

`cuda:ARCH` goes through CUDA C++ and NVRTC; `nvptx:ARCH` makes a single kernel sooner,
through LLVM's PTX and nvJitLink.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.errors import KernelError
from steelyard_kernels.schedule.gpu import GPUS, Gpu
from steelyard_kernels.schedule.model import Machine

CPU: Final = "cpu"
CUDA: Final = "cuda"
NVPTX: Final = "nvptx"


class Target(Struct, frozen=True):
    """A parsed target: its kind and, of a GPU, the architecture."""

    kind: str
    arch: str = ""

    @property
    def family(self) -> str:
        """What schedules and the verifier tell apart: `cpu` or `cuda`."""
        return CUDA if self.arch else CPU

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


Device: TypeAlias = Machine | Gpu


def parse(text: str) -> Target:
    """Read a target; raises KernelError for what nothing emits for."""
    kind, _, arch = text.partition(":")
    if text == CPU or (kind in {CUDA, NVPTX} and arch in GPUS):
        return Target(kind, arch)
    known = ", ".join([CPU, *(f"{k}:{arch}" for k in (CUDA, NVPTX) for arch in GPUS)])
    raise KernelError(
        f"target {text!r} is not known, expected one of {known}; pass one of these."
    )


def parse_all(text: str) -> tuple[Target, ...]:
    """Read several: `cuda:sm_80,sm_90a` names a kind once for all its architectures."""
    found: dict[Target, None] = {}
    kind = ""
    for word in text.split(","):
        if ":" in word or word == CPU:
            kind = word.partition(":")[0]
            found[parse(word)] = None
        else:
            found[parse(f"{kind}:{word}" if kind else word)] = None
    return tuple(found)


@cache
def machine() -> Machine:
    """Describe this machine to the schedules."""
    from steelyard_device import caches, cpu, llvm

    return Machine(llvm.host().vector_bytes, cpu.pool_size(), caches.second())


def device(target: Target) -> Device:
    """Describe what a target's schedules need to know."""
    if not target.arch:
        return machine()
    found = GPUS[target.arch]
    if target.kind == NVPTX:
        return replace(found, cores=(), clusters=False, hands=False)
    return found

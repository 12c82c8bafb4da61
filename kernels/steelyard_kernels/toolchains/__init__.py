"""What differs between kinds of target: a module each, all of the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from steelyard_device.errors import DeviceError
from steelyard_kernels.artifact import Code
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.targets import CPU, CUDA, NVPTX, Target
from steelyard_kernels.toolchains import cpu, cuda, nvptx
from steelyard_kernels.toolchains.costs import Costs


class Toolchain(Protocol):
    """An emitter and the compiler of its text."""

    @property
    def COSTS(self) -> Costs:  # noqa: N802 - a module's constant
        """What compiling takes."""
        ...

    @property
    def THREADS(self) -> bool:  # noqa: N802 - a module's constant
        """Whether threads of one process overlap."""
        ...

    @property
    def TEXTS(self) -> Mapping[str, Callable[[str, Target], str]]:  # noqa: N802 - so
        """What can be read of a kernel, made of its text; that itself comes first."""
        ...

    def emit(self, kernel: Kernel) -> str:
        """Return a verified kernel's text; raises Unsupported."""
        ...

    def compile_text(self, text: str, target: Target, /) -> Code:
        """Compile one candidate's text.

        Raises CompileError if the text is refused, DeviceError if it was not that.
        """
        ...

    def compile_many(
        self, parts: Sequence[tuple[str, str]], target: Target, seconds: float | None, /
    ) -> dict[str, Code | DeviceError]:
        """Compile texts, each under its entry; those it says nothing of are not done.

        Raises Cancelled when `seconds` are up, DeviceError for what is no text's own.
        """
        ...

    def compiler(self) -> str:
        """Return the name and build of the compiler, loading it."""
        ...

    def settings(self, target: Target, /) -> str:
        """Return what else its code depends on."""
        ...

    def preload(self, library: str | None, /) -> None:
        """Load the compiler, for NVRTC that of a path; raises DeviceError."""
        ...


TOOLCHAINS: Final[Mapping[str, Toolchain]] = {CPU: cpu, CUDA: cuda, NVPTX: nvptx}


def toolchain(target: Target) -> Toolchain:
    """Return what makes code for a target."""
    return TOOLCHAINS[target.kind]

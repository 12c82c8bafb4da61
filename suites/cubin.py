"""What our own share of a cubin is: a cold build beside a bare call of NVRTC.

The bare call compiles the same text with the same options and takes the cubin, no more;
``--relative-to impl=bare`` gives the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_device import nvrtc
from steelyard_kernels import library
from steelyard_kernels.building.facts import TargetBuild
from steelyard_kernels.library import examples
from steelyard_kernels.targets import parse

from .build import OTHERS
from .common import cuda_targets


class BareBuild:
    """NVRTC by its own Python bindings, on one text."""

    def __init__(self, text: str, arch: str, facts: Mapping[str, Any]) -> None:
        from cuda.bindings import nvrtc as bindings

        self._nvrtc = bindings
        self._text = text.encode()
        self._flags = [flag.encode() for flag in nvrtc.options_for(arch)]
        self._facts = facts

    def build(self, cache: str) -> None:
        """Compile the text; there is no cache."""
        del cache
        bare = self._nvrtc
        _, program = bare.nvrtcCreateProgram(self._text, b"kernel.cu", 0, [], [])
        bare.nvrtcCompileProgram(program, len(self._flags), self._flags)
        result, size = bare.nvrtcGetCUBINSize(program)
        assert result == bare.nvrtcResult.NVRTC_SUCCESS
        bare.nvrtcGetCUBIN(program, bytearray(size))
        bare.nvrtcDestroyProgram(program)

    def facts(self) -> Mapping[str, Any]:
        """Return those of our build of the same text."""
        return self._facts


@dataclass(frozen=True, slots=True)
class Bare:
    """A kernel's text handed to NVRTC, for `Builder.build`."""

    kernel: str

    def for_target(self, target: str, *specs: tuple[tuple[int, ...], str]) -> BareBuild:
        """Build the kernel once for its text."""
        ours = getattr(library, self.kernel).for_target(target, *specs)
        assert isinstance(ours, TargetBuild)
        return BareBuild(ours.text, parse(target).arch, ours.facts())


if cuda_targets():

    @benchmark(
        kernel=axis(
            "empty",
            "adam",
            others=[k for k in examples.SHAPES if k not in {"empty", "adam"}],
        ),
        target=axis(*cuda_targets(), others=OTHERS),
        impl=["bare", "ours"],
    )
    def cubin(b: Builder, kernel: str, target: str, impl: str) -> Call:
        """Build one kernel to a cubin."""
        specs = examples.specs(kernel)
        b.mode("build/cold")
        handles = [b.input(*spec, name=f"x{n}") for n, spec in enumerate(specs)]
        one = getattr(library, kernel) if impl == "ours" else Bare(kernel)
        return b.build(one, *handles, target=target)

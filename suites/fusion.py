"""Adam as one kernel and as three (GPUCompiler.jl#65): what fusing costs and saves.

The first call in a fresh process, a cold build, registers, spills and bytes moved. How
long the two run is in the suite `adam`.
"""

from __future__ import annotations

from typing import Final

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import library
from steelyard_kernels.library.examples import AXES

from .adam import THREE, reference
from .build import OTHERS, TARGETS

N: Final = int(AXES["n"])


@benchmark(impl=["one", "three"], target=axis(*TARGETS, others=OTHERS))
def fusion(b: Builder, impl: str, target: str) -> Call:
    """Build Adam's update, and call it for the first time."""
    gradient, m = b.inout(N, name="gradient"), b.inout(N, name="m")
    v = b.inout(N, name="v", dist="uniform", low=0.01)
    b.mode("build/cold", "build/first")
    kernel = library.adam if impl == "one" else THREE
    if target != "cpu":
        return b.build(kernel, gradient, m, v, target=target)
    b.check(reference, gradient, m, v)
    b.mode("kernel/cold", "kernel/warm")
    return b.launch(kernel, gradient, m, v)

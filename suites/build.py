"""How long kernels take to build: from traced function to loaded code.

Every kernel of the library: with no cache of any level, and the second time. Two of
them also from what is on disk, and one in a fresh process, from the interpreter's start
to the end of its launch. For a GPU, which need not be here, they are built and not
launched; the other architectures are behind ``-p target=cuda:sm_80``.
"""

from __future__ import annotations

from typing import Any, Final

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard_kernels import library, reference
from steelyard_kernels.library import examples
from steelyard_kernels.schedule.gpu import GPUS

from .common import cuda_targets

TOLERANCE: Final = 32 * 2.0**-23
"""32 float32 epsilons: a variance of a row carries more of them than one rounding."""

TARGETS: Final = ["cpu", *cuda_targets()]
OTHERS: Final = [f"cuda:{arch}" for arch in GPUS if f"cuda:{arch}" not in TARGETS]

FROM_DISK: Final = {"adam", "bias_layernorm"}
"""Kernels whose build from disk is weighed: one of each strategy."""


@benchmark(
    kernel=list(examples.SHAPES),
    target=axis(*TARGETS, default="cpu", others=OTHERS),
)
def build(b: Builder, kernel: str, target: str) -> Call:
    """Build one kernel of the library."""
    one = getattr(library, kernel)
    specs = examples.specs(kernel)
    program = one.program(*specs)
    updated = {output.updates for output in program.outputs}
    handles = [
        _declare(b, place, spec, place in updated) for place, spec in enumerate(specs)
    ]
    b.mode("build/cold", *["build/warm-disk"] * (kernel in FROM_DISK))
    b.mode("build/warm-memory", *["build/first"] * (kernel == "adam"))
    if target != "cpu":
        return b.build(one, *handles, target=target)
    out = [
        b.output(output.value.shape, output.value.dtype.name, name=output.name)
        for output in program.outputs
        if output.updates is None and not output.hidden
    ]
    scalars = {scalar.name: scalar.default for scalar in one.signature.scalars}

    def oracle(*arrays: Any) -> Any:
        return list(reference.evaluate(program, arrays, scalars).values())

    if handles:
        b.check(oracle, *handles, rtol=TOLERANCE, atol=TOLERANCE)
    return b.launch(one, *handles, out=tuple(out) if len(out) != 1 else out[0])


def _declare(b: Builder, place: int, spec: examples.Spec, updated: bool) -> Handle:
    declare = b.inout if updated else b.input
    dist = "integers" if spec[1] == "int64" else "uniform"
    return declare(*spec, name=f"x{place}", dist=dist)

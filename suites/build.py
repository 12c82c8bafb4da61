"""How long kernels take to build: from traced function to loaded code.

Every kernel of the library: with no cache of any level, and the second time. One of
them also in a fresh process, from the interpreter's start to the end of its launch.
"""

from __future__ import annotations

from typing import Any, Final

from steelyard import Builder, benchmark
from steelyard.handles import Call, Handle
from steelyard_kernels import library, reference

N: Final = 1 << 16
ROWS: Final = (1024, 768)

TOLERANCE: Final = 32 * 2.0**-23
"""32 float32 epsilons: a variance of a row carries more of them than one rounding."""

ARGUMENTS: Final = {
    "adam": "inout inout inout",
    "adam_m": "inout input",
    "adam_update": "inout input input",
    "adam_v": "inout input",
    "bias_layernorm": "rows vector vector vector vector -> rows",
    "copy": "input -> output",
    "empty": "",
    "scale": "inout inout inout",
    "softmax": "rows -> rows",
    "triad": "input input -> output",
}
"""The buffers of each kernel, and behind the arrow its output."""


@benchmark(kernel=list(ARGUMENTS))
def build(b: Builder, kernel: str) -> Call:
    """Build one kernel of the library."""
    one = getattr(library, kernel)
    roles, _, result = ARGUMENTS[kernel].partition("->")
    handles = [_declare(b, place, role) for place, role in enumerate(roles.split())]
    shape = ROWS if result.strip() == "rows" else N
    out = b.output(shape, name="out") if result else None
    scalars = {scalar.name: scalar.default for scalar in one.signature.scalars}
    program = one.program(*((h.shape, h.dtype) for h in handles))

    def oracle(*arrays: Any) -> Any:
        return list(reference.evaluate(program, arrays, scalars).values())

    if handles:
        b.check(oracle, *handles, rtol=TOLERANCE, atol=TOLERANCE)
    b.mode("build/cold", "build/warm-memory")
    if kernel == "adam":
        b.mode("build/first")
    return b.launch(one, *handles, out=out)


def _declare(b: Builder, place: int, role: str) -> Handle:
    name = f"x{place}"
    if role == "inout":
        return b.inout(N, name=name, dist="uniform")
    shapes: dict[str, int | tuple[int, ...]] = {
        "rows": ROWS,
        "vector": ROWS[-1],
        "input": N,
    }
    return b.input(shapes[role], name=name, dist="uniform")

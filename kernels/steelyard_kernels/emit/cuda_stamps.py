"""The same kernel, writing down when each of its blocks began and ended.

Its statements are the emitted ones, letter by letter. A block's first thread stores
`%globaltimer` before them, and after them once all its threads are there: two stores of
8 bytes a block to places of its own, which no launch before has to be cleared for, and
no block waits for another's. The last stores of a kernel are then issued and not yet
seen by all, so a little of its end is missing.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels.emit import ENTRY

MARKS: Final = "steelyard_marks"
"""The parameter behind all others: a pair of words a block."""

STAMP: Final = (
    '  if (threadIdx.x == 0) asm volatile("{{ .reg .u64 now; mov.u64 now, '
    '%%globaltimer; st.u64 [%0], now; }}" :: "l"(' + MARKS + " + 2 * "
    '(unsigned long long)blockIdx.x + {}) : "memory");\n'
)


def stamped(text: str) -> str:
    """Return the text with stamps: CUDA C++ of `ENTRY` as `emit` spells it."""
    before, opened, rest = text.partition(f" {ENTRY}(")
    parameters, _, body = rest.partition(") {\n")
    more = f"{parameters}, " if parameters else ""
    statements = body.rpartition("}")[0]
    return (
        f"{before}{opened}{more}unsigned long long *{MARKS}) {{\n"
        f"{STAMP.format(0)}{statements}  __syncthreads();\n{STAMP.format(1)}}}\n"
    )

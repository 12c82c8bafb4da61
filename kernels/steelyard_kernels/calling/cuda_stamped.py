"""A bound kernel's launch that times itself: its blocks write when they began and ended.

Its statements are the emitted ones, letter by letter. A block's first thread stores
`%globaltimer` before them, and after them once all its threads are there: two stores of
8 bytes a block to places of its own, which no launch before has to be cleared for, and
no block waits for another's. The last stores of a kernel are then issued and not yet
seen by all, so a little of its end is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from steelyard_device import cubin, cuda
from steelyard_device.cuda import kept
from steelyard_kernels.artifact import Artifact
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


class Stamped:
    """The launch of a build of its own, in which each block writes when it ran.

    Never the measured kernel: `facts` says what the stamps add.
    """

    def __init__(
        self,
        built: Artifact,
        context: cuda.Context,
        stream: int,
        slots: Sequence[int | bytes],
    ) -> None:
        text = stamped(built.text)
        self.context, self.stream = context, stream
        self._built = built
        self._image = kept.cubin(text, context.device.arch)
        self._marks = cuda.Buffer(context, (built.blocks, 2), np.uint64)
        context.wait()  # the marks' memory is there for any stream
        self._launch = cuda.Launch(
            cuda.load(context, self._image).function(ENTRY),
            [*slots, self._marks.address],
            grid=built.blocks,
            block=built.threads,
            shared=built.shared,
            stream=stream,
        )
        self.launch, self.wait = self._launch.launch, self._launch.wait
        self.ready = self._launch.ready

    def blocks(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        """Return start and end of each block of the last launch, in ns; waits for it."""
        self.wait()
        return self._marks.read()

    def nanoseconds(self) -> int:
        """Return the time from the first start to the last end of the last launch."""
        marks = self.blocks()
        return int(marks[:, 1].max() - marks[:, 0].min())

    def facts(self) -> dict[str, object]:
        """Say what it takes, and by how many registers that is more than measured."""
        taken = cubin.read(self._image)[ENTRY]
        measured = self._built.code.resources
        assert measured is not None
        return {
            "registers": taken.registers,
            "registers_added": taken.registers - measured.registers,
            "stack_bytes": taken.stack,
            "stack_bytes_added": taken.stack - measured.stack,
            "code_hash": taken.code_hash,
        }

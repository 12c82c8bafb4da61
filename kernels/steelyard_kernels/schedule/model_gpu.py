"""What a schedule of a nest is predicted to cost on a GPU: terms in nanoseconds.

A launch is its ramp, then memory traffic and instructions, which overlap for the most
part, then what the last wave and the last block add. Memory is as fast as the loads in
flight let it be (Little's law).
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import ceil, hypot, prod
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.expr import Apply, Input
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.gpu import (
    IDLE_NS,
    ISSUE_RATE,
    LATENCY_NS,
    RAMP_NS,
    SLOW_INSTRUCTIONS,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.schedule import Place, Schedule
from steelyard_kernels.schedule.transposition import (
    SECTOR_BYTES,
    shared_bytes,
    transposed_of,
)
from steelyard_kernels.schedule.transposition import blocks as tile_blocks

if TYPE_CHECKING:
    from steelyard_kernels.schedule.model_cpu import Model

# Instructions of a vector's place and guard; those that could have been issued while
# the memory pipe, a quarter as wide, takes one access.
PLACE_INSTRUCTIONS: Final = 6.0
ACCESS_INSTRUCTIONS: Final = 4.0
# What cutting an element from a vector and leaving it in shared memory takes.
TILED_INSTRUCTIONS: Final = 2.5
# From one block's start to the next's on a multiprocessor: of copies of 128 KiB to 32 MiB
# on an H200 the choice is then 5 % above the best in the mean, warm or cold, and 13 % at
# most; 42 and 17 % without, 118 % at most.
START_NS: Final = 80.0
# How much of a wave's time the end of the last one adds: its blocks end one by one.
TAIL_SHARE: Final = 0.25
# A block's room is free when its last warp ends: how much of the time that all of its
# threads wait this adds, for a block that fills its multiprocessor.
ROOM_SHARE: Final = 0.5
# Registers, by least squares over all candidates of the library's programs and one of
# rows and columns, float16 to float64, in NVRTC 13.5's code for sm_90a: off by 4 in the
# mean, by 15 at most but for independent streams of halves, all unpacked at once (52).
# A thread's own, those of an access, those of a slow operation by its bytes, and the
# share of narrow elements that are unpacked.
REGISTER_BYTES: Final = 4
OWN_REGISTERS: Final = 5.0
PLACE_REGISTERS: Final = 2.5
SLOW_REGISTERS: Final = {0: 0, 1: 8, 2: 8, 4: 8, 8: 17}
UNPACKED_SHARE: Final = 0.25
# What a block must be able to have beyond the estimate, so that nothing spills.
SPARE_REGISTERS: Final = 8
# Building an instruction of one element takes about 50 us, for perhaps 20000 launches.
BUILD_NS: Final = 2.5


class Facts(Struct, frozen=True):
    """What predictions need of a nest.

    `loads` are the bytes of each array read for every element, `narrowest` the least
    of them and of the outputs', `accesses` the loads and stores an element,
    `instructions` its arithmetic, `scratch` the registers that its slowest operation
    needs besides. `apart` are the bytes that are brought for an element and not used,
    where neighbours do not lie side by side; `tiled` the arrays that tiles mend that of.
    """

    elements: int
    moved: int
    loads: tuple[int, ...]
    narrowest: int
    accesses: int
    instructions: float
    scratch: int
    apart: int = 0
    tiled: int = 0

    @classmethod
    @lru_cache(maxsize=2)  # to propose schedules, then to rank them
    def of(cls, nest: Nest) -> Facts:
        """Count what a nest moves and computes for each element."""
        last = len(nest.extents) - 1
        element = [value for value in nest.values if last in value.axes]
        loaded = [v.node.dtype.bytes for v in element if isinstance(v.source, Input)]
        stored = [output.value.node.dtype.bytes for output in nest.outputs]
        slow = [
            v.node.dtype.bytes
            for v in element
            if isinstance(v.node, Apply) and OPERATIONS[v.node.op].cost.slow
        ]
        return cls(
            prod(nest.extents),
            bytes_moved(nest.program),
            tuple(loaded),
            min(loaded + stored),
            len(loaded) + len(stored),
            len(element) - len(loaded) + (SLOW_INSTRUCTIONS - 1) * len(slow),
            SLOW_REGISTERS[max(slow, default=0)],
            sum([_unused(v, last) for v in element if isinstance(v.source, Input)]),
            len(of.values) if (of := transposed_of(nest)) else 0,
        )

    def registers(self, lanes: int, unroll: int) -> int:
        """Add up what is live at the last load: addresses, and all that was loaded."""
        each = float(sum([-(-lanes * size // REGISTER_BYTES) for size in self.loads]))
        if self.narrowest < REGISTER_BYTES:
            each += lanes * UNPACKED_SHARE
        places = self.accesses * PLACE_REGISTERS
        return ceil(OWN_REGISTERS + places + self.scratch + unroll * each)


def _unused(value: Value, last: int) -> int:
    """Return the bytes of a sector that come with an element and that nobody uses."""
    step = 0 if value.step else abs(value.offset.step(last) or 0)
    size = value.node.dtype.bytes
    return max(0, min(SECTOR_BYTES, step * size) - size)


def estimate_registers(nest: Nest, schedule: Schedule) -> int:
    """Return about how many registers a thread will use."""
    known = Facts.of(nest)
    lanes, threads = schedule.cuts[-1].at(Place.VECTOR), schedule.threads
    size = prod([cut.size for cut in schedule.cuts])
    held = known.registers(lanes, size // (lanes * threads))
    return min(held, schedule.registers or most_registers(threads))


def model(nest: Nest, gpu: Gpu) -> Model:
    """Return what predicts one launch of a nest under a schedule."""
    known = Facts.of(nest)
    held = cache(known.registers)  # schedules differ in their threads

    def predict(schedule: Schedule) -> Prediction:
        lanes = threads = size = 1
        for cut in schedule.cuts:
            lanes = 1  # the last one's
            for factor, place in cut.factors:
                size *= factor
                if place is Place.THREAD:
                    threads *= factor
                elif place is Place.VECTOR:
                    lanes = factor
        unroll = size // (lanes * threads)
        tiled = known.tiled if schedule.keep is Place.SHARED else 0
        blocks = tile_blocks(nest, schedule) if tiled else -(-known.elements // size)
        shared = shared_bytes(nest, schedule)
        most = schedule.registers or most_registers(threads)
        resident = gpu.blocks_resident(threads, min(held(lanes, unroll), most), shared)
        at_once = min(blocks, resident * gpu.multiprocessors)
        waves = blocks / (resident * gpu.multiprocessors)
        turns = max(1.0, known.elements / (at_once * size))
        room = 1 + ROOM_SHARE * threads / gpu.threads
        unused = 0 if tiled else known.apart
        full = (known.moved + known.elements * unused) / gpu.memory_rate
        # Loads are not spread evenly over a latency: where just as many are in flight as
        # Little's law asks for, a third of the rate is lost, with twice as many a tenth.
        memory = hypot(full, turns * (LATENCY_NS + IDLE_NS) * room)
        vector = known.accesses * ACCESS_INSTRUCTIONS + PLACE_INSTRUCTIONS
        each = known.instructions + vector / lanes + TILED_INSTRUCTIONS * tiled
        issue = known.elements * each / (gpu.multiprocessors * ISSUE_RATE)
        issue += START_NS * blocks / min(blocks, gpu.multiprocessors)
        work = hypot(memory, issue)  # neither hides all of the other
        # The last block's vectors are walked one by one.
        last = max(0, ceil(known.elements % size / (threads * lanes)) - 1)
        last *= not tiled
        spelled = lanes * (unroll + (unroll > 1)) + (lanes > 1)
        text = spelled * (known.instructions + known.accesses)
        return Prediction(
            (
                ("ramp", RAMP_NS),
                ("memory and instructions", work),
                ("last wave", work * TAIL_SHARE / max(1.0, waves)),
                ("last block", last * LATENCY_NS),
                ("build share", text * BUILD_NS),
            )
        )

    return predict

"""Candidates of the pointwise strategy on a GPU, and what each is predicted to cost.

A launch is its ramp, then memory traffic and instructions, which overlap for the most
part, then what the last wave and the last block add. Memory is as fast as the loads in
flight let it be (Little's law).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, gcd, hypot, prod
from typing import Final

from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.elementwise import FUNCTIONS
from steelyard_kernels.expression.expr import Apply, Input, Program
from steelyard_kernels.schedule.gpu import (
    IDLE_NS,
    ISSUE_RATE,
    LATENCY_NS,
    MOST_REGISTERS,
    RAMP_NS,
    VECTOR_BYTES,
    Gpu,
    most_registers,
)
from steelyard_kernels.schedule.model import Prediction
from steelyard_kernels.schedule.pointwise.cuda import (
    LANES,
    MOST_VECTORS,
    CudaPointwise,
    problem,
)
from steelyard_kernels.schedule.pointwise.levels import ELEMENT, levels
from steelyard_kernels.schedule.pointwise.operands import source
from steelyard_kernels.schedule.pointwise.schedule import check_program, space_of
from steelyard_kernels.schedule.space import Space

THREADS: Final = (128, 256, 512, 1024)
UNROLLS: Final = (1, 2, 3, 4, 6, MOST_VECTORS)
# What a thread holds of the narrowest array at a time: four of the widest accesses.
# More fills no pipe that is not full yet.
MOST_BYTES: Final = 4 * VECTOR_BYTES

# Instructions of a vector's place and guard; those that could have been issued while
# the memory pipe, a quarter as wide, takes one access; those of a division or a root.
PLACE_INSTRUCTIONS: Final = 6.0
ACCESS_INSTRUCTIONS: Final = 4.0
SLOW_INSTRUCTIONS: Final = 8.0
SLOW: Final = FUNCTIONS | {"divide", "sqrt", "rsqrt"}
# From one block's start to the next's on a multiprocessor: of copies of 128 KiB to 32 MiB
# on an H200 the choice is then 5 % above the best in the mean, warm or cold, and 13 % at
# most; 42 and 17 % without, 118 % at most.
START_NS: Final = 80.0
# How much of a wave's time the end of the last one adds: its blocks end one by one.
TAIL_SHARE: Final = 0.25
# A block's room is free when its last warp ends: how much of the time that all of its
# threads wait this adds, for a block that fills its multiprocessor.
ROOM_SHARE: Final = 0.5
# Stores that leave the caches first: of 20 programs and sizes on an H200 one was faster
# with them by 0.5 %, and updates in place were 3 % slower (docs/results).
STREAM_COST: Final = 0.01
# Registers, by least squares over all candidates of the library's programs and one of
# rows and columns, float16 to float64, in NVRTC 13.5's code for sm_90a: off by 4 in the
# mean, by 15 at most but for independent streams of halves, all unpacked at once (52).
# A thread's own, those of an access, those of a slow operation by its bytes, and the
# share of narrow elements that are unpacked.
REGISTER_BYTES: Final = 4
OWN_REGISTERS: Final = 5.0
PLACE_REGISTERS: Final = 2.5
SLOW_REGISTERS: Final = {0: 0, 2: 8, 4: 8, 8: 17}
UNPACKED_SHARE: Final = 0.25
# What a block must be able to have beyond the estimate, so that nothing spills.
SPARE_REGISTERS: Final = 8
# Building an instruction of one element takes about 50 us, for perhaps 20000 launches.
BUILD_NS: Final = 2.5


@dataclass(frozen=True, slots=True)
class Facts:
    """What predictions need of a program.

    `loads` are the bytes of each array read for every element, `narrowest` the least
    of them and of the outputs', `accesses` the loads and stores an element,
    `instructions` its arithmetic, `scratch` the registers that its slowest operation
    needs besides.
    """

    space: Space
    elements: int
    moved: int
    loads: tuple[int, ...]
    narrowest: int
    accesses: int
    instructions: float
    scratch: int


def facts(program: Program) -> Facts:
    """Count what a program moves and computes for each element."""
    space = space_of(program)
    element = levels(program, space).at[ELEMENT]
    loaded = [node.dtype.bytes for node in element if isinstance(source(node), Input)]
    stored = [output.value.dtype.bytes for output in program.outputs]
    slow = [n.dtype.bytes for n in element if isinstance(n, Apply) and n.op in SLOW]
    return Facts(
        space,
        prod(space.extents),
        bytes_moved(program),
        tuple(loaded),
        min(loaded + stored),
        len(loaded) + len(stored),
        len(element) - len(loaded) + (SLOW_INSTRUCTIONS - 1) * len(slow),
        SLOW_REGISTERS[max(slow, default=0)],
    )


def candidates(
    program: Program, gpu: Gpu, *, aligned: bool = True
) -> tuple[CudaPointwise, ...]:
    """Return every legal schedule worth trying, in order."""
    check_program(program)
    return tuple(_candidates(program, facts(program), gpu, aligned=aligned))


def _candidates(
    program: Program,
    known: Facts,
    gpu: Gpu,
    blocks: Sequence[int] = THREADS,
    streams: Sequence[bool] = (False, True),
    *,
    aligned: bool,
) -> Iterator[CudaPointwise]:
    """Yield the legal schedules: the widest vectors, half of them, and none."""
    inner = known.space.extents[-1] if len(known.space.extents) > 1 else LANES[-1]
    widest = gcd(inner, min(LANES[-1], VECTOR_BYTES // known.narrowest))
    for lanes, unroll in product(sorted({widest, widest // 2 or 1, 1}), UNROLLS):
        if lanes * unroll * known.narrowest > MOST_BYTES:
            continue
        for streaming in streams:
            first = CudaPointwise(lanes, unroll, THREADS[0], 0, streaming)
            if problem(program, first, known.space, aligned=aligned):
                continue
            registers = _registers(known, first) + SPARE_REGISTERS
            for threads in blocks:
                fits = gpu.blocks_resident(threads, registers)
                if fits and registers <= MOST_REGISTERS:
                    yield CudaPointwise(lanes, unroll, threads, 0, streaming)


def estimate_registers(program: Program, schedule: CudaPointwise) -> int:
    """Return about how many registers a thread will use."""
    return _registers(facts(program), schedule)


def _registers(known: Facts, schedule: CudaPointwise) -> int:
    """Add up what is live at the last load: addresses, and all that was loaded."""
    lanes = schedule.lanes
    each = float(sum(-(-lanes * size // REGISTER_BYTES) for size in known.loads))
    if known.narrowest < REGISTER_BYTES:
        each += lanes * UNPACKED_SHARE
    held = ceil(
        OWN_REGISTERS
        + known.accesses * PLACE_REGISTERS
        + known.scratch
        + schedule.unroll * each
    )
    return min(held, schedule.registers or most_registers(schedule.threads))


def predict(program: Program, schedule: CudaPointwise, gpu: Gpu) -> Prediction:
    """Predict one launch."""
    return _predict(facts(program), schedule, gpu)


def _predict(known: Facts, schedule: CudaPointwise, gpu: Gpu) -> Prediction:
    blocks = -(-known.elements // schedule.per_block)
    resident = gpu.blocks_resident(schedule.threads, _registers(known, schedule))
    at_once = min(blocks, resident * gpu.multiprocessors)
    waves = blocks / (resident * gpu.multiprocessors)
    memory = _memory(known, schedule, gpu, at_once)
    work = hypot(memory, _issue(known, schedule, gpu))  # neither hides all of the other
    bodies = schedule.unroll + (schedule.unroll > 1)
    spelled = schedule.lanes * bodies + (schedule.lanes > 1)
    text = spelled * (known.instructions + known.accesses)
    return Prediction(
        (
            ("ramp", RAMP_NS),
            ("memory and instructions", work),
            ("last wave", work * TAIL_SHARE / max(1.0, waves)),
            ("last block", _last_block(known, schedule)),
            ("build share", text * BUILD_NS),
        )
    )


def _memory(known: Facts, schedule: CudaPointwise, gpu: Gpu, at_once: int) -> float:
    """Return the nanoseconds of memory traffic with so many blocks' loads in flight.

    Loads are not spread evenly over a latency: where just as many are in flight as
    Little's law asks for, a third of the rate is lost, with twice as many a tenth.
    """
    turns = max(1.0, known.elements / (at_once * schedule.per_block))
    room = 1 + ROOM_SHARE * schedule.threads / gpu.threads
    waiting = turns * (LATENCY_NS + IDLE_NS) * room
    full = known.moved / gpu.memory_rate
    if schedule.streaming:
        full *= 1 + STREAM_COST
    return hypot(full, waiting)


def _issue(known: Facts, schedule: CudaPointwise, gpu: Gpu) -> float:
    """Return the nanoseconds of starting all blocks and issuing all instructions."""
    vector = known.accesses * ACCESS_INSTRUCTIONS + PLACE_INSTRUCTIONS
    each = known.instructions + vector / schedule.lanes
    issuing = known.elements * each / (gpu.multiprocessors * ISSUE_RATE)
    blocks = -(-known.elements // schedule.per_block)
    return issuing + START_NS * blocks / min(blocks, gpu.multiprocessors)


def _last_block(known: Facts, schedule: CudaPointwise) -> float:
    """Return the nanoseconds of walking the last block's vectors one by one."""
    rest = known.elements % schedule.per_block
    turns = ceil(rest / (schedule.threads * schedule.lanes))
    return max(0, turns - 1) * LATENCY_NS


def rank(
    program: Program, gpu: Gpu, *, aligned: bool = True
) -> list[tuple[CudaPointwise, Prediction]]:
    """Return every candidate with its prediction, in order."""
    check_program(program)
    known = facts(program)
    return [
        (schedule, _predict(known, schedule, gpu))
        for schedule in _candidates(program, known, gpu, aligned=aligned)
    ]


def heuristic(program: Program, gpu: Gpu, *, aligned: bool = True) -> CudaPointwise:
    """Return the best predicted candidate.

    Left out are the largest blocks, which hold their room for longer and share nothing
    here, and stores round the caches.
    """
    check_program(program)
    known = facts(program)
    return min(
        _candidates(program, known, gpu, THREADS[:3], (False,), aligned=aligned),
        key=lambda schedule: _predict(known, schedule, gpu).total,
    )

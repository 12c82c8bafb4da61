"""What a limit of registers buys (Fuser#383), as a table.

The best schedules of bias_layernorm by the model, each compiled with several limits:
fewer registers mean more blocks on a multiprocessor, and from some point on spills. The
rows have time, registers, spills and blocks; eligible warps come from ``--profile ncu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard.prepare.work import BoundOnCall
from steelyard_kernels import KernelFunction, library
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import most_registers
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import device, parse

from .common import target_of
from .gpu import described_layernorm

LIMITS: Final = (0, 32, 40, 48, 56, 64, 96)
OTHER_LIMITS: Final = tuple(n for n in range(24, 256, 8) if n not in LIMITS)
"""Registers of a thread; 0 is the compiler's choice. A Hopper multiprocessor has 64 Ki:
at 32 all of its 2048 threads have theirs."""


WIDTH: Final = 5140
"""Of the rows that the thread's pair of limits is about."""

LANES: Final = 4
"""Halves of a vector of these rows, whose starts are multiples of 8 bytes."""


@dataclass(frozen=True, slots=True)
class Candidate(BoundOnCall):
    """A kernel under one of its schedules, for `Builder.launch`."""

    kernel: KernelFunction
    rank: int
    """Place among the model's best, from 1 on, whatever their own limits are."""
    registers: int

    def schedule(self, target: str, *specs: Any) -> Schedule:
        """Return the schedule for arrays (or shapes and dtypes) on a target."""
        program = simplify(self.kernel.program(*specs))
        ranked: list[Any] = strategies.rank(program, device(parse(target)))
        distinct = list(dict.fromkeys(replace(one, registers=0) for one, _ in ranked))
        chosen: Schedule = replace(distinct[self.rank - 1], registers=self.registers)
        return chosen

    def bind(self, *arrays: Any, **keywords: Any) -> Any:
        """Bind the kernel under the schedule."""
        specs = [(tuple(array.shape), array.dtype) for array in arrays]
        chosen = self.schedule(target_of(arrays[0]), *specs)
        return self.kernel.bind(*arrays, schedule=chosen, **keywords)


@dataclass(frozen=True, slots=True)
class Fusers(BoundOnCall):
    """The thread's layout of bias_layernorm: rows of 5140 halves by vectors of 4.

    Its 288 threads had two rows at once and took 157 registers, or 72 with spills. Ours
    take 88, or 71 without; of four rows they take 144, and spill from 96 down.
    """

    rows: int
    """A block's at once."""
    threads: int
    limit: int
    """Registers of a thread; more than a block of its threads can have are no limit."""

    @property
    def schedule(self) -> Schedule:
        """The same loops under any limit."""
        vectors = -(-WIDTH // LANES)
        turns = -(-vectors // self.threads)
        rows = (self.rows, Place.REGISTER), (1, Place.THREAD), (1, Place.GRID)
        along = (
            *((LANES, Place.VECTOR), (turns, Place.REGISTER)),
            *((self.threads, Place.THREAD), (1, Place.SERIAL)),
        )
        registers = min(self.limit, most_registers(self.threads))
        return Schedule((Cut("i", rows), Cut("j", along)), registers=registers)

    def bind(self, *arrays: Any, **keywords: Any) -> Any:
        """Bind the kernel under the schedule."""
        kernel = library.bias_layernorm
        return kernel.bind(*arrays, schedule=self.schedule, **keywords)


@benchmark(
    rows=axis(2, others=[1, 3, 4]),
    threads=axis(288, others=[224, 352, 448]),
    limit=axis(255, 72, others=[48, 96, 128]),
)
def gpu_register_cap(b: Builder, rows: int, threads: int, limit: int) -> Call:
    """Two biases and LayerNorm of 8192 x 5140 halves as nvFuser laid them out, cold."""
    b.mode("kernel/cold")
    return described_layernorm(b, WIDTH, "float16", Fusers(rows, threads, limit))


@benchmark(
    hidden=[4096, 5140],
    rank=axis(1, 2, 3, 4, others=range(5, 33)),
    registers=axis(*LIMITS, others=OTHER_LIMITS),
)
def gpu_registers(b: Builder, hidden: int, rank: int, registers: int) -> Call:
    """Two biases and LayerNorm of 8192 float16 rows, cold."""
    b.mode("kernel/cold")
    chosen = Candidate(library.bias_layernorm, rank, registers)
    return described_layernorm(b, hidden, "float16", chosen)

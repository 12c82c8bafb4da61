"""What schedules need to know of a GPU: one description an architecture.

Limits of a multiprocessor are those of CUDA's programming guide, table "Technical
Specifications per Compute Capability", its lanes those of "Throughput of Native
Arithmetic Instructions". Multiprocessors and rates are of one card of
the architecture, named beside it: predictions rank schedules of one program, and a
card with more of both keeps the order.
"""

from __future__ import annotations

from math import prod
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.dtypes import STORED, DType, int32
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.ir.loops import INDEX, Type, typed
from steelyard_kernels.schedule.cores import FMA, MMA, WGMMA, Cores
from steelyard_kernels.schedule.parameters import Slot

WARP: Final = 32
VECTOR_BYTES: Final = 16  # the widest load and store of a thread
MAX_THREADS: Final = 1024  # of a block
REGISTER_UNIT: Final = 8  # a thread's registers are allotted in steps of
MOST_REGISTERS: Final = 255  # of a thread: what an instruction can name
REGISTERS: Final = 1 << 16  # of a multiprocessor
CLUSTERS: Final = range(1, 9)  # blocks of a cluster that any GPU with them takes
SURE_CLUSTERS: Final = 0.875  # of those that a whole card would have
WIDE: Final = 8  # bytes of a dtype
INTEGER_LANES: Final = 64  # products of integers that a multiprocessor adds in a cycle
SIDES: Final = 4  # of a multiprocessor, each with a quarter of its registers
LEAST_REGISTERS: Final = 16  # less than ptxas takes anyway
STATIC_SHARED: Final = 48 << 10  # bytes that a block has without asking for more
SYSTEM_SHARED: Final = 1 << 10  # bytes of each block's shared memory, from sm_80 on

# From a load's issue to its value, from the memory of a busy card, and the part of a
# block's life with nothing in flight: its start, its indices, its last stores.
LATENCY_NS: Final = 700.0
IDLE_NS: Final = 300.0
# The time until all multiprocessors work, and of the last store: 1.5 to 2.5 us.
RAMP_NS: Final = 2000.0
# Instructions of a thread that a multiprocessor issues in a nanosecond: four warps a
# cycle, at about 1.7 GHz.
ISSUE_RATE: Final = 4 * 32 * 1.7

# Instructions of a division, a root or a function, beside memory that is waited for.
SLOW_INSTRUCTIONS: Final = 8.0


class Block(Protocol):
    """What a kernel's block takes."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        ...

    @property
    def threads(self) -> int:
        """How many there are."""
        ...

    @property
    def most_registers(self) -> int:
        """What each of them may have."""
        ...


class Gpu(Struct, frozen=True):
    """One architecture: a multiprocessor's limits, and a card's size and rate.

    `memory_rate` is in bytes a nanosecond, read and written; `product_rate` in operations
    on halves, by the first of its `cores`. Candidates multiply by those.
    """

    arch: str
    card: str
    multiprocessors: int
    memory_rate: float
    product_rate: float
    l2_bytes: int
    threads: int  # resident on a multiprocessor
    blocks: int
    registers: int = REGISTERS
    shared_bytes: int = 100 << 10
    cores: tuple[Cores, ...] = (MMA,)
    clusters: bool = False  # whether blocks write in each other's shared memory
    lanes: tuple[int, int] = (128, 2)  # float32 and float64 that are added at a time
    hands: bool = True  # whether code for it hands values over from block to block

    def multiplies(self, dtype: DType) -> bool:
        """Say whether tensor cores multiply arrays of a dtype: float8 since sm_89."""
        return dtype not in STORED or self.arch not in {"sm_80", "sm_86"}

    def fma_lanes(self, dtype: DType) -> int:
        """Return how many products of a dtype a multiprocessor adds in a cycle.

        Integers of 32 bits take one instruction, at half of the rate of Hopper's floats;
        those of 64 bits take four of these.
        """
        wide = dtype.bytes == WIDE
        if dtype.kind == "float":
            return self.lanes[wide]
        return INTEGER_LANES // (4 if wide else 1)

    def multipliers(self, *, exact: bool) -> tuple[Cores, ...]:
        """Return what multiplies tiles: tensor cores, or threads that do so by FMA."""
        return (FMA,) if exact and self.cores else self.cores

    @property
    def most_shared(self) -> int:
        """How many bytes of shared memory a block may have."""
        return self.shared_bytes - SYSTEM_SHARED

    def part(self, count: int) -> Gpu:
        """Return what each of so many kernels has of the GPU that run side by side."""
        return replace(
            self,
            multiprocessors=max(1, self.multiprocessors // count),
            memory_rate=self.memory_rate / count,
            product_rate=self.product_rate / count,
            l2_bytes=self.l2_bytes // count,
        )

    def clusters_resident(self, blocks: int, fit: int) -> int:
        """Return how many clusters of some blocks surely run at once, `fit` a multiprocessor.

        Clusters lie in parts of a card, which have not all of their multiprocessors: of an
        H200's 132 pairs fill all, of 4 and of 8 blocks 0.91 to 0.94 as many fit.
        """
        every = self.multiprocessors * fit
        return every // blocks if blocks <= 2 else int(every * SURE_CLUSTERS) // blocks

    def room_problem(
        self, block: Block, registers: int, less_shared: str, less_registers: str
    ) -> str:
        """Say what a block needs more of than there is, and what less to choose."""
        if block.shared > self.most_shared:
            return (
                f"needs {block.shared} bytes of shared memory, a block has "
                f"{self.most_shared}; choose {less_shared}"
            )
        if registers > block.most_registers:
            return (
                f"needs {registers} registers a thread, {block.threads} threads leave "
                f"{block.most_registers}; choose {less_registers}"
            )
        return ""

    def blocks_resident(self, threads: int, registers: int, shared: int = 0) -> int:
        """Return how many blocks of a kernel fit a multiprocessor at once."""
        each = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * WARP
        warps = -(-threads // WARP)
        limits = [self.threads // (warps * WARP), self.blocks]
        if registers:
            held = self.registers // SIDES // each * SIDES  # warps, by their registers
            limits.append(held // warps)
        if shared:
            limits.append(self.shared_bytes // (shared + SYSTEM_SHARED))
        return min(limits)


# Rates are data sheets' but for sm_90a: 4200 is what an H200 copied from 200 MB up, bytes
# read and written, by CUPTI's kernel times.
GPUS: Final = {
    gpu.arch: gpu
    for gpu in (
        Gpu(
            "sm_80",
            "A100 80GB",
            108,
            1900,
            312e3,
            40 << 20,
            2048,
            32,
            shared_bytes=164 << 10,
            lanes=(64, 32),
        ),
        Gpu("sm_86", "A10", 72, 550, 125e3, 6 << 20, 1536, 16),
        Gpu("sm_89", "L40S", 142, 800, 362e3, 96 << 20, 1536, 24),
        Gpu(
            "sm_90a",
            "H200",
            132,
            4200,
            989e3,
            60 << 20,
            2048,
            32,
            shared_bytes=228 << 10,
            cores=(WGMMA, MMA),
            clusters=True,
            lanes=(128, 64),
        ),
        Gpu(
            "sm_100a",
            "B200",
            148,
            7200,
            600e3,  # by mma.sync: not measured, about an H200's
            126 << 20,
            2048,
            32,
            shared_bytes=228 << 10,
            lanes=(128, 64),
        ),
        Gpu("sm_120a", "RTX 5090", 170, 1600, 209e3, 96 << 20, 1536, 24),
    )
}


def most_registers(threads: int) -> int:
    """Return how many registers a thread may have for one block to fit.

    Stated as a kernel's limit it keeps ptxas from its own: told of a block's threads
    alone, it spills a few bytes where that lets another block in (seen with 13.5: 32
    registers and 8 bytes of stack for blocks of 1024, where 36 do without). A launch
    counts whole sets of warps, one for each side of a multiprocessor.
    """
    whole = -(-threads // (SIDES * WARP)) * SIDES * WARP
    return min(MOST_REGISTERS, REGISTERS // whole // REGISTER_UNIT * REGISTER_UNIT)


def registers_problem(limit: int, threads: int) -> str:
    """Say why a thread's limit does not fit blocks of `threads`; "" if it does, or is 0."""
    most = most_registers(threads)
    if limit == 0 or LEAST_REGISTERS <= limit <= most:
        return ""
    wanted = f"{LEAST_REGISTERS} to {most}, or 0 for what the block leaves"
    return f"allows {limit} registers; choose {wanted}"


def index_type(program: Program) -> Type:
    """Return the type of a kernel's indices: int32 where every index surely fits.

    A block may count beyond the last element by what it takes at once: 2**24.
    """
    nodes = (*program.inputs, *(output.value for output in program.outputs))
    largest = max((prod(node.shape) for node in nodes), default=0)
    return typed(int32) if largest < (1 << 31) - (1 << 24) else INDEX


def extent_slot(index: Type, value: int) -> Slot:
    """Return the slot of a runtime extent, which has the type of a kernel's indices."""
    return Slot("extent", value, "extent", "q" if index is INDEX else "i")

"""The effects of the loop IR: barriers, copies and what blocks tell each other.

Only GPUs have them. They have no result; arguments may be buffers and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from steelyard_kernels.dtypes import DType, float32, int32, int64
from steelyard_kernels.ir.loops import Buffer, Tensor, Type, typed
from steelyard_kernels.ir.operations import is_index

Kinds: TypeAlias = tuple[Type | Buffer | Tensor, ...]


@dataclass(frozen=True, slots=True)
class EffectRule:
    """A rule for an `Effect`, whose arguments may be buffers."""

    sentence: str
    holds: Callable[[Kinds], bool]


AHEAD: Final = 1
"""Scalars that a thread takes over at once: four took 1.04 of the time of one."""


def _is_shared(kind: Type | Buffer | Tensor, dtype: DType | None = None) -> bool:
    inside = isinstance(kind, Buffer) and kind.space == "shared"
    return inside and dtype in {None, getattr(kind, "dtype", None)}


def _is_register(kind: Type | Buffer | Tensor) -> bool:
    return isinstance(kind, Buffer) and kind.space == "register"


def _is_words(kind: Type | Buffer | Tensor) -> bool:
    """Say whether it is memory that blocks hand values over in."""
    return isinstance(kind, Buffer) and (kind.space, kind.access, kind.dtype) == (
        "global",
        "inout",
        int64,
    )


def _copies(args: Kinds) -> bool:
    to, to_index, source, index, count, some = args
    return (
        isinstance(to, Buffer)
        and isinstance(source, Buffer)
        and (to.space, source.space) == ("shared", "global")
        and to.dtype is source.dtype
        and all(is_index(kind) for kind in (to_index, index, count, some))
    )


BARRIER = EffectRule("takes nothing", lambda _args: True)
COPY = EffectRule(
    "copies from a global buffer to a shared one of its dtype some of the elements, "
    "zeros for the others: (to, index, source, index, elements, some)",
    _copies,
)
MBARRIER = EffectRule(
    "takes an int64 buffer in shared memory and indices",
    lambda args: _is_shared(args[0], int64) and all(map(is_index, args[1:])),
)
TENSOR = EffectRule("takes a tensor", lambda args: isinstance(args[0], Tensor))
TENSOR_COPY = EffectRule(
    "copies a box of a tensor to shared memory and counts its bytes: "
    "(to, index, tensor, mbarrier, index, *corner)",
    lambda args: (
        _is_shared(args[0])
        and isinstance(args[2], Tensor)
        and len(args[2].extents) == len(args) - 5
        and _is_shared(args[3], int64)
        and all(map(is_index, (args[1], *args[4:])))
    ),
)
TENSOR_SHARE = EffectRule(
    "copies to as many blocks of the cluster as a number has bits, each at its own place: "
    "(to, index, tensor, mbarrier, index, blocks, *corner)",
    lambda args: TENSOR_COPY.holds((*args[:5], *args[6:])) and is_index(args[5]),
)
STORE_FAR = EffectRule(
    "stores four float32 or int32 in another block of the cluster, where it counts their "
    "bytes: (to, index, values, rank, mbarrier, index)",
    lambda args: (
        any(_is_shared(args[0], x) and args[2] is typed(x, 4) for x in (float32, int32))
        and _is_shared(args[4], int64)
        and all(map(is_index, (args[1], args[3], args[5])))
    ),
)
STORE_FAR_ONE = EffectRule(
    "stores a scalar of 4 or 8 bytes in another block of the cluster, which counts them: "
    "(to, index, value, rank, mbarrier, index)",
    lambda args: (
        isinstance(args[2], Type)
        and _is_shared(args[0], args[2].dtype)
        and args[2].lanes == 1
        and args[2].dtype.bytes in {4, 8}
        and _is_shared(args[4], int64)
        and all(map(is_index, (args[1], args[3], args[5])))
    ),
)
TURN = EffectRule(
    "counts in an int64 buffer and stores what was there in shared memory: "
    "(to, index, words, index)",
    lambda args: (
        _is_shared(args[0])
        and _is_words(args[2])
        and all(map(is_index, (args[1], args[3])))
    ),
)
HAND = EffectRule(
    "stores a scalar of 4 or 8 bytes in words of an int64 buffer: (words, index, value)",
    lambda args: (
        _is_words(args[0])
        and is_index(args[1])
        and isinstance(args[2], Type)
        and args[2].lanes == 1
        and args[2].dtype.bytes in {4, 8}
    ),
)
TAKE = EffectRule(
    f"waits for the first {AHEAD} of so many such scalars, each a step of words behind the "
    "one before, and stores them in registers: (to, words, index, step, count)",
    lambda args: (
        _is_register(args[0]) and _is_words(args[1]) and all(map(is_index, args[2:]))
    ),
)
AXES: Final = range(2, 6)  # of a tensor
SUMS = EffectRule(
    "takes the float32 sums, in registers, and a number of groups",
    lambda args: _is_register(args[0]) and is_index(args[1]),
)
HELD = EffectRule("takes a buffer in registers", lambda args: _is_register(args[0]))
WAIT = EffectRule("takes a number", lambda a: is_index(a[0]))

EFFECTS: dict[str, tuple[int, EffectRule]] = {  # how many arguments, and which
    "barrier": (0, BARRIER),
    "warp_barrier": (0, BARRIER),  # of 32 threads
    "copy_async": (6, COPY),
    "copy_commit": (0, BARRIER),  # those before are one group
    "copy_wait": (1, WAIT),  # until so many groups are under way
    # Barriers in shared memory that count threads' arrivals and copies' bytes, by
    # phases of two parities; PTX ISA, "mbarrier".
    "mbarrier_init": (3, MBARRIER),  # (barrier, index, arrivals)
    "mbarrier_publish": (0, BARRIER),  # to the cluster and copies
    "mbarrier_expect": (3, MBARRIER),  # so many bytes; arrives too
    "mbarrier_arrive": (2, MBARRIER),
    "mbarrier_arrive_far": (3, MBARRIER),  # of a block, by rank
    "mbarrier_wait": (3, MBARRIER),  # for a phase, by its parity
    "mbarrier_wait_far": (3, MBARRIER),  # other blocks wrote to us
    "cluster_arrive": (0, BARRIER),  # of all blocks of a cluster
    "cluster_wait": (0, BARRIER),
    "async_publish": (0, BARRIER),  # stores, to copies and products
    "tensor_prefetch": (1, TENSOR),  # of what describes it
    # Of tensors of two axes and of more.
    **{f"tensor_copy_{n}": (5 + n, TENSOR_COPY) for n in AXES},
    **{f"tensor_share_{n}": (6 + n, TENSOR_SHARE) for n in AXES},
    "store_far": (6, STORE_FAR),
    "store_far_one": (6, STORE_FAR_ONE),
    # Between the blocks of a launch, by words of memory: see `schedule.handing`.
    "take_turn": (4, TURN),
    "hand_over": (3, HAND),
    "take_over": (5, TAKE),
    # A warpgroup's threads take as many registers as that, which others left.
    "registers_take": (1, WAIT),
    "registers_leave": (1, WAIT),
    "mma_begin": (0, BARRIER),  # before multiplications
    "mma_commit": (0, BARRIER),  # those before are one group
    "mma_wait": (2, SUMS),  # until so many groups are under way
    "mma_done": (2, SUMS),  # the same, and these sums are there
    "computed": (1, HELD),  # before what waits behind it
}

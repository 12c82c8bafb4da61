"""The effects of the loop IR: barriers, copies and what blocks tell each other.

Only GPUs have them. They have no result; arguments may be buffers and tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Struct

from steelyard_kernels.dtypes import DType, float32, int32, int64
from steelyard_kernels.ir.loops import Buffer, Tensor, Type, typed
from steelyard_kernels.ir.operations import is_index

Kind: TypeAlias = Type | Buffer | Tensor


class EffectRule(Struct, frozen=True):
    """A rule for an `Effect`: what each argument is, indices all behind these.

    `agree` says what of several has to be alike.
    """

    sentence: str
    takes: tuple[Callable[[Kind], bool], ...] = ()
    agree: Callable[..., bool] = lambda *_: True

    def holds(self, args: tuple[Kind, ...]) -> bool:
        """Say whether an effect may have these arguments."""
        first = len(self.takes)
        each = [take(kind) for take, kind in zip(self.takes, args, strict=False)]
        return all(each) and all(map(is_index, args[first:])) and self.agree(*args)


AHEAD: Final = 1
"""Scalars that a thread takes over at once: four took 1.04 of the time of one."""


def _lies(space: str, dtype: DType | None = None) -> Callable[[Kind], bool]:
    """Return what says whether something is a buffer there."""
    return lambda kind: (
        isinstance(kind, Buffer) and kind.space == space and dtype in {None, kind.dtype}
    )


def _is_words(kind: Kind) -> bool:
    """Say whether it is memory that blocks hand values over in."""
    return _lies("global", int64)(kind) and getattr(kind, "access", "") == "inout"


def _is_scalar(kind: Kind) -> bool:
    """Say whether it is a scalar of 4 or 8 bytes."""
    return isinstance(kind, Type) and kind.lanes == 1 and kind.dtype.bytes in {4, 8}


def _is_tensor(kind: Kind) -> bool:
    return isinstance(kind, Tensor)


def _is_four(kind: Kind) -> bool:
    return kind in {typed(float32, 4), typed(int32, 4)}


def _alike(one: Buffer, _: Kind, other: Type | Buffer, *__: Kind) -> bool:
    """Say whether what is stored has the dtype of where it goes."""
    return one.dtype is other.dtype


SHARED, REGISTER, COUNTER = _lies("shared"), _lies("register"), _lies("shared", int64)
BARRIER = EffectRule("takes nothing")
COPY = EffectRule(
    "copies from a global buffer to a shared one of its dtype some of the elements, "
    "zeros for the others: (to, index, source, index, elements, some)",
    (SHARED, is_index, _lies("global")),
    _alike,
)
MBARRIER = EffectRule("takes an int64 buffer in shared memory and indices", (COUNTER,))
TENSOR = EffectRule("takes a tensor", (_is_tensor,))
TENSOR_COPY = EffectRule(
    "copies a box of a tensor to shared memory and counts its bytes: "
    "(to, index, tensor, mbarrier, index, *corner)",
    (SHARED, is_index, _is_tensor, COUNTER),
    lambda *args: len(args[2].extents) == len(args) - 5,
)
TENSOR_SHARE = EffectRule(
    "copies to as many blocks of the cluster as a number has bits, each at its own place: "
    "(to, index, tensor, mbarrier, index, blocks, *corner)",
    TENSOR_COPY.takes,
    lambda *args: len(args[2].extents) == len(args) - 6,
)
STORE_FAR = EffectRule(
    "stores four float32 or int32 in another block of the cluster, where it counts their "
    "bytes: (to, index, values, rank, mbarrier, index)",
    (SHARED, is_index, _is_four, is_index, COUNTER),
    _alike,
)
STORE_FAR_ONE = EffectRule(
    "stores a scalar of 4 or 8 bytes in another block of the cluster, which counts them: "
    "(to, index, value, rank, mbarrier, index)",
    (SHARED, is_index, _is_scalar, is_index, COUNTER),
    _alike,
)
TURN = EffectRule(
    "counts in an int64 buffer and stores what was there in shared memory: "
    "(to, index, words, index)",
    (SHARED, is_index, _is_words),
)
HAND = EffectRule(
    "stores a scalar of 4 or 8 bytes in words of an int64 buffer: (words, index, value)",
    (_is_words, is_index, _is_scalar),
)
TAKE = EffectRule(
    f"waits for the first {AHEAD} of so many such scalars, each a step of words behind the "
    "one before, and stores them in registers: (to, words, index, step, count)",
    (REGISTER, _is_words),
)
SUMS = EffectRule(
    "takes the float32 sums, in registers, and a number of groups", (REGISTER,)
)
HELD = EffectRule("takes a buffer in registers", (REGISTER,))
WAIT = EffectRule("takes a number")
AXES: Final = range(2, 6)  # of a tensor

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

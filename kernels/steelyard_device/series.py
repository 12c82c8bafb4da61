"""Launches one after another as one, in native code: the kernels of a program.

The loop runs on the caller's thread and forks and joins the pool for each kernel that
is shared out, so that each begins when the one before it is done. Their order may repeat
some: see `turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from steelyard_device import binary, cpu, turns
from steelyard_device.threads import Once
from steelyard_device.turns import Order

# args: fork_join, then an order's records, of a kernel its pool (null: the caller alone),
# function, where among args its own begin, and whether its work is claimed; `native` says
# what these are.
_TEXT = r"""
define void @series(ptr %args, ptr %ticket, i32 %index, i32 %threads) {
  %failed = call i32 @turns(ptr %ticket, ptr %args, i64 1)
  ret void
}

define internal i32 @turns_launch(ptr %ticket, ptr %args, ptr %record) {
entry:
  %fork.join = load ptr, ptr %args
  %pool = load ptr at i64, ptr %record, i64 1
  %function = load ptr at i64, ptr %record, i64 2
  %own.at = getelementptr i64, ptr %record, i64 3
  %own.place = load i64, ptr %own.at
  %own = getelementptr i64, ptr %args, i64 %own.place
  %claims = load i64 at i64, ptr %record, i64 4
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %one, label %all
one:
  store <8 x i64> zeroinitializer, ptr %ticket, align 64
  call void %function(ptr %own, ptr %ticket, i32 0, i32 1)
  ret i32 0
all:
  call void %fork.join(ptr %pool, ptr %function, ptr %own, ptr %ticket, i64 %claims)
  ret i32 0
}

define internal i32 @turns_read(ptr %ticket, ptr %room, ptr %address, i64 %size) {
  call void @llvm.memcpy.p0.p0.i64(ptr %room, ptr %address, i64 %size, i1 false)
  ret i32 0
}

define internal i32 @turns_move(ptr %ticket, ptr %tensor, i64 %address) {
  ret i32 0
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


@Once
def function() -> cpu.Function:
    """Return what runs functions one after another; its first arguments are `table`'s."""
    from steelyard_device import llvm  # llvmlite takes long to import

    text = turns.TEXT + _TEXT
    return cpu.Function("series", llvm.own(text, ["series"])["series"])


Step: TypeAlias = tuple[cpu.Function, int, int]
"""A function, the number of its slots, and its threads."""


def table(steps: Sequence[Step], order: Order = ()) -> list[int]:
    """Return the words that stand before the slots of all steps, and those of the order.

    Without one each is run once.
    """
    order = order or turns.plain(len(steps))
    own = 1 + turns.size(order)
    starts = accumulate([count for _, count, _ in steps], initial=own)
    kernels = [
        (cpu.pool().address if threads > 1 else 0, each.address, start, 1)
        for (each, _, threads), start in zip(steps, starts, strict=False)
    ]
    return [cpu.fork_join(), *turns.table(order, kernels, 1, own.__add__)]


def of_head(
    head: Mapping[str, Any], image: bytes, addresses: Mapping[str, int]
) -> tuple[list[Step], list[int]]:
    """Load the code of a binary's head (`binary`); return its steps and all their slots."""
    loaded: dict[tuple[bytes, str], cpu.Function] = {}
    steps, slots = [], []
    for each in binary.launches(head):
        place = binary.code_of(each, image), each["entry"]
        if place not in loaded:
            loaded[place] = cpu.load(*place)
        own = binary.words(each["slots"], addresses)
        slots += [word for word in own if isinstance(word, int)]
        threads = each.get("threads") or cpu.pool_size()
        steps.append((loaded[place], len(own), threads))
    own = binary.words(head.get("homes", ()), addresses)
    return steps, [*slots, *[word for word in own if isinstance(word, int)]]


class Series(cpu.Launch):
    """Functions with their packed arguments, run one after another as one launch.

    ``slots`` are those of all ``steps``, then those of the ``order``. Work is claimed by
    ticket, as `cpu.Launch` says.
    """

    __slots__ = ("_widest",)

    def __init__(
        self, steps: Sequence[Step], slots: Sequence[int], order: Order = ()
    ) -> None:
        super().__init__(function(), [*table(steps, order), *slots], 1)
        self._widest = max(threads for _, _, threads in steps)

    def facts(self) -> dict[str, object]:
        """Say how it is launched: on as many threads as the widest of its kernels."""
        return {"threads": self._widest}

    def ready(self) -> None:
        """Wake the pool, if a kernel is shared out, so that it is found spinning."""
        if self._widest > 1:
            cpu.null(self._widest).launch()

"""Launches one after another as one, in native code: the kernels of a program.

The loop runs on the caller's thread and forks and joins the pool for each kernel that
is shared out, so that each begins when the one before it is done. Their order may repeat
some: see `turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from steelyard_device import binary, cpu, native, turns
from steelyard_device.native_language import own
from steelyard_device.threads import Once
from steelyard_device.turns import Order

# args: fork_join, then an order's records, of a kernel its pool (null: the caller alone),
# function, where among args its own begin, and whether its work is claimed; `native` says
# what these are.
_SOURCE = """
def series(args: ptr[i64], ticket: ptr, index: i32, threads: i32):
    turns(ticket, args, 1)

def turns_launch(ticket: ptr, args: ptr[i64], record: ptr[i64]) -> i32:
    function = fn[void](record[2])
    own = address(args[record[3]])
    if record[1] == 0:
        llvm(None, CLEAR, ticket)
        function(own, ticket, i32(0), i32(1))
    else:
        fn[void](args[0])(ptr(record[1]), function, own, ticket, record[4])
    return i32(0)

def turns_read(ticket: ptr, to: ptr, where: ptr, size: i64) -> i32:
    memcpy(to, where, size)
    return i32(0)

def turns_move(ticket: ptr, tensor: ptr, where: i64) -> i32:
    return i32(0)
"""


@Once
def function() -> cpu.Function:
    """Return what runs functions one after another; its first arguments are `table`'s."""
    given = {**turns.GIVEN, "CLEAR": native.CLEAR}
    at = own(turns.SOURCE + _SOURCE, ["series"], given)
    return cpu.Function("series", at["series"])


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

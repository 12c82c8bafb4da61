"""Launches one after another as one, in native code: the kernels of a program.

The loop runs on the caller's thread and forks and joins the pool for each kernel that
is shared out, so that each begins when the one before it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from steelyard_device import binary, cpu, llvm
from steelyard_device.threads import Once

FIELDS = 4
"""Words of a kernel in the table that stands before the arguments."""

# args: fork_join, the number of kernels, and of each its pool (null: the caller alone),
# function, where among args its own begin, and whether its work is claimed; `native` says
# what these are.
_TEXT = r"""
define void @series(ptr %args, ptr %ticket, i32 %index, i32 %threads) {
entry:
  %fork.join = load ptr, ptr %args
  %count.at = getelementptr i64, ptr %args, i64 1
  %count = load i64, ptr %count.at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %done ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %kernel, label %exit
kernel:
  %before = mul i64 %i, 4
  %place = add i64 %before, 2
  %pool.at = getelementptr i64, ptr %args, i64 %place
  %pool = load ptr, ptr %pool.at
  %function.at = getelementptr i64, ptr %pool.at, i64 1
  %function = load ptr, ptr %function.at
  %own.at = getelementptr i64, ptr %pool.at, i64 2
  %own.place = load i64, ptr %own.at
  %own = getelementptr i64, ptr %args, i64 %own.place
  %claims.at = getelementptr i64, ptr %pool.at, i64 3
  %claims = load i64, ptr %claims.at
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %one, label %all
one:
  store <8 x i64> zeroinitializer, ptr %ticket, align 64
  call void %function(ptr %own, ptr %ticket, i32 0, i32 1)
  br label %done
all:
  call void %fork.join(ptr %pool, ptr %function, ptr %own, ptr %ticket, i64 %claims)
  br label %done
done:
  %i.next = add i64 %i, 1
  br label %next
exit:
  ret void
}
"""


@Once
def function() -> cpu.Function:
    """Return what runs functions one after another; its first arguments are `table`'s."""
    return cpu.Function("series", llvm.own(_TEXT, ["series"])["series"])


Step: TypeAlias = tuple[cpu.Function, int, int]
"""A function, the number of its slots, and its threads."""


def table(steps: Sequence[Step]) -> list[int]:
    """Return the words that stand before the slots of all steps."""
    own = 2 + FIELDS * len(steps)
    words = [cpu.fork_join(), len(steps)]
    for each, count, threads in steps:
        group = cpu.pool().address if threads > 1 else 0
        words += [group, each.address, own, 1]
        own += count
    return words


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
    return steps, slots


class Series(cpu.Launch):
    """Functions with their packed arguments, run one after another as one launch.

    ``slots`` are those of all ``steps`` in order. Work is claimed by ticket, as
    `cpu.Launch` says.
    """

    __slots__ = ("_widest",)

    def __init__(self, steps: Sequence[Step], slots: Sequence[int]) -> None:
        super().__init__(function(), [*table(steps), *slots], 1)
        self._widest = max(threads for _, _, threads in steps)

    def facts(self) -> dict[str, object]:
        """Say how it is launched: on as many threads as the widest of its kernels."""
        return {"threads": self._widest}

    def ready(self) -> None:
        """Wake the pool, if a kernel is shared out, so that it is found spinning."""
        if self._widest > 1:
            cpu.null(self._widest).launch()

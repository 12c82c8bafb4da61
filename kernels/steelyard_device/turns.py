"""Launches in an order that may repeat some of them: what native code walks through.

An order is records of a kind and numbers; records are named by their places in it, and
words by theirs among all launches' slots::

    KERNEL number                       launch one
    BEGIN  count end                    a loop of so many turns, up to the record `end`
    END    begin                        go on with the next turn
    MOVE   begin word step even odd     of turn i: the word is that at `even`, or `odd`,
                                        which alternate, and i times `step`
    TENSOR begin word step even odd     the same address within a tensor of bulk copies
    TAKE   begin word                   a loop behind this has as many turns as a word says
    COUNT  begin word                   or as the int64 says whose address is in the word
    TEST   begin word                   leave the loop if the bool at an address is false
    ODD    begin end                    skip up to `end` unless the loop had odd turns

A loop's moves come first in it, so that each turn finds its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

KERNEL, BEGIN, END, MOVE, TENSOR, TAKE, COUNT, TEST, ODD, STOP = range(10)

Order: TypeAlias = Sequence[Sequence[int]]

FIELDS: Final = 6
"""Words of a record in a table."""


def plain(count: int, first: int = 0) -> list[Sequence[int]]:
    """Return the order of so many launches, each once."""
    return [(KERNEL, number) for number in range(first, first + count)]


def behind(order: Order, count: int) -> list[Sequence[int]]:
    """Return an order's records as they are behind so many others."""
    found: list[Sequence[int]] = []
    for kind, *numbers in order:
        for field in _RECORDS.get(kind, (0,)):
            numbers[field] += count
        found.append((kind, *numbers))
    return found


def around(order: Order, count: int, before: int, after: int) -> list[Sequence[int]]:
    """Return the order of so many launches with others around them, each of those once.

    The others are numbered behind these. Without an order these are run once too.
    """
    own = behind(order or plain(count), before)
    return [*plain(before, count), *own, *plain(after, count + before)]


_RECORDS: Final = {KERNEL: (), BEGIN: (1,), ODD: (0, 1)}
"""Which numbers of a kind are records; of all others it is the first."""


def table(
    order: Order,
    kernels: Sequence[Sequence[int]],
    first: int,
    place: Callable[[int], int],
) -> list[int]:
    """Return an order's records as words of one block.

    ``kernels`` are the words of a launch's record behind its kind; records begin at
    word ``first`` of the block, and ``place`` says which word of it a slot is.
    """
    found: list[int] = []
    for kind, *numbers in order:
        if kind == KERNEL:
            record = [kind, *kernels[numbers[0]]]
        else:
            record = [kind, *numbers]
            for field in _RECORDS.get(kind, (0,)):
                record[1 + field] = first + FIELDS * numbers[field]
            if kind in {MOVE, TENSOR}:
                record[4:] = map(place, numbers[3:])
            if kind in _WORDS:
                record[2] = place(numbers[1])
        found += [each % (1 << 64) for each in record]
        found += [0] * (FIELDS - len(record))
    return [*found, STOP, *[0] * (FIELDS - 1)]


_WORDS: Final = {MOVE, TENSOR, TAKE, COUNT, TEST}
"""Kinds whose second number is a word."""


def size(order: Order) -> int:
    """Return how many words a table has."""
    return FIELDS * (len(order) + 1)


# What launches, reads memory and moves tensors is the target's: functions of `state`,
# which return 0 or what went wrong. Counts of turns that are done lie in BEGIN's fourth
# word.
TEXT: Final = r"""
define internal i32 @turns(ptr %state, ptr %args, i64 %first) {
entry:
  %room = alloca i64
  br label %next
next:
  %at = phi i64 [ %first, %entry ], [ %behind, %step ], [ %to, %jump ]
  %record = getelementptr i64, ptr %args, i64 %at
  %behind = add i64 %at, 6
  %a = load i64 at i64, ptr %record, i64 1
  %b = load i64 at i64, ptr %record, i64 2
  %word.at = getelementptr i64, ptr %args, i64 %b
  %loop = getelementptr i64, ptr %args, i64 %a
  %loop.count.at = getelementptr i64, ptr %loop, i64 1
  %loop.end.at = getelementptr i64, ptr %loop, i64 2
  %loop.done.at = getelementptr i64, ptr %loop, i64 3
  %kind = load i64, ptr %record
  switch i64 %kind, label %stop [ i64 0, label %kernel
                                  i64 1, label %begin
                                  i64 2, label %end
                                  i64 3, label %move
                                  i64 4, label %move
                                  i64 5, label %take
                                  i64 6, label %count
                                  i64 7, label %test
                                  i64 8, label %odd ]
kernel:
  %launched = call i32 @turns_launch(ptr %state, ptr %args, ptr %record)
  br label %checked
checked:
  %status = phi i32 [ %launched, %kernel ], [ %moved, %tensor ], [ %counted, %count ], [ %tested, %test ]
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %lost, label %which
which:
  switch i64 %kind, label %step [ i64 6, label %counted.on
                                  i64 7, label %tested.on ]
step:
  br label %next
begin:
  %done.at = getelementptr i64, ptr %record, i64 3
  store i64 0, ptr %done.at
  %some = icmp sgt i64 %a, 0
  %began = select i1 %some, i64 %behind, i64 %b
  br label %jump
jump:
  %to = phi i64 [ %began, %begin ], [ %again, %end ], [ %left, %tested.on ], [ %skipped, %odd ]
  br label %next
end:
  %turn = load i64, ptr %loop.done.at
  %turn.next = add i64 %turn, 1
  store i64 %turn.next, ptr %loop.done.at
  %turns = load i64, ptr %loop.count.at
  %more = icmp slt i64 %turn.next, %turns
  %inside = add i64 %a, 6
  %again = select i1 %more, i64 %inside, i64 %behind
  br label %jump
move:
  %now = load i64, ptr %loop.done.at
  %low = and i64 %now, 1
  %is.odd = icmp ne i64 %low, 0
  %step.at = getelementptr i64, ptr %record, i64 3
  %step.size = load i64, ptr %step.at
  %even.at = getelementptr i64, ptr %record, i64 4
  %odd.at = getelementptr i64, ptr %record, i64 5
  %home.at = select i1 %is.odd, ptr %odd.at, ptr %even.at
  %home.place = load i64, ptr %home.at
  %home = getelementptr i64, ptr %args, i64 %home.place
  %base = load i64, ptr %home
  %far = mul i64 %now, %step.size
  %address = add i64 %base, %far
  %is.tensor = icmp eq i64 %kind, 4
  br i1 %is.tensor, label %tensor, label %plain
plain:
  store i64 %address, ptr %word.at
  br label %step
tensor:
  %moved = call i32 @turns_move(ptr %state, ptr %word.at, i64 %address)
  br label %checked
take:
  %taken = load i64, ptr %word.at
  br label %resized
count:
  %count.at = load ptr, ptr %word.at
  %counted = call i32 @turns_read(ptr %state, ptr %room, ptr %count.at, i64 8)
  br label %checked
counted.on:
  %read = load i64, ptr %room
  br label %resized
resized:
  %turns.new = phi i64 [ %taken, %take ], [ %read, %counted.on ]
  store i64 %turns.new, ptr %loop.count.at
  br label %step
test:
  %flag.at = load ptr, ptr %word.at
  %tested = call i32 @turns_read(ptr %state, ptr %room, ptr %flag.at, i64 1)
  br label %checked
tested.on:
  %flag = load i8, ptr %room
  %holds = icmp ne i8 %flag, 0
  %test.end = load i64, ptr %loop.end.at
  %left = select i1 %holds, i64 %behind, i64 %test.end
  br label %jump
odd:
  %had = load i64, ptr %loop.done.at
  %had.low = and i64 %had, 1
  %had.odd = icmp ne i64 %had.low, 0
  %skipped = select i1 %had.odd, i64 %behind, i64 %b
  br label %jump
lost:
  ret i32 %status
stop:
  ret i32 0
}
"""

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

_NAMES: Final = "KERNEL BEGIN END MOVE TENSOR TAKE COUNT TEST ODD STOP FIELDS"
GIVEN: Final = {name: str(globals()[name]) for name in _NAMES.split()}
"""What `SOURCE` calls so."""


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
SOURCE: Final = """
def memcpy(to: ptr, of: ptr, size: i64) -> ptr: ...

def turns(state: ptr, args: ptr[i64], first: i64) -> i32:
    found = room(i64, 1, 8)
    at = first
    while True:
        record = address(args[at])
        kind = record[0]
        a = record[1]
        b = record[2]
        loop = address(args[a])
        at = at + FIELDS
        status = i32(0)
        if kind == KERNEL:
            status = turns_launch(state, args, record)
        elif kind == BEGIN:
            record[3] = 0
            if a <= 0:
                at = b
        elif kind == END:
            loop[3] = loop[3] + 1
            if loop[3] < loop[1]:
                at = a + FIELDS
        elif kind == MOVE or kind == TENSOR:
            turn = loop[3]
            home = record[5] if turn & 1 else record[4]
            where = args[home] + turn * record[3]
            if kind == MOVE:
                args[b] = where
            else:
                status = turns_move(state, address(args[b]), where)
        elif kind == TAKE:
            loop[1] = args[b]
        elif kind == COUNT:
            status = turns_read(state, found, ptr(args[b]), 8)
            loop[1] = found[0]
        elif kind == TEST:
            status = turns_read(state, found, ptr(args[b]), 1)
            if ptr[i8](found)[0] == 0:
                at = loop[2]
        elif kind == ODD:
            if (loop[3] & 1) == 0:
                at = b
        else:
            return i32(0)
        if status != 0:
            return status
"""

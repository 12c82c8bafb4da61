"""In which order launches run, and which of their arguments each turn of a loop changes.

A launch's argument that walks is moved at the begin of each turn, from words that stand
behind all launches' own: addresses of homes, and those that outer turns move.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from steelyard_device import turns
from steelyard_kernels import dtypes
from steelyard_kernels.ir.loops import Tensor
from steelyard_kernels.plan.launches import (
    WORKSPACE,
    Home,
    Plan,
    Repeat,
    Walk,
    home_of,
    placed,
)
from steelyard_kernels.schedule.parameters import Slot

Record = tuple[int, ...]


def ordered(
    plan: Plan, parts: Sequence[Sequence[Slot]], scalars: set[str]
) -> tuple[tuple[Slot, ...], tuple[Record, ...]]:
    """Return the slots of all launches and of their order, and that if some repeat.

    `parts` are the launches' own slots, `scalars` the names of the program's.
    """
    made = _Order(plan, parts, scalars)
    return tuple(made.slots), tuple(made.records if plan.repeats else ())


class _Order:
    """Records in the making, with slots that they read behind those of launches."""

    def __init__(
        self, plan: Plan, parts: Sequence[Sequence[Slot]], scalars: set[str]
    ) -> None:
        self.plan, self.scalars = plan, scalars
        self.slots: list[Slot] = []
        self.records: list[Record] = []
        self._homes: dict[object, int] = {}
        self._moves: dict[int, list[Record]] = {}
        self._begun: dict[int, int] = {}  # where repeats begin
        moved = []
        for launch, own in zip(plan.launches, parts, strict=True):
            moved.append((len(self.slots), launch, own))
            self.slots += [placed(slot, launch, plan) for slot in own]
        for number, (first, launch, own) in enumerate(moved):
            around = {plan.repeats[n].index: n for n in plan.around(number)}
            for place, slot in enumerate(own, first):
                if slot.kind in {"input", "output", "tensor"}:
                    self._move(place, home_of(slot, launch), slot.tensor)
                elif slot.kind == "scalar" and slot.name in around:
                    self.slots[place] = Slot("extent", 0, slot.name)
                    self._count(place, around[slot.name])
        self._lengths = {n: self._length(n) for n in range(len(plan.repeats))}
        for repeat in plan.repeats:  # before an outer one's moves are said
            if repeat.test is not None:
                self._home(repeat.test[1])
        for number in range(len(plan.launches)):
            self._launch(number)

    def _move(self, place: int, home: Home, tensor: Tensor | None = None) -> None:
        """Have each turn give a word the address that it has then, or a tensor there."""
        if isinstance(home, Walk):
            kind, first = turns.MOVE, home.first
            if tensor is not None:
                kind = turns.TENSOR
                first += tensor.first * dtypes.of(tensor.dtype).bytes
            homes = self._home(home.home, first), self._home(home.other, first)
            record = kind, home.repeat, place, home.step, *homes
            self._moves.setdefault(home.repeat, []).append(record)

    def _count(self, place: int, repeat: int) -> None:
        """Have a word say which turn it is."""
        zero = self._word(None, Slot("extent", 0, ""))
        record = turns.MOVE, repeat, place, 1, zero, zero
        self._moves.setdefault(repeat, []).append(record)

    def _length(self, n: int) -> tuple[int, int] | None:
        """Return how a repeat is told its length, if it is, and the place of that word."""
        given = self.plan.repeats[n].given
        around = {self.plan.repeats[m].index: m for m in self._around(n)}
        if isinstance(given, str) and given in around:
            place = self._word(("turn", n), Slot("extent", 0, given))
            self._count(place, around[given])
            return turns.TAKE, place
        if isinstance(given, str) and given in self.scalars:
            return turns.TAKE, self._word(given, Slot("scalar", 0, given))
        return None if given is None else (turns.COUNT, self._home(given))

    def _around(self, n: int) -> list[int]:
        """Return the repeats that a repeat is in, the outermost first."""
        every = self.plan.around(self.plan.repeats[n].first)
        return every[: every.index(n)]

    def _home(self, home: Home, shift: int = 0) -> int:
        """Return the place of a word that has a home's address and so many bytes."""
        if isinstance(home, Walk):
            home = replace(home, first=home.first + shift)
            if home not in self._homes:
                self._move(self._word(home, Slot("extent", 0, "")), home)
            return self._homes[home]
        shifted = Walk(home, home, -1, shift)
        if isinstance(home, str):
            return self._word(shifted, Slot("input", shift, home))
        offset = self.plan.buffers[home].offset + shift
        return self._word(shifted, Slot("input", offset, WORKSPACE))

    def _word(self, key: object, slot: Slot) -> int:
        if key not in self._homes:
            self._homes[key] = len(self.slots)
            self.slots.append(slot)
        return self._homes[key]

    def _launch(self, number: int) -> None:
        """Add a launch, with the begins and ends of repeats around it."""
        around = [(n, self.plan.repeats[n]) for n in self.plan.around(number)]
        for n, repeat in around:
            if repeat.first == number:
                self._begin(n, repeat)
        for n, repeat in around:
            if repeat.test is not None and repeat.test[0] == number:
                flag = self._home(repeat.test[1])
                self.records.append((turns.TEST, self._begun[n], flag))
        self.records.append((turns.KERNEL, number))
        for n, repeat in reversed(around):
            if repeat.last == number:
                self._end(n, repeat)

    def _begin(self, n: int, repeat: Repeat) -> None:
        if repeat.odd is not None:
            self._begun[n] = len(self.records)
            self.records.append((turns.ODD, self._begun[repeat.odd], 0))
            return
        told = self._lengths[n]
        self._begun[n] = len(self.records) + (told is not None)
        if told is not None:
            kind, place = told
            self.records.append((kind, self._begun[n], place))
        self.records.append((turns.BEGIN, repeat.length, 0))
        for kind, _, *rest in self._moves.get(n, ()):
            self.records.append((kind, self._begun[n], *rest))

    def _end(self, n: int, repeat: Repeat) -> None:
        begun = self._begun[n]
        if repeat.odd is None:
            self.records.append((turns.END, begun))
        kind, what, _ = self.records[begun]
        self.records[begun] = kind, what, len(self.records)

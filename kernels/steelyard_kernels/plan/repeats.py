"""Launches in a row, some of them repeated, with the memory between all of them.

Buffers lie in one workspace: the largest first, each where it fits lowest. Buffers whose
lives meet get no common byte. Greedy by size, of Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from steelyard_kernels.expression.expr import Node, Parameter, Scalar
from steelyard_kernels.plan.bodies import Body, BodyPart, Read
from steelyard_kernels.plan.cuts import nbytes
from steelyard_kernels.plan.launches import (
    Buffer,
    Home,
    Launch,
    Plan,
    Repeat,
    Walk,
    roots,
)
from steelyard_kernels.plan.pieces import copying

ALIGNMENT: Final = 256
"""Bytes: of a GPU's allocations, and of what vectors and bulk copies begin at."""


class Life(NamedTuple):
    """Bytes that are live from a launch to another, both included."""

    nbytes: int
    first: int
    last: int


def placed(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Return an offset for each, all multiples of `ALIGNMENT`, and the bytes in all."""
    offsets = [0] * len(lives)
    done: list[int] = []
    for number in sorted(range(len(lives)), key=lambda n: (-lives[n].nbytes, n)):
        own, at = lives[number], 0
        beside = [
            n for n in done if own.first <= lives[n].last and lives[n].first <= own.last
        ]
        for other in sorted(beside, key=lambda n: offsets[n]):
            if at + own.nbytes <= offsets[other]:
                break
            at = max(
                at, offsets[other] + -(-lives[other].nbytes // ALIGNMENT) * ALIGNMENT
            )
        offsets[number] = at
        done.append(number)
    ends = [at + life.nbytes for at, life in zip(offsets, lives, strict=True)]
    return offsets, max(ends, default=0)


def bound(lives: Sequence[Life]) -> int:
    """Return the most bytes that are live at once: no workspace has fewer."""
    return max(
        (
            sum(each.nbytes for each in lives if each.first <= now <= each.last)
            for now in {life.first for life in lives}
        ),
        default=0,
    )


class Flow:
    """A plan in the making: launches, buffers and repeats, all by numbers."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self._buffers: list[tuple[int, str]] = []  # bytes and reasons
        self._repeats: list[Repeat] = []

    def buffer(self, size: int, reason: str) -> int:
        """Return a new buffer."""
        self._buffers.append((size, reason))
        return len(self._buffers) - 1

    def begin(self) -> int:
        """Return a new repeat, which `repeat` says more of."""
        self._repeats.append(Repeat(len(self.launches)))
        return len(self._repeats) - 1

    def repeat(self, number: int, **said: object) -> None:
        """Have all launches since a repeat began be repeated."""
        last = len(self.launches) - 1
        own = replace(self._repeats[number], last=last, **said)
        self._repeats[number] = own

    def insert(
        self, plan: Plan, homes: Mapping[str, Home], own: Mapping[int, Home]
    ) -> None:
        """Add a plan's launches, whose arrays and some of whose buffers lie elsewhere."""
        first, base = len(self.launches), len(self._repeats)
        places = dict(own)
        for number, each in enumerate(plan.buffers):
            if number not in places:
                places[number] = self.buffer(each.nbytes, each.reason)

        def at(home: Home) -> Home:
            if isinstance(home, Walk):
                here, other = at(home.home), at(home.other)
                return replace(home, home=here, other=other, repeat=base + home.repeat)
            return places[home] if isinstance(home, int) else homes.get(home, home)

        for launch in plan.launches:
            reads, writes = tuple(map(at, launch.reads)), tuple(map(at, launch.writes))
            self.launches.append(replace(launch, reads=reads, writes=writes))
        for repeat in plan.repeats:
            moved = replace(
                repeat,
                first=first + repeat.first,
                last=first + repeat.last,
                given=None if repeat.given is None else at(repeat.given),
                test=repeat.test and (first + repeat.test[0], at(repeat.test[1])),
                odd=None if repeat.odd is None else base + repeat.odd,
            )
            self._repeats.append(moved)

    def plan(self) -> Plan:
        """Return the plan, with places of all buffers in one workspace."""
        lives = self._lives()
        every = [
            Life(size, *lives[number]) for number, (size, _) in enumerate(self._buffers)
        ]
        offsets, size = placed(every)
        found = tuple(
            Buffer(*life, offset, reason)
            for (_, reason), life, offset in zip(
                self._buffers, every, offsets, strict=True
            )
        )
        least, launches = bound(every), tuple(self.launches)
        return Plan(launches, found, size, least, repeats=tuple(self._repeats))

    def _lives(self) -> dict[str | int, tuple[int, int]]:
        """Return from which launch to which arrays and buffers are live.

        What a repeat has from before or leaves behind is live in all of it.
        """
        lives: dict[str | int, tuple[int, int]] = {}
        for home, first, last in self._uses():
            for root in roots(home):
                low, high = lives.get(root, (first, last))
                lives[root] = min(low, first), max(high, last)
        for each in sorted(
            self._repeats, key=lambda repeat: repeat.last - repeat.first
        ):
            for root, (low, high) in lives.items():
                meets = low <= each.last and each.first <= high
                if meets and not each.first <= low <= high <= each.last:
                    lives[root] = min(low, each.first), max(high, each.last)
        return lives

    def _uses(self) -> Iterator[tuple[Home, int, int]]:
        """Yield homes with the launches from which to which they are needed.

        Two that change places are in all turns.
        """
        for number, launch in enumerate(self.launches):
            pending = [*launch.writes, *launch.reads]
            while pending:
                home = pending.pop()
                yield home, number, number
                if isinstance(home, Walk):
                    around = self._repeats[home.repeat]
                    if home.other != home.home:
                        yield home, around.first, around.last
                    pending.append(home.home)
        for each in self._repeats:
            if each.given is not None:
                yield each.given, each.first, each.first
            if each.test is not None:
                yield each.test[1], each.test[0], each.test[0]


class Repeated:
    """A loop as launches: homes of its carries, what comes before and behind its turns.

    `result` gives the home of a result by its place, None where nobody reads it.
    """

    def __init__(
        self, body: Body, flow: Flow, result: Callable[[int], Home | None]
    ) -> None:
        self.body, self.loop, self._flow = body, body.loop, flow
        turn = body.turn
        exchanged = set(turn.swapped.values()) if turn else set()
        length = self.loop.length
        is_odd = isinstance(length, int) and length % 2 and not self.loop.condition
        self.homes: list[tuple[Home, Home]] = []  # in even turns, and in odd ones
        for place, carry in enumerate(self.loop.carries):
            own = self._found(result(place), carry)
            other = own
            if place in exchanged:
                other = flow.buffer(nbytes(carry), "a loop carries it")
            self.homes.append((other, own) if is_odd else (own, other))
        count = len(self.loop.nexts)
        self._stacks = [
            self._found(result(count + j), node, self._extent())
            for j, node in enumerate(self.loop.stacked)
        ]

    def _found(self, home: Home | None, like: Node, rows: int = 1) -> Home:
        if home is None:
            return self._flow.buffer(rows * nbytes(like), "a loop carries it")
        return home

    def _extent(self) -> int:
        length = self.loop.length
        assert isinstance(length, int), "nothing is stacked where a call says how often"
        return length

    def before(self, home_of: Callable[[Node], Home]) -> list[Launch]:
        """Return what copies carries to where they begin."""
        pairs = zip(self.loop.inits, self.homes, strict=True)
        every = [(init, home_of(init), begin) for init, (begin, _) in pairs]
        return [
            self._copy(init, home, begin)
            for init, home, begin in every
            if home != begin
        ]

    def _copy(self, like: Node, home: Home, into: Home) -> Launch:
        program = copying(self.body.name, like)
        return Launch(program, (home,), (into,), "copied: a loop changes it")

    def add(self, home_of: Callable[[Node], Home]) -> None:
        """Add the turns, and what puts carries where they are read behind them."""
        flow, loop, turn = self._flow, self.loop, self.body.turn
        if turn is None:
            return
        number, test = flow.begin(), None
        if (asked := self.body.condition) is not None:
            flag: Home = flow.buffer(1, "a loop goes on while it holds")
            self._insert(asked, number, home_of, {"y0": flag})
            test = len(flow.launches), flag
        gives = {f"y{k}": self._given(n, number) for k, n in enumerate(turn.gives)}
        self._insert(turn, number, home_of, gives)
        length, given = self.body.length, None
        if not isinstance(length, int):
            given = length.name if isinstance(length, Scalar) else home_of(length)
            length = 0
        index = self.body.index
        flow.repeat(number, length=length, given=given, index=index, test=test)
        apart = [(k, a, b) for k, (a, b) in enumerate(self.homes) if a != b]
        if apart and (test or given is not None):
            odd = flow.begin()
            flow.launches += [self._copy(loop.carries[k], b, a) for k, a, b in apart]
            flow.repeat(odd, odd=number)

    def _insert(
        self,
        part: BodyPart,
        number: int,
        home_of: Callable[[Node], Home],
        gives: Mapping[str, Home],
    ) -> None:
        reads = {
            f"x{k}": self._read(read, number, home_of)
            for k, read in enumerate(part.reads)
        }
        own = dict[int, Home]()
        for buffer, place in part.swapped.items():
            begin, other = self.homes[place]
            own[buffer] = Walk(other, begin, number)
        self._flow.insert(part.plan, {**reads, **gives}, own)

    def _read(self, read: Read, number: int, home_of: Callable[[Node], Home]) -> Home:
        node = read.node
        if isinstance(node, Parameter):
            return self._carried(node.place, number)
        home = home_of(node)
        if not read.is_row:
            return home
        return Walk(home, home, number, read.first, read.step)

    def _carried(self, place: int, number: int) -> Home:
        begin, other = self.homes[place]
        return begin if begin == other else Walk(begin, other, number)

    def _given(self, place: int, number: int) -> Home:
        """Return where a result of a turn is."""
        count = len(self.loop.nexts)
        if place < count:
            return self._carried(place, number)
        home = self._stacks[place - count]
        size = nbytes(self.loop.stacked[place - count])
        if self.loop.reverse:
            return Walk(home, home, number, (self._extent() - 1) * size, -size)
        return Walk(home, home, number, 0, size)

"""The order of a loop's statements on a GPU, whose warps run them in that order.

`early` puts what no carried value is needed for before all else, of every iteration of
a turn, so that they wait for their results together. What goes through shared memory
goes in rounds, with one barrier for all that is written in one. `guarded` sees to it
that no place of shared memory is written again before all threads have read it: in
every turn of a loop another barrier lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Operand, Var
from steelyard_kernels.schedule.gpu import WARP

WAITS: Final = frozenset({"barrier", "warp_barrier", "any_block"})
PLAIN: Final = (ir.Let, ir.Load, ir.Store, ir.Alloc, ir.Effect)


def ordered(body: Sequence[ir.Statement], group: int) -> tuple[ir.Statement, ...]:
    """Return a kernel's statements in the order for `group` threads a chain.

    Turns are what the schedule says: the compiler spells out no more of them.
    """
    wait = ir.Effect("barrier" if group > WARP else "warp_barrier")

    def change(loop: ir.For) -> ir.For:
        return replace(guarded(early(loop, wait), wait), unroll=1)

    return _each(body, change)


def _each(
    body: Sequence[ir.Statement], change: Callable[[ir.For], ir.For]
) -> tuple[ir.Statement, ...]:
    """Return statements with all loops changed, inner ones first."""
    found: list[ir.Statement] = []
    for node in body:
        if isinstance(node, ir.For):
            found.append(change(replace(node, body=_each(node.body, change))))
        elif isinstance(node, ir.If):
            sides = _each(node.body, change), _each(node.orelse, change)
            found.append(replace(node, body=sides[0], orelse=sides[1]))
        else:
            found.append(node)
    return tuple(found)


def guarded(loop: ir.For, wait: ir.Effect) -> ir.For:
    """Return a loop that waits twice in every turn if anything in it waits at all.

    So it does where what is written before all waits is read behind all of them.
    """
    waits = [place for place, node in enumerate(loop.body) if _is_wait(node)]
    alone = len(waits) < 2 and _waits(loop.body)
    if waits:
        written = {n.buffer for n in loop.body[: waits[0]] if isinstance(n, ir.Store)}
        last = [n.buffer for n in loop.body[waits[-1] :] if isinstance(n, ir.Load)]
        alone |= any(b in written and b.space == "shared" for b in last)
    return replace(loop, body=(*loop.body, wait)) if alone else loop


def early(loop: ir.For, wait: ir.Effect) -> ir.For:
    """Return a loop whose body begins with what needs nothing that it carries.

    Only where some of that goes through shared memory, whose barriers would keep it
    where it is: the rest finds its place by itself. On an H200 the way back through
    the network of `library.noisy_mlp` took 1.8 ms so by turns of four iterations, and
    2.4 ms without; noise drawn before all else took longer than between the others.
    """
    simple = all(
        isinstance(node, PLAIN) and (not isinstance(node, ir.Effect) or _is_wait(node))
        for node in loop.body
    )
    if not simple or not loop.carried:
        return loop
    stored = {node.buffer.name for node in loop.body if isinstance(node, ir.Store)}
    sorter = _Sorter({var.name for var, _ in loop.carried}, stored, wait)
    for node in loop.body:
        sorter.put(node)
    return replace(loop, body=sorter.body()) if len(sorter.first) > 1 else loop


class _Sorter:
    """Takes a body's statements one by one: into rounds, or among those that wait.

    `late` are the values that need a carried one, and memory that has any; `rounds` how
    many barriers lie before the others, `slots` the same of the shared memory that is
    the turn's own, `stored` is all memory that it writes.
    """

    def __init__(self, late: set[str], stored: set[str], wait: ir.Effect) -> None:
        self.late = late
        self.stored = stored
        self.wait = wait
        self.rounds: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        self.allocs: list[ir.Statement] = []
        self.first: list[list[ir.Statement]] = []
        self.rest: list[ir.Statement] = []
        self.written = False  # slots, among the rest, since the last barrier

    def put(self, node: ir.Statement) -> None:
        """Take the next statement."""
        if isinstance(node, ir.Alloc):
            self.allocs.append(node)
            if node.buffer.space == "shared":
                self.slots[node.buffer.name] = 0
        elif isinstance(node, ir.Let):
            waits = node.op in WAITS
            self._value(node, node.var, self._round(*node.args, late=waits))
        elif isinstance(node, ir.Load):
            late, after = node.buffer.name in self.stored, 0
            if node.buffer.name in self.slots:
                late, after = (
                    node.buffer.name in self.late,
                    self.slots[node.buffer.name],
                )
            at = self._round(node.index, node.mask, late=late)
            self._value(node, node.var, None if at is None else max(at, after))
        elif isinstance(node, ir.Store):
            self._store(node)
        elif self.written:
            self.rest.append(node)
            self.written = False

    def _round(self, *operands: Operand | None, late: bool) -> int | None:
        """Return after how many barriers these are there; None: among the rest."""
        names = [x.name for x in operands if isinstance(x, Var)]
        if late or any(name in self.late for name in names):
            return None
        return max((self.rounds.get(name, 0) for name in names), default=0)

    def _value(self, node: ir.Statement, var: Var, at: int | None) -> None:
        if at is None:
            self.late.add(var.name)
            self.rest.append(node)
        else:
            self.rounds[var.name] = at
            self._early(at, node)

    def _store(self, node: ir.Store) -> None:
        name = node.buffer.name
        at = None
        if name in self.slots and name not in self.late:
            at = self._round(node.index, node.value, node.mask, late=False)
        if at is None:
            self.late.add(name)
            self.rest.append(node)
            self.written |= name in self.slots
        else:
            self.slots[name] = max(self.slots[name], at + 1)
            self._early(at, node)

    def _early(self, at: int, node: ir.Statement) -> None:
        while len(self.first) <= at:
            self.first.append([])
        self.first[at].append(node)

    def body(self) -> tuple[ir.Statement, ...]:
        """Return all statements in their order."""
        found = list(self.allocs)
        for place, statements in enumerate(self.first):
            found += [self.wait] if place else []
            found += statements
        return (*found, *self.rest)


def _is_wait(node: ir.Statement) -> bool:
    return isinstance(node, ir.Let | ir.Effect) and node.op in WAITS


def _waits(body: Sequence[ir.Statement]) -> bool:
    """Say whether anything in these statements waits for other threads."""
    return any(
        _is_wait(node)
        or (isinstance(node, ir.For) and _waits(node.body))
        or (isinstance(node, ir.If) and (_waits(node.body) or _waits(node.orelse)))
        for node in body
    )

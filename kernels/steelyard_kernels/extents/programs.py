"""What one function is at several extents, and whether it is that at others too.

A kernel is made of programs at some points. That of a call's extents may be another one:
a function may ask for an extent and compute something else, or with a number that was
rounded to nothing at all points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steelyard_kernels import dtypes
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Constant,
    Program,
    Reduce,
    everywhere,
)
from steelyard_kernels.extents.common import Differs, Number, number_of
from steelyard_kernels.extents.formulas import Fitter, Formula, Point


@dataclass(frozen=True, slots=True)
class Likeness:
    """The operations and constants of programs at all points."""

    operations: frozenset[str]
    constants: frozenset[float]
    numbers: tuple[Number, ...]

    def difference(self, program: Program, point: Point) -> str:
        """Say what a program at some extents has besides; "" if it has nothing."""
        for operation in sorted(_operations(program) - self.operations):
            return f"it has {operation}"
        known = {*self.constants, *[number.at(point) for number in self.numbers]}
        for node in _constants(program):
            if node.value not in known and not any(
                dtypes.rounded(value, node.dtype) == node.value for value in known
            ):
                return f"it has {node.value}"
        return ""


def likeness(programs: Sequence[Program], fitter: Fitter) -> Likeness:
    """Return what programs at all points are made of; raises Differs if these are unlike."""
    operations = {_operations(program) for program in programs}
    every = [list(_constants(program)) for program in programs]
    if len(operations) > 1 or len({len(each) for each in every}) > 1:
        raise Differs("operations are unlike")

    def fit(seen: Sequence[int]) -> Formula:
        found = fitter.fit(seen)
        if found is None:
            raise Differs(f"a constant is {seen[0]} and {seen[-1]}")
        return found

    constants, numbers = set(), list[Number]()
    for nodes in zip(*every, strict=True):
        values = [node.value for node in nodes]
        if len(set(map(repr, values))) == 1:
            constants.add(values[0])
        else:
            numbers.append(number_of(values, nodes[0].dtype, fit))
    return Likeness(operations.pop(), frozenset(constants), tuple(numbers))


def _constants(program: Program) -> Iterator[Constant]:
    return (node for node in everywhere(program.nodes) if isinstance(node, Constant))


def _operations(program: Program) -> frozenset[str]:
    nodes = everywhere(program.nodes)
    return frozenset(
        [node.op for node in nodes if isinstance(node, Apply | Reduce | Along)]
    )

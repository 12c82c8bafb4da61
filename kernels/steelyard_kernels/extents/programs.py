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
    """The operations, shapes and constants of programs at all points."""

    operations: frozenset[str]
    shapes: tuple[tuple[Formula, ...], ...]
    constants: frozenset[float]
    numbers: tuple[Number, ...]

    def difference(self, program: Program, point: Point) -> str:
        """Say what a program at some extents has besides; "" if it has nothing."""
        for operation in sorted(_operations(program) - self.operations):
            return f"it has {operation}"
        shapes = [tuple([n.at(point) for n in shape]) for shape in self.shapes]
        seen = [node.shape for node in everywhere(program.nodes)]
        if len(seen) == len(shapes):
            pairs = zip(seen, shapes, strict=True)
            other = next((each for each, made in pairs if each != made), None)
        else:  # what takes all elements is no part: see which shapes there are
            other = next(iter({*seen} ^ {*shapes}), None)
        if other is not None:
            return f"it has values of shape {other}"
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
    nodes = [list(everywhere(program.nodes)) for program in programs]
    every = [list(_constants(program)) for program in programs]
    counts = {(len(own), len(all_)) for own, all_ in zip(every, nodes, strict=True)}
    if len(operations) > 1 or len(counts) > 1:
        raise Differs("operations are unlike")

    def fit(seen: Sequence[int]) -> Formula:
        found = fitter.fit(seen)
        if found is None:
            raise Differs(f"a number is {seen[0]} and {seen[-1]}")
        return found

    constants, numbers = set(), list[Number]()
    for alike in zip(*every, strict=True):
        values = [node.value for node in alike]
        if len(set(map(repr, values))) == 1:
            constants.add(values[0])
        else:
            numbers.append(number_of(values, alike[0].dtype, fit))
    shapes = [[node.shape for node in alike] for alike in zip(*nodes, strict=True)]
    if any(len({len(shape) for shape in alike}) > 1 for alike in shapes):
        raise Differs("shapes are unlike")
    found = tuple([tuple(map(fit, zip(*alike, strict=True))) for alike in shapes])
    return Likeness(operations.pop(), found, frozenset(constants), tuple(numbers))


def _constants(program: Program) -> Iterator[Constant]:
    return (node for node in everywhere(program.nodes) if isinstance(node, Constant))


def _operations(program: Program) -> frozenset[str]:
    nodes = everywhere(program.nodes)
    return frozenset(
        [node.op for node in nodes if isinstance(node, Apply | Reduce | Along)]
    )

"""The oracle: a program evaluated by NumPy in float64, sharing nothing with emitters.

float32 and float64 values are carried unrounded in float64 and rounded only where
the program casts; float16 and bfloat16 are rounded after every operation, as the
language says; integers are NumPy's, which wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program, loops
from steelyard_kernels.monoids import ALONG, MONOIDS, segments
from steelyard_kernels.ops import OPERATIONS

Values: TypeAlias = NDArray[Any]

_INTEGERS: Final[dict[str, Callable[[Values, Values], Values]]] = {
    "add": np.add,
    "mul": np.multiply,
    "div": np.floor_divide,
    "rem": np.remainder,
}


def evaluate(
    program: Program,
    arrays: Sequence[Values],
    scalars: Mapping[str, float] | None = None,
) -> dict[str, Values]:
    """Return every output but hidden ones by name, floats in float64.

    `arrays` are the inputs in the order of the signature, as a launch takes them.
    """
    values = evaluate_nodes(program, arrays, scalars or {})
    return {
        output.name: values[output.value.number].copy()
        for output in program.outputs
        if not output.hidden
    }


def evaluate_nodes(
    program: Program, arrays: Sequence[Values], scalars: Mapping[str, float]
) -> dict[int, Values]:
    """Return the value of every node by its number, loops' bodies left out.

    What differs between chains has them as its first axis.
    """
    oracle = Oracle(program.chains, arrays, scalars)
    with np.errstate(all="ignore"):  # the IEEE result is the answer
        oracle.evaluate(program.nodes)
    return {
        node.number: oracle.values[node.number].reshape(
            (-1, *node.shape) if oracle.values[node.number].shape[1] > 1 else node.shape
        )
        for node in program.nodes
    }


def widen(array: Values, dtype: DType) -> Values:
    """Return an array of a dtype as it is carried: floats as float64."""
    return np.asarray(array).astype(_carrier(dtype).numpy)


AHEAD: Final = 1 << 16  # values of one element that are evaluated at once


class Oracle:
    """The values of nodes, each as (iterations, chains, *shape).

    The first axis is 1, or as many iterations of a loop as are evaluated at once:
    those nodes of a body that depend on no carry. The second is 1 where all chains
    agree.
    """

    def __init__(
        self,
        chains: int,
        arrays: Sequence[Values],
        scalars: Mapping[str, float],
    ) -> None:
        self.values: dict[int, Values] = {}
        self._chains = chains
        self._arrays = arrays
        self._scalars = scalars
        self._results: dict[int, list[Values]] = {}  # of loops, by their ids

    def evaluate(self, nodes: Iterable[Node]) -> None:
        """Evaluate nodes, operands first."""
        for node in nodes:
            self.values[node.number] = self._value(node)

    def _value(self, node: Node) -> Values:  # noqa: C901, PLR0912 - one case a production
        args = [self.values[arg.number] for arg in expr.operands(node)]
        match node:
            case expr.Input():
                return widen(self._arrays[node.index], node.dtype)[None, None]
            case expr.Scalar():
                given = widen(np.asarray(self._scalars[node.name]), node.dtype)
                return given[None, None]
            case expr.Constant():
                return widen(np.asarray(node.value), node.dtype)[None, None]
            case expr.Apply():
                aligned = [_aligned(arg, len(node.shape)) for arg in args]
                dtype = node.args[-1].dtype
                found = OPERATIONS[node.op].evaluate(dtype, *aligned)
                return _rounded(found, node.dtype)
            case expr.Broadcast():
                arg = _aligned(args[0], len(node.shape))
                return np.broadcast_to(arg, (*arg.shape[:2], *node.shape))
            case expr.Reduce():
                axes = tuple(place + 2 for place in node.axes)
                reduced = MONOIDS[node.op].oracle
                result = reduced(args[0], axis=axes, keepdims=node.keepdims)
                return _rounded(np.asarray(result), node.dtype)
            case expr.View():
                return _view(args[0], node)
            case expr.Gather():
                return _gathered(args[0], args[1], node)
            case expr.Along():
                return _rounded(_lines(args[0], node), node.dtype)
            case expr.Handed():
                return _handed(args[0], node)
            case expr.Merge():
                order = np.argsort(args[0], axis=-1, kind="stable").astype(np.int32)
                return order.reshape((*order.shape[:2], *node.shape))
            case expr.Segments():
                sums: Values = segments(args[0], args[1], node.axis + 2)
                return sums
            case expr.Cast():
                return _cast(args[0], node.dtype)
            case expr.Arange():
                return np.arange(node.shape[0], dtype=node.dtype.numpy)[None, None]
            case expr.Reshape():
                return args[0].reshape((*args[0].shape[:2], *node.shape))
            case expr.Dot():
                return _rounded(_dot(*args), node.dtype)
            case expr.Row():
                return _row(*args)
            case expr.Chain():
                mine: Values = args[0][0]
                return mine
            case expr.Chains():
                every = (1, self._chains, *node.shape[1:])
                return np.broadcast_to(args[0], every)[None]
            case expr.Result():
                return self._loop(node.loop)[node.place]
            case _:
                raise CompilerBug(f"reference: no value for {node}")

    def _loop(self, loop: expr.Loop) -> list[Values]:
        """Return the results of a loop, all of which are evaluated with the first."""
        key = id(loop)
        if key not in self._results:
            self._results[key] = Iterations(self, loop).run()
        return self._results[key]

    def forget(self, loops: Iterable[expr.Loop]) -> None:
        """Have loops evaluated again: their surroundings go on to an iteration."""
        for loop in loops:
            self._results.pop(id(loop), None)


class Iterations:
    """One loop, evaluated one iteration after another."""

    def __init__(self, oracle: Oracle, loop: expr.Loop) -> None:
        self._oracle, self._values, self._loop = oracle, oracle.values, loop
        self._ahead, self._carried = self._sorted()
        self._inner = loops(loop.nodes)
        length = loop.length
        self._lengths = (  # one, or each chain's
            np.array([[length]])
            if isinstance(length, int)
            else self._values[length.number]
        )
        self._length = int(self._lengths.max())
        self._carries = [self._values[init.number] for init in loop.inits]
        self._stacks: list[list[Values]] = [[] for _ in loop.stacked]

    def _sorted(self) -> tuple[list[Node], list[Node]]:
        """Return the body's nodes that need no carry, and the others.

        Those are many iterations at once, unless the loop itself is in such a part.
        """
        free = [self._values[node.number] for node in self._loop.free]
        alone = all(len(value) == 1 for value in free)
        carried = {carry.number for carry in self._loop.carries}
        ahead: list[Node] = []
        rest: list[Node] = []
        for node in self._loop.nodes:
            reads = {arg.number for arg in expr.operands(node)}
            if alone and not reads & carried and not isinstance(node, expr.Result):
                ahead.append(node)
            else:
                carried.add(node.number)
                rest.append(node)
        return ahead, rest

    def run(self) -> list[Values]:
        """Return the carries at the end and what was stacked."""
        block = max(1, AHEAD // max(1, self._chains()))
        for first in range(0, max(0, self._length), block):
            index = np.arange(first, min(first + block, self._length))
            self._values[self._loop.index.number] = index[:, None]
            self._oracle.evaluate(self._ahead)
            ahead = [self._loop.index, *self._ahead]
            kept = {node.number: self._values[node.number] for node in ahead}
            if not self._block(kept, len(index)):
                break
        return [*self._carries, *map(self._stacked, range(len(self._stacks)))]

    def _chains(self) -> int:
        shapes = [self._values[node.number].shape for node in self._loop.free]
        return int(max([1, *(shape[1] for shape in shapes)]))

    def _block(self, kept: Mapping[int, Values], count: int) -> bool:
        """Run iterations whose values ahead are kept; say whether to go on."""
        for place in range(count):
            for number, value in kept.items():
                self._values[number] = value if len(value) == 1 else value[place][None]
            if not self._iteration():
                return False
        return True

    def _iteration(self) -> bool:
        """Run one iteration for whom the condition holds; say whether for any."""
        loop, values = self._loop, self._values
        for carry, value in zip(loop.carries, self._carries, strict=True):
            values[carry.number] = value
        self._oracle.forget(self._inner)
        self._oracle.evaluate(self._carried)
        goes_on: Values | None = None
        if loop.condition is not None or self._lengths.size > 1:
            goes_on = values[loop.index.number] < self._lengths
            if loop.condition is not None:
                goes_on = goes_on & values[loop.condition.number]
            if not goes_on.any():
                return False
        self._carries = [
            _chosen(goes_on, values[node.number], old)
            for node, old in zip(loop.nexts, self._carries, strict=True)
        ]
        for stack, node in zip(self._stacks, loop.stacked, strict=True):
            stack.append(values[node.number])
        return True

    def _stacked(self, place: int) -> Values:
        """Return one stacked result; zero in rows of iterations that did not run."""
        node, stack = self._loop.stacked[place], self._stacks[place]
        lead = (
            max([1, *(v.shape[0] for v in stack)]),
            max([1, *(v.shape[1] for v in stack)]),
        )
        whole = np.zeros((*lead, self._length, *node.shape), _carrier(node.dtype).numpy)
        for row, value in enumerate(stack):
            whole[:, :, -1 - row if self._loop.reverse else row] = value
        return whole


def _chosen(goes_on: Values | None, new: Values, old: Values) -> Values:
    if goes_on is None:
        return new
    return np.where(_aligned(goes_on, new.ndim - 2), new, old)


def _aligned(value: Values, axes: int) -> Values:
    """Return a value with as many axes behind the two first, ones in front."""
    lead, shape = value.shape[:2], value.shape[2:]
    return value.reshape((*lead, *(1,) * (axes - len(shape)), *shape))


def _dot(a: Values, b: Values) -> Values:
    if a.ndim == 3:  # one vector in each iteration and chain
        row: Values = np.matmul(a[:, :, None, :], b)[:, :, 0, :]
        return row
    ones = (1,) * (a.ndim - b.ndim)
    rows: Values = np.matmul(a, b.reshape((*b.shape[:2], *ones, *b.shape[2:])))
    return rows


def _view(value: Values, node: expr.View) -> Values:
    """Return the elements at a view's places; zero where these lie outside."""
    places = np.ogrid[tuple(map(slice, node.shape))]
    found, inside = [], np.array(True)
    for index, extent in zip(node.index, node.arg.shape, strict=True):
        at = index.evaluate(places, np.asarray, _INTEGERS.__getitem__)
        at = np.asarray(0 if at is None else at)
        inside = inside & (at >= 0) & (at < extent)
        found.append(np.clip(at, 0, max(extent - 1, 0)))
    if 0 in node.arg.shape:
        return np.zeros((*value.shape[:2], *node.shape), value.dtype)
    every = (slice(None), slice(None))
    taken = value[every + tuple(np.broadcast_arrays(*found))]
    taken = _aligned(taken, len(node.shape))
    whole = np.broadcast_to(taken, (*value.shape[:2], *node.shape))
    return np.where(inside, whole, np.zeros((), value.dtype))


def _gathered(value: Values, which: Values, node: expr.Gather) -> Values:
    """Return the elements at computed places, for each iteration and chain."""
    lead = np.broadcast_shapes(value.shape[:2], which.shape[:2])
    every = np.broadcast_to(value, (*lead, *value.shape[2:]))
    chosen = np.broadcast_to(which, (*lead, *node.shape))
    if not chosen.size:  # NumPy refuses place 0 of an axis without any
        return np.empty(chosen.shape, value.dtype)
    ones = (1,) * len(node.shape)
    first, second = (
        x.reshape((*x.shape, *ones)) for x in np.ogrid[: lead[0], : lead[1]]
    )
    places = np.ogrid[tuple(map(slice, node.shape))]
    found = [
        index.evaluate(places, np.asarray, _INTEGERS.__getitem__)
        for index in node.index
    ]
    at = [np.asarray(0 if each is None else each) for each in found]
    at[node.place] = chosen
    taken: Values = every[(first, second, *at)]
    return taken


def _lines(value: Values, node: expr.Along) -> Values:
    """Return a function of whole lines, which are turned round for those in reverse."""
    axis = node.axis + 2
    turned = np.flip(value, axis) if node.reverse else value
    found: Values = ALONG[node.op].oracle(turned, axis=axis)
    return np.flip(found, axis) if node.reverse else found


def _handed(value: Values, node: expr.Handed) -> Values:
    """Return the totals before each element; of the first one's nothing is taken in."""
    axis, row = node.axis + 2, ALONG[node.op]
    first = -1 if node.reverse else 0
    turned = np.flip(value, axis) if node.reverse else value
    found: Values = np.roll(row.oracle(turned, axis=axis), 1, axis)
    found = np.flip(found, axis) if node.reverse else found
    np.moveaxis(found, axis, 0)[first] = MONOIDS[row.total].neutral(node.dtype)
    return found


def _row(value: Values, index: Values) -> Values:
    lead = np.broadcast_shapes(value.shape[:2], index.shape)
    every = np.broadcast_to(value, (*lead, *value.shape[2:]))
    at = np.broadcast_to(index, lead)
    rows: Values = every[(*np.ogrid[: lead[0], : lead[1]], at)]
    return rows


def _carrier(dtype: DType) -> DType:
    return dtypes.float64 if dtype.kind == "float" else dtype


def _rounded(values: Values, dtype: DType) -> Values:
    """Round what an operation gave: halves always."""
    halves = dtype in dtypes.HALVES or dtype.kind == "int"
    return _cast(values, dtype) if halves else values


def _cast(values: Values, dtype: DType) -> Values:
    return widen(dtypes.rounded(values, dtype), dtype)

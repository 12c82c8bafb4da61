"""What a traced program may give: the oracle's walk, over intervals instead of numbers.

Floats and bools are arrays of pairs, so that whatever only moves values is the oracle's
own code; every rounding is `intervals`', which derives it. Integers are exact.
"""

from __future__ import annotations

from math import prod

import intervals
import numpy as np
from intervals import Near

from steelyard_kernels import dtypes, reference
from steelyard_kernels.expression.expr import (
    Along,
    Apply,
    Cast,
    Dot,
    Reduce,
    Segments,
    loops,
    operands,
)
from steelyard_kernels.monoids import ALONG
from steelyard_kernels.ops import OPERATIONS

FLOAT = np.dtype([("lo", np.longdouble), ("hi", np.longdouble), ("wild", bool)])
LOGICAL = {  # by what is done to the bits of a bool
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "not_equal",
    "bitwise_invert": "logical_not",
}
BOOL = np.dtype([("lo", bool), ("hi", bool), ("wild", bool)])


def expected(program, arrays, scalars=None):
    """Return, by name, the interval of each output that a caller gets."""
    oracle = Oracle(program.chains, arrays, scalars or {})
    with np.errstate(all="ignore"):
        oracle.evaluate(program.nodes)
    found = {}
    for output in program.outputs:
        value = oracle.values[output.value.number]
        lead = (-1,) if value.shape[1] > 1 else ()
        whole = value.reshape((*lead, *output.value.shape))
        if not output.hidden:
            found[output.name] = near(whole, output.value.dtype)
    return found


def near(value, dtype):
    """Return the interval that a value of the walk is."""
    if value.dtype.names:
        return Near(dtype.name, *(value[name] for name in value.dtype.names))
    exact = value if dtype.kind == "float" else value.astype(dtype.numpy)
    exact = exact.astype(np.longdouble) if dtype.kind == "float" else exact
    return Near(dtype.name, exact, exact, np.zeros(exact.shape, bool))


def pairs(found):
    """Return an interval as an array of the walk."""
    if dtypes.of(found.dtype).kind == "int":
        assert np.array_equal(found.lo, found.hi), "no integer: choose other data"
        return np.asarray(found.lo)
    kind = BOOL if found.dtype == "bool" else FLOAT
    made = np.empty(found.lo.shape, kind)
    for name in kind.names:
        made[name] = getattr(found, name)
    return made


class Oracle(reference.Oracle):
    """The reference's walk, with intervals for what it rounds."""

    def _value(self, node):
        args = [self.values[arg.number] for arg in operands(node)]
        kinds = {node.dtype.kind, *(arg.dtype.kind for arg in operands(node))}
        if isinstance(node, Reduce | Dot) and kinds != {"int"}:
            return pairs(_reduced(node, args))
        if isinstance(node, Segments):
            return pairs(_segments(node, near(args[0], node.dtype), args[1]))
        totals = isinstance(node, Along) and ALONG[node.op].total
        if totals and kinds != {"int"}:
            total, value = ALONG[node.op].total, near(args[0], node.dtype)
            axis = node.axis + 2
            return pairs(intervals.running(total, value, axis, back=node.reverse))
        if isinstance(node, Apply) and kinds != {"int"}:
            lead = [reference._aligned(arg, len(node.shape)) for arg in args]
            given = [near(a, x.dtype) for a, x in zip(lead, node.args, strict=True)]
            return pairs(_applied(node.op, node.dtype, *given))
        if isinstance(node, Cast):
            return pairs(intervals.cast(near(args[0], node.arg.dtype), node.dtype.name))
        value = super()._value(node)
        if node.dtype.kind != "int" and not value.dtype.names:
            return pairs(near(value, node.dtype))
        return value

    def _loop(self, loop):
        """Run a loop's iterations one by one."""
        if id(loop) in self._results:
            return self._results[id(loop)]
        lengths = np.asarray(loop.length)[None, None]
        if not isinstance(loop.length, int):
            lengths = self.values[loop.length.number]
        carries = [self.values[init.number] for init in loop.inits]
        rows = []
        for turn in range(int(lengths.max())):
            self.values[loop.index.number] = np.array([[turn]])
            for carry, value in zip(loop.carries, carries, strict=True):
                self.values[carry.number] = value
            self.forget(loops(loop.nodes))
            self.evaluate(loop.nodes)
            goes_on = turn < lengths
            if loop.condition is not None:
                asked = self.values[loop.condition.number]
                assert (asked["lo"] == asked["hi"]).all(), "choose other data"
                goes_on = goes_on & asked["lo"]
            if not goes_on.any():
                break
            nexts = [self.values[node.number] for node in loop.nexts]
            carries = [
                reference._chosen(goes_on, *both)
                for both in zip(nexts, carries, strict=True)
            ]
            rows.append([self.values[node.number] for node in loop.stacked])
        found = [*carries, *_stacks(loop, rows)]
        self._results[id(loop)] = found
        return found


def _stacks(loop, rows):
    """Return the rows of each stacked value; zeros where there are none."""
    for place, node in enumerate(loop.stacked):
        every = [row[place] for row in rows]
        lead = np.broadcast_shapes((1, 1), *(value.shape[:2] for value in every))
        kind = {"float": FLOAT, "bool": BOOL}.get(node.dtype.kind, node.dtype.numpy)
        whole = np.zeros((*lead, loop.length, *node.shape), kind)
        for row, value in enumerate(every):
            whole[:, :, -1 - row if loop.reverse else row] = value
        yield whole


def _reduced(node, args):
    """Return a reduction, or a product of matrices."""
    given = [near(a, x.dtype) for a, x in zip(args, operands(node), strict=True)]
    if isinstance(node, Dot):
        a, b = given
        b = b.each(lambda x: x.reshape((*x.shape[:2], *_ones(a, b), *x.shape[2:])))
        return intervals.dot(a, b)
    axes = [axis + 2 for axis in node.axes]  # moved to the end, as one
    places = range(-len(axes), 0)
    rest = [n for axis, n in enumerate(given[0].shape) if axis not in axes]
    flat = given[0].each(
        lambda x: np.moveaxis(x, axes, places).reshape(
            (*rest, prod(node.arg.shape[a] for a in node.axes))
        )
    )
    found = intervals.reduce(node.op, flat, keepdims=False)
    return found.each(lambda x: x.reshape((*x.shape[:2], *node.shape)))


def _segments(node, value, starts):
    """Return the sums of all values for each segment, zeros for those outside of it."""
    axis = node.axis + 2
    number = np.arange(node.arg.shape[node.axis])
    ends = (starts[..., k : k + starts.shape[-1] - 1, None] for k in (0, 1))
    low, high = (
        x.reshape(
            (
                *x.shape[:axis],
                *(1,) * (len(node.shape) - 1 - node.axis),
                *x.shape[axis:],
            )
        )
        for x in ends
    )
    flat = value.each(
        lambda x: np.where(
            (low <= number) & (number < high),
            np.moveaxis(x, axis, -1)[..., None, :],
            np.zeros((), x.dtype),
        )
    )
    found = intervals.reduce("sum", flat, keepdims=False)
    return found.each(lambda x: np.moveaxis(x, -1, axis))


def _ones(a, b):
    return (1,) * (len(a.shape) - len(b.shape) + 1)


def _applied(op, dtype, *given):
    if given[-1].dtype == "bool":
        op = LOGICAL.get(op, op)
    if op != "bitcast":
        return intervals.apply(op, *given)
    source = dtypes.of(given[0].dtype)
    exact = given[0].lo.astype(float) if source.kind == "float" else given[0].lo
    return near(OPERATIONS[op].evaluate(source, exact), dtype)

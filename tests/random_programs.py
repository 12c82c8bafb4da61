"""Random programs: each a list of steps, for the compiler and for `intervals` alike.

`generated(seed)` draws one. `Program.function()` is the Python function that a user would
write, `Program.expected(arrays)` what its outputs may be. A value of a program is known
by its place in a list; a loop's body goes on from the list outside, its own carries and
rows behind that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import intervals
import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.vmap import vmap

EXTENTS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 100)
SMALL = (1, 1, 2, 3, 3, 4, 5, 7, 8, 9)
INTEGERS = tuple(dtype.name for dtype in dtypes.INTEGERS)
DTYPES = (
    *("float32", "float32", "float32", "float64", "float16", "bfloat16") * 3,
    *INTEGERS,
)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, 1.0)
NUMBERS = (0.5, 2.0, -1.25, 3.0, 0.0)
FLOAT_1 = (
    *("negative", "abs", "square", "sqrt", "rsqrt", "exp", "log", "expm1", "log1p"),
    *("tanh", "sigmoid", "softplus", "sin", "cos", "floor"),
)
FLOAT_2 = ("add", "subtract", "multiply", "multiply", "divide", "maximum", "minimum")
INT_1 = ("negative", "abs", "square")
INT_2 = (
    *("add", "subtract", "multiply", "maximum", "minimum"),
    *intervals.DIVIDED,
    *intervals.BITS,
)
BOOL_2 = tuple(intervals.LOGICAL)
REDUCED = ("sum", "mean", "max", "min", "var")


@dataclass
class Block:
    """Steps behind values that are given: of (shape, dtype) each."""

    kinds: list
    steps: list = field(default_factory=list)

    def add(self, kinds, *step):
        """Append a step that gives values of these kinds; return the first's place."""
        self.steps.append(step)
        self.kinds += kinds
        return len(self.kinds) - 1

    def of(self, test):
        """Return the places of values whose kind passes a test."""
        return [place for place, kind in enumerate(self.kinds) if test(*kind)]


@dataclass
class Program:
    """Parameters by name, a block over them, and what it returns by name.

    `axes` has, under vmap, whether each parameter is mapped; the block is of one chain.
    """

    seed: int
    names: list
    shapes: list
    dtypes: list
    block: Block
    outputs: dict
    axes: list | None = None

    def function(self):
        """Return the function that a kernel is made of."""

        def body(*arrays):
            env = run(self.block, list(arrays), Traced)
            return {name: env[place] for name, place in self.outputs.items()}

        mapped = body
        if self.axes is not None:
            mapped = vmap(body, [0 if axis else None for axis in self.axes])
        source = f"lambda {', '.join(self.names)}: mapped({', '.join(self.names)})"
        made = eval(source, {"mapped": mapped})
        made.__name__ = f"random_{self.seed}"
        return made

    def expected(self, arrays):
        """Return the interval of each output by name."""
        values = [intervals.of(a, d) for a, d in zip(arrays, self.dtypes, strict=True)]
        if self.axes is None:
            env = run(self.block, values, Exact)
            return {name: env[place] for name, place in self.outputs.items()}
        count = next(s[0] for s, a in zip(self.shapes, self.axes, strict=True) if a)
        chains = []
        for chain in range(count):
            own = [
                value.each(lambda x, c=chain: x[c]) if axis else value
                for value, axis in zip(values, self.axes, strict=True)
            ]
            chains.append(run(self.block, own, Exact))
        return {
            name: intervals.stacked([env[place] for env in chains], chains[0][place])
            for name, place in self.outputs.items()
        }

    def arrays(self):
        """Return what it is run on."""
        rng = np.random.default_rng(self.seed)
        special = rng.random() < 0.2
        return [
            values(rng, shape, dtype, special=special)
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def __str__(self):
        given = zip(self.names, self.dtypes, self.shapes, strict=True)
        lines = [
            f"program {self.seed}: " + ", ".join(f"{n} {d}{s}" for n, d, s in given)
        ]
        lines += [f"  vmap {self.axes}"] if self.axes is not None else []
        lines += _shown(self.block, len(self.names), "  ")
        return "\n".join([*lines, f"  return {self.outputs}"])


def _shown(block, first, indent):
    lines, place = [], first
    for kind, *rest in block.steps:
        plain = [each for each in rest if not isinstance(each, Block)]
        lines.append(f"{indent}{place} = {kind} {plain}")
        for inner in rest:
            if isinstance(inner, Block):
                own = len(inner.kinds) - sum(map(_results, inner.steps))
                lines += _shown(inner, own, indent + "  ")
        place += _results((kind, *rest))
    return lines


def _results(step):
    kind, *rest = step
    if kind == "scan":
        return len(rest[3]) + len(rest[4])
    return len(rest[2]) if kind in {"fori", "while"} else 1


def values(rng, shape, dtype, *, special):
    """Return random values."""
    known = dtypes.of(dtype)
    if known.kind == "int":
        ends = known.smallest, known.largest
        return np.asarray(rng.integers(*ends, shape, dtype, endpoint=True))
    wide = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape))
    if special and wide.size:
        wide = np.where(rng.random(shape) < 0.15, rng.choice(SPECIAL, shape), wide)
    return dtypes.rounded(wide, known)


class Traced:
    """What steps mean to the compiler."""

    reduce = staticmethod(lambda op, x, keep: getattr(xp, op)(x, -1, keepdims=keep))
    cast = staticmethod(lambda x, dtype: x.astype(dtype))
    transpose = staticmethod(lambda x: x.T)
    reshape = staticmethod(xp.reshape)
    broadcast = staticmethod(xp.broadcast_to)
    dot = staticmethod(lambda a, b: a @ b)
    running = staticmethod(lambda x, axis: xp.cumulative_sum(x, axis=axis))
    sort = staticmethod(lambda x, axis, down: xp.sort(x, axis=axis, descending=down))
    row = staticmethod(lambda x, index: x[index])
    part = staticmethod(lambda x, rows: x[rows])
    pad = staticmethod(lambda x, by: xp.pad(x, (by, *[(0, 0)] * (x.ndim - 1))))

    @staticmethod
    def apply(op, *args):
        """Return an operation of the namespace."""
        return getattr(xp, op)(*args)

    @staticmethod
    def number(op, x, number, *, left):
        """Return an operation with a Python number."""
        return getattr(xp, op)(*((number, x) if left else (x, number)))

    @staticmethod
    def scan(body, inits, xs, reverse, unroll):
        """Return carries and what is stacked."""
        ends, rows = xp.scan(body, inits, xs, reverse=reverse, unroll=unroll)
        return [*ends, *rows]

    @staticmethod
    def fori(body, inits, low, high):
        """Return carries."""
        return list(xp.fori_loop(low, high, lambda i, c: body(c, (i,))[0], inits))

    @staticmethod
    def count(body, inits, limit, most):
        """Return carries of a loop until its counter, the first, is at a limit."""
        return list(
            xp.while_loop(lambda c: c[0] < limit, lambda c: body(c, ())[0], inits, most)
        )


class Exact:
    """What steps mean to the oracle."""

    apply = staticmethod(intervals.apply)
    reduce = staticmethod(lambda op, x, keep: intervals.reduce(op, x, keepdims=keep))
    cast = staticmethod(intervals.cast)
    transpose = staticmethod(lambda x: x.each(lambda a: np.swapaxes(a, -1, -2)))
    reshape = staticmethod(lambda x, shape: x.each(lambda a: a.reshape(shape)))
    broadcast = staticmethod(lambda x, s: x.each(lambda a: np.broadcast_to(a, s)))
    dot = staticmethod(intervals.dot)
    running = staticmethod(lambda x, axis: intervals.running("sum", x, axis))
    part = staticmethod(lambda x, rows: x.each(lambda a: a[rows]))
    pad = staticmethod(
        lambda x, by: x.each(lambda a: np.pad(a, (by, *[(0, 0)] * (a.ndim - 1))))
    )

    @staticmethod
    def sort(x, axis, down):
        """Return numbers that are known exactly in order, NaN above all."""
        assert np.array_equal(x.lo, x.hi, equal_nan=x.lo.dtype.kind == "f")
        found = x.each(lambda a: np.sort(a, axis))
        return found.each(lambda a: np.flip(a, axis)) if down else found

    @staticmethod
    def row(x, index):
        """Return a row; an index of the program is held within the array."""
        if not isinstance(index, int):
            index = int(np.clip(index.lo, -x.shape[0], x.shape[0] - 1))
        return x.each(lambda a: np.asarray(a[index]))

    @staticmethod
    def number(op, x, number, *, left):
        """Return an operation with a Python number, of x's dtype."""
        wide = (
            intervals.Wide(number)
            if x.dtype in intervals.FLOATS
            else x.lo.dtype.type(number)
        )
        side = np.asarray(wide)
        other = intervals.Near(x.dtype, side, side, np.asarray(False))
        return intervals.apply(op, *((other, x) if left else (x, other)))

    @staticmethod
    def scan(body, inits, xs, reverse, unroll):
        """Return carries and what is stacked, row by row."""
        carry, kept = inits, []
        count = xs[0].shape[0]
        turns = range(count)
        for i in reversed(turns) if reverse else turns:
            carry, made = body(carry, tuple(Exact.row(x, i) for x in xs))
            kept.append(made)
        kept = kept[::-1] if reverse else kept
        return [
            *carry,
            *(intervals.stacked(rows, rows[0]) for rows in zip(*kept, strict=True)),
        ]

    @staticmethod
    def fori(body, inits, low, high):
        """Return carries."""
        for i in range(low, high):
            inits = body(inits, (intervals.of(np.asarray(i), "int64"),))[0]
        return list(inits)

    @staticmethod
    def count(body, inits, limit, most):
        """Return carries of a loop until its counter, the first, is at a limit."""
        for _ in range(most):
            if not inits[0].lo < limit:
                break
            inits = body(inits, ())[0]
        return list(inits)


def run(block, env, backend):  # noqa: C901 - one case a kind of step
    """Return all values of a block behind those it is given."""
    env = list(env)

    def inner(body, nexts, rows=()):
        def iteration(carry, x):
            made = run(body, [*env, *carry, *x], backend)
            return tuple(made[k] for k in nexts), tuple(made[k] for k in rows)

        return iteration

    for kind, *rest in block.steps:
        if kind == "apply":
            env.append(backend.apply(rest[0], *(env[k] for k in rest[1])))
        elif kind == "number":
            env.append(backend.number(rest[0], env[rest[1]], rest[2], left=rest[3]))
        elif kind == "reduce":
            env.append(backend.reduce(rest[0], env[rest[1]], rest[2]))
        elif kind == "dot":
            env.append(backend.dot(env[rest[0]], env[rest[1]]))
        elif kind == "index":
            env.append(backend.row(env[rest[0]], env[rest[1]]))
        elif kind == "scan":
            body, inits, xs, nexts, rows, reverse, unroll = rest
            turn = inner(body, nexts, rows)
            given = tuple(env[k] for k in inits), tuple(env[k] for k in xs)
            env += backend.scan(turn, *given, reverse, unroll)
        elif kind == "fori":
            body, inits, nexts, low, high = rest
            start = tuple(env[k] for k in inits)
            env += backend.fori(inner(body, nexts), start, low, high)
        elif kind == "while":
            body, inits, nexts, limit, most = rest
            start = tuple(env[k] for k in inits)
            env += backend.count(inner(body, nexts), start, limit, most)
        else:
            env.append(getattr(backend, kind)(env[rest[0]], *rest[1:]))
    return env


def joined(*shapes):
    """Return the shape that shapes broadcast to, or None."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def size(shape):
    """Return the number of elements."""
    return prod(shape)

"""Attention: which nests are softmax(q @ k.T) @ v, for tensor cores.

Scores times a number, weights and sums are of float32 whatever the program rounds them
to on the way: only the weights are rounded to halves, before they multiply the values.
Logits that are made of scores in another way are computed as the program says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, prod
from typing import Final

from steelyard_kernels.dtypes import float32
from steelyard_kernels.expression.expr import Apply, Arange, Cast, Constant, Reduce
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import Contraction, factors_of, reached
from steelyard_kernels.schedule.contraction import (
    MOST_BATCH,
    UNIT,
    Factor,
    Product,
    array_of,
    factor_of,
)

NO_SCORE: Final = -1e30  # of a key that is not seen, or less: its weight is zero


@dataclass(frozen=True, eq=False)
class Attention(Product):
    """A nest that weighs values by the softmax of what is made of scores.

    `axes` are those of the batch, the queries, the values' columns and the keys; `depth`
    is that of the scores' sums, and scores are `times` those of the arrays. `logits` are
    what the softmax is taken of: the scores times `scale` (None: anything else), of keys
    up to `ahead` of the query's own number (None: of all). `safe`: a query that sees no
    key, whose logits are all -inf, comes to zeros, not to NaN.
    """

    queries: Factor
    depth: int
    scores: Value
    logits: Value
    scale: float | None
    ahead: int | None
    times: float
    safe: bool

    @property
    def keys(self) -> Factor:
        """How the keys lie."""
        return self.rows

    @cached_property
    def between(self) -> tuple[Value, ...]:
        """The values that are made of the scores, operands first."""
        if self.scale is not None:
            return ()
        return reached(self.nest, [self.logits], {self.scores.number})

    @property
    def key_lanes(self) -> int:
        """Keys whose logits a thread computes at a time."""
        values, j = self.between, self.axes[3]
        read = [v.offset for v in values if v.source is not None]
        guarded = any(v.guards or v.step for v in values)
        fits = all(self.lies(offset, 2, j) for offset in read)
        return 1 if guarded or self.extents[3] % 2 or not fits else 2


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def attention_of(nest: Nest) -> Attention | str:
    """Return the attention that a nest is, or why it is none for tensor cores."""
    reductions = [value for value in nest.values if value.over]
    if len(reductions) != 4 or any(len(value.over) != 1 for value in reductions):
        return "has not two sums of products and a softmax between them"
    total = reductions[-1]
    factors = _factors(nest, total)
    values = [v for v in map(array_of, factors) if v is not None]
    weights = [v for v in factors if array_of(v) is None]
    if len(values) != 1 or len(weights) != 1:
        return "weighs no array of halves"
    (value,), (weight,) = values, weights
    dtype, rounded = value.node.dtype, next(iter(weight.args.values()))
    if not isinstance(weight.node, Cast) or rounded.node.dtype is not dtype:
        return f"weighs {dtype} by {weight.node.dtype}; round the weights to {dtype}"
    softmax = _softmax(_plain(weight), total.over)
    if softmax is None:
        return "weighs values by no softmax of scores"
    logits, _ = softmax
    found = _attention(nest, (total, weight, value), reductions[0], softmax)
    if isinstance(found, str):
        return found
    made = reached(nest, [logits], {found.scores.number})
    if any(v.over for v in (*found.sums.behind, *made)):
        return "reads a softmax's largest scores or their sums besides"
    return found


def _attention(
    nest: Nest,
    weighed: tuple[Value, Value, Value],
    scores: Value,
    softmax: tuple[Value, bool],
) -> Attention | str:
    (total, weight, value), (logits, safe) = weighed, softmax
    factors = [_unscaled(v) for v in _factors(nest, scores)]
    arrays = [array for array, _ in factors if array is not None]
    if len(arrays) != 2:
        return "scores what is computed, not two arrays of halves"
    (j,), (depth,), (a, b) = total.over, scores.over, arrays
    query, key = (a, b) if j in b.axes else (b, a)
    dtypes = {v.node.dtype for v in (query, key, value)}
    own = query.axes - key.axes - value.axes - {j}
    columns = total.axes - query.axes
    if len(dtypes) > 1 or j in query.axes or not own or len(columns) != 1:
        return (
            "has not queries, keys and values of one type, each with an axis of its own"
        )
    i = max(own, key=lambda k: (nest.extents[k], k))
    (n,) = columns
    batch = tuple(k for k in range(nest.space) if k not in {i, n})
    every = set(range(nest.space))
    if len(batch) > MOST_BATCH or any(o.offset.axes != every for o in nest.outputs):
        return f"has more than {MOST_BATCH} axes of a batch, or outputs of other shapes"
    lie = [
        factor_of(v, along, k, batch)
        for v, along, k in ((query, i, depth), (key, j, depth), (value, n, j))
    ]
    for each in lie:
        if isinstance(each, str):
            return each
        if not each.bulk:
            return f"reads {each.source.name} by rows that begin at no {UNIT} bytes"
    asked, rows, cols = (each for each in lie if not isinstance(each, str))
    times = prod([number for _, number in factors])
    scale, ahead = _scaled(logits, scores, i, j)
    if (
        scale is not None and not 0 < scale * times < inf
    ):  # largest scores are no largest logits
        scale, ahead = None, None
    axes = batch, (i,), (n,), (j,)
    return Attention(
        Contraction(nest, total, total, float32, weight, value, *axes),
        value.node.dtype,
        (batch, i, n, j),
        rows,
        cols,
        asked,
        depth,
        scores,
        logits,
        scale,
        ahead,
        times,
        safe,
    )


def _factors(nest: Nest, reduction: Value) -> tuple[Value, ...]:
    """Return the two factors whose products a reduction adds up; none of another one."""
    found = factors_of(nest, reduction)
    return found[2] if found and found[1] is float32 else ()


def _plain(value: Value) -> Value:
    """Return a value without its roundings and widenings."""
    while isinstance(value.node, Cast) and value.source is None:
        (arg,) = value.args.values()
        if arg.node.dtype.kind != "float":
            break
        value = arg
    return value


def _made_by(value: Value, op: str) -> list[Value]:
    """Return the operands, without roundings, of an operation; none of another one."""
    node = value.node
    if not isinstance(node, Apply) or node.op != op or value.guards:
        return []
    return [_plain(value.args[arg.number]) for arg in node.args]


def _reduced(value: Value, op: str, over: tuple[int, ...]) -> Value | None:
    """Return what a reduction along axes is of; None for others."""
    node = value.node
    if not isinstance(node, Reduce) or node.op != op or value.over != over:
        return None
    return _plain(value.args[node.arg.number])


def _softmax(weight: Value, over: tuple[int, ...]) -> tuple[Value, bool] | None:
    """Return what a value is the softmax of, along axes; None if it is none.

    It is safe, with it, where nothing but -inf comes to zeros: the largest one is at
    least a number, and the sum at least 1, as it is of any other row.
    """
    power, *rest = (
        _made_by(weight, "divide") or _made_by(weight, "multiply") or [weight]
    )
    if isinstance(weight.node, Apply) and weight.node.op == "multiply" and rest:
        if power.over or _made_by(power, "divide"):
            power, rest = rest[0], [power]
        one, *rest = _made_by(rest[0], "divide") or [power]
        if not _is_number(one, 1.0):
            return None
    inner = _made_by(power, "exp")
    shifted = _made_by(inner[0], "subtract") if inner else []
    if not rest or not shifted:
        return None
    (total, least), (most, floor) = map(_at_least, (rest[0], shifted[1]))
    if _reduced(total, "sum", over) is not power:
        return None
    safe = least == 1.0 and -inf < floor <= float32.smallest
    if not safe and (least, floor) != (
        -inf,
        -inf,
    ):  # JAX's floor, with no value's largest
        return None
    return (shifted[0], safe) if _reduced(most, "max", over) is shifted[0] else None


def _at_least(value: Value) -> tuple[Value, float]:
    """Return what a value is the maximum of, and the number that it is at least."""
    args = _made_by(value, "maximum")
    for arg, other in zip(args, args[::-1], strict=True):
        if isinstance(arg.node, Constant):
            return other, float(arg.node.value)
    return value, -inf


def _is_number(value: Value, number: float) -> bool:
    return isinstance(value.node, Constant) and value.node.value == number


def _scaled(
    logits: Value, scores: Value, i: int, j: int
) -> tuple[float | None, int | None]:
    """Return what scores are multiplied by, and how far ahead keys are seen.

    None: logits are anything else; all keys are.
    """
    ahead: int | None = None
    masked = logits.node
    if isinstance(masked, Apply) and masked.op == "where":
        seen, inside, outside = (logits.args[arg.number] for arg in masked.args)
        fill = outside.node.value if isinstance(outside.node, Constant) else 0.0
        ahead = _ahead(seen, i, j)
        # Where a query sees no key, the fill is what counts.
        if ahead is None or fill > NO_SCORE or (ahead < 0 and fill != -inf):
            return None, None
        logits = _plain(inside)
    scale, value = 1.0, logits
    while value is not scores:
        times = _times(value)
        if times is None:
            return None, None
        value, scale = times[0], scale * times[1]
    return scale, ahead


def _times(value: Value) -> tuple[Value, float] | None:
    """Return a value and the number that it is multiplied by; None for what is not."""
    for op in ("multiply", "divide"):
        args = _made_by(value, op)
        if op == "multiply" and args and isinstance(args[0].node, Constant):
            args.reverse()
        if args and isinstance(args[1].node, Constant):
            number = float(args[1].node.value)
            if op == "divide":
                number = 1 / number if number else inf
            return args[0], number
    return None


def _unscaled(value: Value) -> tuple[Value | None, float]:
    """Return the array of halves that a value is a multiple of, and by how much."""
    array, scale = array_of(value), 1.0
    while array is None:
        times = _times(_plain(value))
        if times is None:
            return None, scale
        value, scale = times[0], scale * times[1]
        array = array_of(value)
    return array, scale


def _ahead(seen: Value, i: int, j: int) -> int | None:
    """Return what a condition adds to a query's number for its last key; None: another."""
    for op, sign, least in (
        ("greater_equal", 1, 0),
        ("greater", 1, 1),
        ("less_equal", -1, 0),
        ("less", -1, 1),
    ):
        sides = [_line(value) for value in _made_by(seen, op)]
        if sides and None not in sides:
            a, b = (side for side in sides if side is not None)
            line = (a + b * -1) * sign + -least
            if line + line.constant * -1 == axis(i) + axis(j) * -1:
                return line.constant
    return None


def _line(value: Value) -> Index | None:
    """Return the index that a value of 0, 1, 2, ... is, and numbers more."""
    if isinstance(value.source, Arange) and not (value.guards or value.step):
        return value.offset
    if isinstance(value.node, Constant):
        return Index(int(value.node.value))
    for op, sign in (("add", 1), ("subtract", -1)):
        sides = [_line(each) for each in _made_by(value, op)]
        if sides and None not in sides:
            a, b = (side for side in sides if side is not None)
            return a + b * sign
    return None

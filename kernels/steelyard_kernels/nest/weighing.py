"""Which nests weigh values by a softmax of scores: softmax(q @ k.T) @ v, in parts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from math import inf
from typing import Final

from msgspec.structs import replace

from steelyard_kernels.dtypes import float32, rounded
from steelyard_kernels.expression.expr import Apply, Arange, Cast, Constant, Reduce
from steelyard_kernels.expression.indices import Index, axis
from steelyard_kernels.nest.axes import Nest, Stored, Value
from steelyard_kernels.nest.contraction import Contraction, factors_of, reached

FAR: Final = -1e3  # of keys that are not seen, or less: rarely more than those that are


@dataclass(frozen=True, eq=False)
class Weighing:
    """A nest that weighs values by the softmax of what is made of scores.

    `products` add up the scores, of queries and keys, `sums` the weighed values: their
    depth are the keys. `logits` are what the softmax is taken of: the scores times
    `scale` (None: anything else), of keys up to `ahead` of the query's own number (None:
    of all), and `fill` of the others, which weigh nothing unless it is about as much as
    the largest. `safe`: a query that sees no key, whose logits are all -inf, comes to
    zeros, not to NaN.
    """

    sums: Contraction
    products: Contraction
    logits: Value
    scale: float | None
    ahead: int | None
    fill: float
    safe: bool

    @property
    def scores(self) -> Value:
        """What the products of queries and keys come to."""
        return self.products.total

    @cached_property
    def between(self) -> tuple[Value, ...]:
        """The values that are made of the scores, operands first."""
        if self.scale is not None:
            return ()
        return reached(self.sums.nest, [self.logits], {self.scores.number})


@lru_cache(maxsize=2)  # a build asks for it to choose a schedule, then to lower
def weighing_of(nest: Nest) -> Weighing | str:
    """Return how a nest weighs values by a softmax of scores, or why it does not."""
    rows = [v for v in nest.values if v.over and max(v.axes, default=0) < nest.space]
    if len({v.over for v in rows}) > 1 and len({len(v.over) for v in rows}) == 1:
        extents = {nest.extents[v.over[0]] for v in rows}
        nest = together(nest, rows) if len(extents) == 1 else nest
    reductions = [value for value in nest.values if value.over]
    if not 3 <= len(reductions) <= 4 or any(len(v.over) != 1 for v in reductions):
        return "has not two sums of products and a softmax between them"
    several = [(each, factors_of(nest, each)) for each in reductions]
    found_of = [(each, factors) for each, factors in several if factors is not None]
    if len(found_of) != 2 or found_of[0][1][1] is not found_of[1][1][1]:
        return "has not two sums of products of floats"
    (scored, scores), (last, total) = found_of
    over = last.over
    divided = _divided(nest, total[0])
    found = [(each, _softmax(plain(each), over, divided)) for each in total[2]]
    (weight, softmax), (value, other) = sorted(found, key=lambda pair: pair[1] is None)
    if softmax is None or other is not None:
        return "weighs values by no softmax of scores"
    (logits, safe, later), (a, b), (j,) = softmax, scores[2], over
    query, key = (a, b) if j in b.axes else (b, a)
    own = query.axes - key.axes - value.axes - {j}
    columns = total[0].axes - query.axes
    if j in query.axes or not own or len(columns) != 1:
        return "has not queries, keys and values, each with an axis of its own"
    every = frozenset(range(nest.space))
    if nest.inner or any(o.offset.axes != every for o in nest.outputs):
        return "has an output of another shape than the product's"
    i = max(own, key=lambda k: (nest.extents[k], k))
    batch = tuple(k for k in range(nest.space) if k != i and k not in columns)
    rest, depth = (batch, (i,)), scored.over
    (made, dtype, _), (score, _, _) = total, scores
    sums = Contraction(
        nest, made, later or made, dtype, weight, value, *rest, tuple(columns), over
    )
    products = Contraction(nest, score, score, dtype, query, key, *rest, over, depth)
    between = reached(nest, [logits], {score.number})
    factors = reached(nest, [query, key, value], set())
    if any(v.over for v in (*sums.behind, *between, *factors)):
        return "reads a softmax's largest scores or their sums besides"
    return Weighing(sums, products, logits, *_scaled(logits, score, i, j), safe)


def plain(value: Value) -> Value:
    """Return a value without its roundings and widenings."""
    while isinstance(value.node, Cast) and value.source is None:
        (arg,) = value.args.values()
        if arg.node.dtype.kind != "float":
            break
        value = arg
    return value


def operands_of(value: Value, op: str) -> list[Value]:
    """Return the operands, without roundings, of an operation; none of another one."""
    node = value.node
    if not isinstance(node, Apply) or node.op != op or value.guards:
        return []
    return [plain(value.args[arg.number]) for arg in node.args]


def _reduced(value: Value, op: str, over: tuple[int, ...]) -> Value | None:
    """Return what a reduction along axes is of; None for others."""
    node = value.node
    if not isinstance(node, Reduce) or node.op != op or value.over != over:
        return None
    return plain(value.args[node.arg.number])


def _divided(nest: Nest, sums: Value) -> tuple[list[Value], Value] | None:
    """Return what sums are divided by, and the quotient, if they are for nothing else."""
    value = sums
    while True:
        users = [v for v in nest.values if value in v.args.values()]
        stored = any(output.value is value for output in nest.outputs)
        if stored or len(users) != 1 or users[0].guards:
            return None
        (value,) = users
        if parts := operands_of(value, "divide"):
            return (parts[1:], value) if parts[0] is sums else None
        if not isinstance(value.node, Cast) or value.node.dtype.kind != "float":
            return None


def _softmax(
    weight: Value, over: tuple[int, ...], divided: tuple[list[Value], Value] | None
) -> tuple[Value, bool, Value | None] | None:
    """Return what a value is the softmax of, along axes; None if it is none.

    It is safe, with it, where nothing but -inf comes to zeros: the largest one is at
    least a number, and the sum at least 1, as it is of any other row. Powers that are
    `divided` by their sum when they have weighed are one too, which the quotient has.
    What the powers are below may be a number or nothing: it changes no weight.
    """
    power, *rest = (
        operands_of(weight, "divide") or operands_of(weight, "multiply") or [weight]
    )
    if isinstance(weight.node, Apply) and weight.node.op == "multiply" and rest:
        if power.over or operands_of(power, "divide"):
            power, rest = rest[0], [power]
        one, *rest = operands_of(rest[0], "divide") or [power]
        if not (isinstance(one.node, Constant) and one.node.value == 1.0):
            return None
    later, inner = None, operands_of(power, "exp")
    if inner and power is weight:
        x, *shift = operands_of(inner[0], "subtract") or inner
        if shift and _is_log_of_sum(shift[0], x, over):
            return x, False, None
        rest, later = divided or ([], None)
    if not rest or not inner:
        return None
    total, least = _at_least(rest[0])
    if _reduced(total, "sum", over) is not power:
        return None
    logits, floor = _unshifted(inner[0], over)
    safe = least == 1.0 and -inf < floor <= float32.smallest
    return (logits, safe, later) if safe or least == -inf else None


def _unshifted(value: Value, over: tuple[int, ...]) -> tuple[Value, float]:
    """Return what powers are of but for a shift, and the number that this is at least.

    It is nothing, a number, or the largest of what it is taken from.
    """
    x, *shift = operands_of(value, "subtract") or [value]
    most, floor = _at_least(shift[0]) if shift else (value, -inf)
    plain = shift and isinstance(shift[0].node, Constant)
    if plain or _reduced(most, "max", over) is x:
        return x, floor
    return value, -inf


def _is_log_of_sum(value: Value, x: Value, over: tuple[int, ...]) -> bool:
    """Say whether a value is the logarithm of the sum of a value's powers along axes."""
    terms = operands_of(value, "add") or [value]
    logs = [total for term in terms for total in operands_of(term, "log")]
    power = _reduced(logs[0], "sum", over) if len(logs) == 1 else None
    inner = operands_of(power, "exp") if power else []
    if not inner or len(terms) == 1:
        return inner == [x]
    parts = operands_of(inner[0], "subtract")
    return _unshifted(inner[0], over)[0] is x and parts[1] in terms


def _at_least(value: Value) -> tuple[Value, float]:
    """Return what a value is the maximum of, and the number that it is at least."""
    args = operands_of(value, "maximum")
    for arg, other in zip(args, args[::-1], strict=True):
        if isinstance(arg.node, Constant):
            return other, float(arg.node.value)
    return value, -inf


def _scaled(
    logits: Value, scores: Value, i: int, j: int
) -> tuple[float | None, int | None, float]:
    """Return what scores are multiplied by, how far ahead keys are seen, and the fill.

    None: logits are anything else; all keys are.
    """
    ahead, fill, other = None, -inf, (None, None, -inf)
    masked = logits.node
    if isinstance(masked, Apply) and masked.op == "where":
        seen, inside, outside = (logits.args[arg.number] for arg in masked.args)
        number = outside.node.value if isinstance(outside.node, Constant) else 0.0
        fill = float(rounded(number, outside.node.dtype))
        ahead = line_below(seen, i, j)
        if ahead is None or not fill <= FAR:
            return other
        logits = plain(inside)
    scale, value = 1.0, logits
    while value is not scores:
        found = times(value)
        if found is None:
            return other
        value, scale = found[0], scale * found[1]
    return scale, ahead, fill


def times(value: Value) -> tuple[Value, float] | None:
    """Return a value and the number that it is multiplied by; None for what is not."""
    for op in ("multiply", "divide"):
        args = operands_of(value, op)
        if op == "multiply" and args and isinstance(args[0].node, Constant):
            args.reverse()
        if args and isinstance(args[1].node, Constant):
            number = float(args[1].node.value)
            if op == "divide":
                number = 1 / number if number else inf
            return args[0], number
    return None


def line_below(seen: Value, i: int, j: int) -> int | None:
    """Return what a condition adds to a query's number for its last key; None: another."""
    for op, sign, least in (
        ("greater_equal", 1, 0),
        ("greater", 1, 1),
        ("less_equal", -1, 0),
        ("less", -1, 1),
    ):
        sides = [_line(value) for value in operands_of(seen, op)]
        if sides and None not in sides:
            a, b = (side for side in sides if side is not None)
            line = (a + b * -1) * sign + -least
            if line + line.constant * -1 == axis(i) + axis(j) * -1:
                return line.constant
    return None


def _line(value: Value) -> Index | None:
    """Return the index that a value of 0, 1, 2, ... is, and numbers more; of floats none."""
    if value.node.dtype.kind != "int":
        return None
    if isinstance(value.source, Arange) and not (value.guards or value.step):
        return value.offset
    if isinstance(value.node, Constant):
        return Index(int(value.node.value))
    for op, sign in (("add", 1), ("subtract", -1)):
        sides = [_line(each) for each in operands_of(value, op)]
        if sides and None not in sides:
            a, b = (side for side in sides if side is not None)
            return a + b * sign
    return None


def together(nest: Nest, sums: list[Value]) -> Nest:
    """Return the nest with some sums over one axis each walked along one common axis.

    What both are made of, at places that are then the same, is one value.
    """
    names = list(range(len(nest.extents)))
    first, *rest = sums
    for each in rest:
        names[each.over[0]] = first.over[0]
    pairs = list(combinations([v for v in nest.values if v.over], 2))
    while True:
        before = list(names)
        for a, b in pairs:
            same = {names[k] for k in a.axes} == {names[k] for k in b.axes}
            if a.node is b.node and same:
                for mine, other in zip(a.over, b.over, strict=True):
                    names[other] = names[mine]
        if names == before:
            return _renamed(nest, names)


def _renamed(nest: Nest, names: list[int]) -> Nest:
    """Return a nest with other names of axes, and one value for those that are equal."""
    kept = sorted(set(names))
    names = [kept.index(name) for name in names]
    extents = tuple([nest.extents[name] for name in kept])
    places = [axis(name) for name in names]

    def moved(index: Index) -> Index:
        return index.at(places, extents)

    made: dict[int, Value] = {}
    known: dict[Hashable, Value] = {}
    for value in nest.values:
        new = replace(
            value,
            number=len(known),
            args={n: made[arg.number] for n, arg in value.args.items()},
            axes=frozenset([names[k] for k in value.axes]),
            over=tuple([names[k] for k in value.over]),
            offset=moved(value.offset),
            guards=tuple([(moved(index), end) for index, end in value.guards]),
            runs=None if value.runs is None else names[value.runs],
        )
        args = tuple([arg.number for arg in new.args.values()])
        key = new.node.number, args, new.axes, new.over, new.offset, new.guards
        made[value.number] = known.setdefault((*key, new.step, new.runs), new)
    outputs = [Stored(made[o.value.number], moved(o.offset)) for o in nest.outputs]
    values = tuple(known.values())
    return replace(nest, extents=extents, values=values, outputs=tuple(outputs))

"""Primitives of JAX's that hold programs: loops, choices and calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, Final

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.array.loops import MOST_UNROLL
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.from_jax.elementwise import select_n
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.values import (
    Aval,
    Like,
    Stack,
    Value,
    array,
    canonical,
    flat,
    reshape,
)

ENDLESS: Final = 2**31 - 1
"""Iterations of JAX's while, which has no bound of its own, at most."""


def _flattened(
    graph: Graph, values: Sequence[Value], avals: Sequence[Aval]
) -> tuple[Array, ...]:
    """Return the arrays that a loop carries for these values."""
    pairs = zip(values, avals, strict=True)
    return tuple(
        part for value, aval in pairs for part in flat(canonical(graph, value, aval))
    )


def _gathered(arrays: Sequence[Array], like: Sequence[Array | Stack]) -> list[Value]:
    """Return arrays as the values that they are parts of."""
    parts: Iterator[Array] = iter(arrays)
    return [
        Stack(tuple(islice(parts, len(one.parts))))
        if isinstance(one, Stack)
        else next(parts)
        for one in like
    ]


def _scan(equation: Equation) -> list[Value]:
    """Translate a scan; its constants are what its body reads from outside."""
    params, graph = equation.params, equation.graph
    first = params["num_consts"]
    last = first + params["num_carry"]
    consts, inits, xs = _cut(equation.values, first, last)
    carried = equation.inputs[first:last]
    inits = [
        canonical(graph, init, aval) for init, aval in zip(inits, carried, strict=True)
    ]
    rows = [_stacked(graph, x) for x in xs]
    made: list[Array | Stack] = []

    def body(carry: Sequence[Array], x: Sequence[Array]) -> Any:
        given = [*consts, *_gathered(carry, inits), *_gathered(x, rows)]
        found = equation.evaluate(params["jaxpr"], given)
        count = params["num_carry"]
        avals = params["jaxpr"].out_avals[count:]
        made[:] = [
            canonical(graph, y, aval)
            for y, aval in zip(found[count:], avals, strict=True)
        ]
        ys = tuple(part for y in made for part in flat(y))
        return _flattened(graph, found[:count], carried), ys

    carry, ys = xp.scan(
        body,
        tuple(part for init in inits for part in flat(init)),
        tuple(part for x in rows for part in flat(x)),
        length=params["length"],
        reverse=params["reverse"],
        unroll=_unroll(params),
    )
    return [*_gathered(carry, inits), *_gathered(ys, made)]


def _cut(
    values: Sequence[Value], first: int, second: int
) -> tuple[list[Value], list[Any], list[Value]]:
    return list(values[:first]), list(values[first:second]), list(values[second:])


def _stacked(graph: Graph, value: Value) -> Array | Stack:
    """Return rows for a scan as they are: one array, or the parts of each row."""
    return value if isinstance(value, Stack) else array(graph, value)


def _unroll(params: Any) -> int:
    """Return what was asked for beyond JAX's default, which leaves us the choice."""
    unroll = int(params["unroll"])
    return min(unroll, MOST_UNROLL) if unroll > 1 else 0


def _while(equation: Equation) -> list[Value]:
    """Translate a while loop of at most `ENDLESS` iterations.

    Of one that jax.vmap made each has its own condition: it runs while one holds.
    """
    params, graph = equation.params, equation.graph
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    of_cond, of_body, inits = _cut(equation.values, first, last)
    carried = equation.inputs[last:]
    like = [
        canonical(graph, init, aval) for init, aval in zip(inits, carried, strict=True)
    ]

    def asked(carry: Sequence[Array]) -> Array:
        given = [*of_cond, *_gathered(carry, like)]
        (found,) = equation.evaluate(params["cond_jaxpr"], given)
        return array(graph, found)

    def going(carry: Sequence[Array]) -> Array:
        found = asked(carry)
        if not found.shape:
            return found
        each = reshape(xp.astype(found, "int32"), (prod(found.shape),))
        return xp.max(each, axis=-1) > 0

    def body(carry: Sequence[Array]) -> tuple[Array, ...]:
        given = [*of_body, *_gathered(carry, like)]
        found = _flattened(
            graph, equation.evaluate(params["body_jaxpr"], given), carried
        )
        on = asked(carry)
        if not on.shape:
            return found
        return tuple(_where(on, a, b) for a, b in zip(found, carry, strict=True))

    init = tuple(part for one in like for part in flat(one))
    return _gathered(xp.while_loop(going, body, init, ENDLESS), like)


def _where(on: Array, new: Array, old: Array) -> Array:
    """Return what goes on, and of what does not its last: of jax.vmap's whiles."""
    return xp.where(
        reshape(on, (*on.shape, *(1 for _ in new.shape[on.ndim :]))), new, old
    )


def _cond(equation: Equation) -> list[Value]:
    """Translate a choice: the branch that is known, else all and a selection."""
    which, *given = equation.values
    branches = equation.params["branches"]
    if isinstance(which, np.generic):
        place = min(max(int(which), 0), len(branches) - 1)
        return equation.evaluate(branches[place], given)
    results = [equation.evaluate(branch, given) for branch in branches]
    return [
        _selected(equation, which, cases, aval)
        for cases, aval in zip(
            zip(*results, strict=True), equation.outputs, strict=True
        )
    ]


def _selected(
    equation: Equation, which: Value, cases: Sequence[Value], aval: Aval
) -> Value:
    """Return one result of the branch that was chosen."""
    alike = [canonical(equation.graph, case, aval) for case in cases]
    return select_n(
        replace(
            equation,
            values=(which, *alike),
            inputs=(Like((), np.dtype("int32")), *(aval for _ in cases)),
            outputs=(aval,),
        )
    )


def _call(equation: Equation) -> list[Value]:
    """Translate what is called as if it stood here."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    called = next(equation.params[name] for name in names if name in equation.params)
    return equation.evaluate(called, equation.values)


RULES: Final[dict[str, Rule]] = {
    "checkpoint": _call,
    "closed_call": _call,
    "cond": _cond,
    "custom_jvp_call": _call,
    "custom_vjp_call": _call,
    "jit": _call,
    "remat2": _call,
    "scan": _scan,
    "while": _while,
}

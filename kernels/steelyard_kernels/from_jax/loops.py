"""Primitives of JAX's that hold programs: loops, choices and calls."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.array.loops import MOST_UNROLL
from steelyard_kernels.from_jax.elementwise import select_n
from steelyard_kernels.from_jax.equation import Equation, Rule
from steelyard_kernels.from_jax.values import (
    Aval,
    Like,
    Stack,
    Value,
    array,
    canonical,
    reshape,
)

ENDLESS: Final = 2**31 - 1
"""Iterations of JAX's while, which has no bound of its own, at most."""


def _scan(equation: Equation) -> list[Value]:
    """Translate a scan; its constants are what its body reads from outside."""
    params, graph = equation.params, equation.graph
    first = params["num_consts"]
    last = first + params["num_carry"]
    consts, inits, xs = _cut(equation.values, first, last)
    carried = equation.inputs[first:last]

    def body(carry: Sequence[Value], x: Sequence[Value]) -> Any:
        found = equation.evaluate(params["jaxpr"], [*consts, *carry, *x])
        count = len(carry)
        stacked = params["jaxpr"].out_avals[count:]
        nexts = canonical(graph, found[:count], carried)
        return nexts, canonical(graph, found[count:], stacked)

    carry, ys = xp.scan(
        body,
        canonical(graph, inits, carried),
        [x if isinstance(x, Stack) else array(graph, x) for x in xs],
        length=params["length"],
        reverse=params["reverse"],
        unroll=_unroll(params),
    )
    return [*carry, *ys]


def _cut(
    values: Sequence[Value], first: int, second: int
) -> tuple[Sequence[Value], Sequence[Value], Sequence[Value]]:
    return values[:first], values[first:second], values[second:]


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

    def asked(carry: Sequence[Value]) -> Array:
        (found,) = equation.evaluate(params["cond_jaxpr"], [*of_cond, *carry])
        return array(graph, found)

    def going(carry: Sequence[Value]) -> Array:
        found = asked(carry)
        if not found.shape:
            return found
        each = reshape(xp.astype(found, "int32"), (prod(found.shape),))
        return xp.max(each, axis=-1) > 0

    def body(carry: Sequence[Array | Stack]) -> list[Array | Stack]:
        given = equation.evaluate(params["body_jaxpr"], [*of_body, *carry])
        found = canonical(graph, given, carried)
        on = asked(carry)
        if not on.shape:
            return found
        return [_where(on, a, b) for a, b in zip(found, carry, strict=True)]

    made: list[Value] = xp.while_loop(
        going, body, canonical(graph, inits, carried), ENDLESS
    )
    return made


def _where(on: Array, new: Any, old: Any) -> Any:
    """Return what goes on, and of what does not its last: of jax.vmap's whiles."""
    if isinstance(new, Stack):
        return Stack(_where(on, a, b) for a, b in zip(new, old, strict=True))
    ones = (1 for _ in new.shape[on.ndim :])
    return xp.where(reshape(on, (*on.shape, *ones)), new, old)


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
    alike = canonical(equation.graph, cases, [aval] * len(cases))
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

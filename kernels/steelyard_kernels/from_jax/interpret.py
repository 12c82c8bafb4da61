"""A jaxpr becomes nodes of a kernel, equation by equation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from steelyard_kernels.array import Array
from steelyard_kernels.errors import CompilerBug, KernelError, Unsupported
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.from_jax import (
    elementwise,
    gathers,
    lines,
    loops,
    places,
    products,
    threefry,
)
from steelyard_kernels.from_jax.equation import Equation, Rule, place
from steelyard_kernels.from_jax.values import (
    KEY,
    Aval,
    Value,
    element,
    literal,
    storage,
)


def _divided(a: np.generic, b: np.generic) -> Any:
    """Return a quotient of floats; of integers nothing."""
    return np.divide(a, b) if a.dtype.kind == "f" else None


_FOLDED: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "div": _divided,
    "eq": np.equal,
    "erf": lambda x: math.erf(float(x)),
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "nextafter": np.nextafter,
    "not": np.invert,
    "or": np.bitwise_or,
    "select_n": lambda which, *cases: cases[int(which)],
    "sub": np.subtract,
}
_MOVED: Final = frozenset(
    {"convert_element_type", "copy", "reshape", "squeeze", "stop_gradient"}
)


def folded(primitive: str, values: Sequence[Value], output: Aval) -> Value | None:
    """Return the scalar that known scalars make; None where it is not known."""
    scalars = [value for value in values if isinstance(value, np.generic)]
    if not scalars or len(scalars) < len(values) or output.shape != ():
        return None
    if str(output.dtype) == KEY or np.dtype(output.dtype).kind == "V":  # bfloat16
        return None
    if primitive in _MOVED:
        found: Any = scalars[0]
    elif primitive in _FOLDED:
        with np.errstate(all="ignore"):
            found = _FOLDED[primitive](*scalars)
    else:
        return None
    if found is None:
        return None
    scalar: Any = np.asarray(found).astype(output.dtype)[()]
    known: np.generic = scalar
    return known


RULES: Final[Mapping[str, Rule]] = {
    **elementwise.RULES,
    **gathers.RULES,
    **lines.RULES,
    **loops.RULES,
    **places.RULES,
    **products.RULES,
    **threefry.RULES,
}
"""What is done for each primitive of JAX's that is supported."""


def evaluate(
    graph: Graph,
    jaxpr: Any,
    values: Sequence[Value],
    constants: Sequence[Value] | None = None,
    where: str = "",
) -> list[Value]:
    """Return what stands for the outputs of a jaxpr, open or closed.

    `values` stand for its inputs, `constants` for what a closed one holds unless they
    are to be part of the program, and `where` is the place that asked for it: JAX keeps
    none inside functions of its own that are jitted.
    Raises KernelError, with the place in the user's file, for what is not supported.
    """
    if constants is None:
        constants = [literal(graph, const) for const in getattr(jaxpr, "consts", ())]
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    known: dict[Any, Value] = {}
    known.update(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, values, strict=True))
    for equation in _live(jaxpr):
        given = tuple(_read(graph, known, atom) for atom in equation.invars)
        found = _translated(graph, equation, given, where)
        known.update(zip(equation.outvars, found, strict=True))
    return [_read(graph, known, atom) for atom in jaxpr.outvars]


def _live(jaxpr: Any) -> list[Any]:
    """Return the equations of which something is used, in order."""
    needed = {id(atom) for atom in jaxpr.outvars}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(v) in needed for v in equation.outvars):
            kept.append(equation)
            needed |= {id(atom) for atom in equation.invars}
    return kept[::-1]


def _read(graph: Graph, known: Mapping[Any, Value], atom: Any) -> Value:
    """Return what stands for a variable, or for a literal's number."""
    if not hasattr(atom, "val"):
        return known[atom]
    return literal(graph, np.asarray(atom.val, atom.aval.dtype))


def _translated(
    graph: Graph, equation: Any, values: tuple[Value, ...], outer: str
) -> Sequence[Value]:
    name = equation.primitive.name
    outputs = tuple(atom.aval for atom in equation.outvars)
    if len(outputs) == 1:
        number = folded(name, values, outputs[0])
        if number is not None:
            return [number]
    where = place(equation.source_info) or outer
    seen = Equation(
        graph=graph,
        primitive=name,
        params={key: _plain(value) for key, value in equation.params.items()},
        inputs=tuple(atom.aval for atom in equation.invars),
        outputs=outputs,
        values=values,
        where=where,
        evaluate=lambda jaxpr, given: evaluate(graph, jaxpr, given, where=where),
    )
    rule = RULES.get(name)
    if rule is None:
        raise seen.refusal(
            "is not supported; from_jax.PRIMITIVES are those that are: write it with them"
        )
    try:
        found = rule(seen)
    except Unsupported:
        raise
    except KernelError as error:
        raise seen.refusal(f"cannot be had: {error}") from None
    results = [found] if isinstance(found, Value) else found
    for value, aval in zip(results, outputs, strict=True):
        _check(name, value, aval)
    return results


def _plain(param: Any) -> Any:
    """Return a parameter with Python's ints: where JAX transposes some are NumPy's."""
    if type(param) in {tuple, list}:
        return type(param)(map(_plain, param))
    return int(param) if isinstance(param, np.integer) else param


def _check(name: str, value: Value, aval: Aval) -> None:
    """Hold the rules to the shapes and dtypes that JAX says."""
    if isinstance(value, Array):
        seen, expected = (
            (value.shape, value.dtype),
            (storage(aval), element(aval.dtype)),
        )
        if seen != expected:
            raise CompilerBug(f"from_jax: {name} gave {seen}, expected {expected}")

"""One equation of a jaxpr, as the rules that translate it see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.array import Array
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.from_jax.values import (
    Aval,
    Like,
    Stack,
    Value,
    array,
    is_key,
    words,
)


class Equation(Struct, frozen=True):
    """A primitive of JAX's with its parameters and the values that stand for operands.

    `evaluate` translates a jaxpr inside of it, given what stands for its inputs.
    """

    graph: Graph
    primitive: str
    params: Mapping[str, Any]
    inputs: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    values: tuple[Value, ...]
    where: str
    evaluate: Callable[[Any, Sequence[Value]], list[Value]]

    def array(self, place: int) -> Array:
        """Return an operand as one array of the kernel."""
        return array(self.graph, self.values[place])

    def arrays(self) -> tuple[Array, ...]:
        """Return all operands as arrays of the kernel."""
        return tuple(array(self.graph, value) for value in self.values)

    def refusal(self, why: str) -> Unsupported:
        """Return the error that says what this equation does and no kernel can."""
        kernel = self.graph.kernel
        why = why.removeprefix(f"{kernel}: ").rstrip(".")
        return Unsupported(f"{kernel}: JAX's {self.primitive}{self.where} {why}.")


Rule: TypeAlias = Callable[[Equation], Value | Sequence[Value]]


def calling(function: Callable[..., Value | Sequence[Value]], *params: str) -> Rule:
    """Return the rule of a function of all operands, and of some parameters."""
    return lambda equation: function(
        *equation.arrays(), *[equation.params[name] for name in params]
    )


def word_by_word(rule: Rule) -> Rule:
    """Return a rule that does with keys what it does with each of their two words."""

    def each(equation: Equation) -> Value | Sequence[Value]:
        keys = [is_key(aval) for aval in equation.inputs]
        if not any(keys):
            return rule(equation)
        parts = []
        for number in range(2):
            values = [
                words(value)[number] if key else value
                for value, key in zip(equation.values, keys, strict=True)
            ]
            inputs = [
                Like(aval.shape, np.dtype("uint32")) if key else aval
                for aval, key in zip(equation.inputs, keys, strict=True)
            ]
            outputs = [
                Like(aval.shape, np.dtype("uint32")) for aval in equation.outputs
            ]
            found = rule(
                replace(
                    equation,
                    values=tuple(values),
                    inputs=tuple(inputs),
                    outputs=tuple(outputs),
                )
            )
            assert isinstance(found, Array)
            parts.append(found)
        return Stack(parts)

    return each


def place(source_info: Any) -> str:
    """Return where a user's function asked for it, " at FILE:LINE"; "" if not known."""
    traceback = getattr(source_info, "traceback", None)
    for frame in getattr(traceback, "frames", ()):
        file = frame.file_name
        if not file.startswith(_ignored()) and not file.startswith("<"):
            return f" at {file}:{frame.line_num}"
    return ""


@cache
def _ignored() -> tuple[str, ...]:
    """Return the folders whose code is not the user's: JAX's and this package's."""
    import jax

    return str(Path(str(jax.__file__)).parent), str(Path(__file__).parents[1])

"""What is known when the kernel is traced is computed then: indices, mostly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from steelyard_kernels.from_jax.values import KEY, Aval, Value


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

"""What an input's data is drawn from: distributions, their parameters and dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

from steelyard.declare import dtypes
from steelyard.errors import BenchmarkError

if TYPE_CHECKING:
    import numpy as np  # 64 ms that importing steelyard does not spend

DISTRIBUTIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "normal": {"mean": 0.0, "deviation": 1.0},
    "uniform": {"low": 0.0, "high": 1.0},
    "lognormal": {"mean": 0.0, "deviation": 1.0},
    "integers": {"low": 0, "high": 100},
    "constant": {"value": 0.0},
    "pattern": {"period": 64, "mean": 0.0, "deviation": 1.0},
    "fixed": {"mean": 0.0, "deviation": 1.0},
}
"""Each distribution with its parameters and their defaults. ``lognormal`` is exp of a
normal; ``fixed`` one of the same values in every run, such as weights that a kernel
knows before it is launched; ``integers`` exclude ``high``; ``constant`` (zeros by default) has to be asked
for by name, as has ``pattern``: so many normal values again and again."""

Bound = tuple[str, Callable[[Any], bool]]
"""Which numbers are taken, in words and as a test."""

FINITE: Final[Bound] = ("finite number", lambda v: -math.inf < v < math.inf)
FROM_0: Final[Bound] = ("finite number from 0 up", lambda v: 0 <= v < math.inf)
BOUNDS: Final[Mapping[str, Bound]] = {
    "deviation": ("finite number above 0", lambda v: 0 < v < math.inf),
    "value": ("number", lambda _: True),  # masks are infinite
}
"""Of parameters of distributions; others are finite."""


def recipe(
    name: str, dist: str | None, dtype: str, parameters: Mapping[str, float]
) -> tuple[tuple[str, Any], ...]:
    """Return ``dist`` and all of its parameters, of an input.

    Raises:
        BenchmarkError: one is unknown, or no number that can be had.
    """
    found = dtype_of("input", name, dtype)
    kind = found.kind
    dist = dist or ("normal" if dtypes.is_float(found) else "integers")
    if dist not in [*DISTRIBUTIONS]:  # what is asked for may not be hashable
        raise BenchmarkError(
            f"input {name} has dist={dist!r}; expected one of "
            f"{', '.join(DISTRIBUTIONS)}."
        )
    known = DISTRIBUTIONS[dist]
    for parameter, value in parameters.items():
        if parameter not in known:
            raise BenchmarkError(
                f"input {name} has {parameter}=, which dist={dist!r} does not know; "
                f"expected {', '.join(known)}."
            )
        bound = BOUNDS.get(parameter, FINITE)
        hint = " Give an array to b.load, as a .npy file."
        require(f"input {name} has {parameter}", value, bound, hint)
    if kind == "b" and dist == "integers":
        known = {**known, "high": 2}  # as many of one as of the other
    chosen = {**known, **parameters}
    if dist == "uniform" and not chosen["low"] < chosen["high"]:
        raise BenchmarkError(
            f"input {name} is uniform from {chosen['low']} to {chosen['high']}; expected "
            "a low= below its high=."
        )
    return (("dist", dist), *chosen.items())


def require(said: str, value: Any, bound: Bound, hint: str = "") -> None:
    """Refuse what is no real number, or not within a bound."""
    expected, within = bound
    if not (isinstance(value, Real) and within(value)):
        raise BenchmarkError(f"{said}={value!r}; expected a {expected}.{hint}")


def dtype_of(role: str, name: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype in NumPy's, or PyTorch's, spelling.

    Raises:
        BenchmarkError: it is of no real numbers.
    """
    import numpy as np

    try:
        # PyTorch's dtypes call themselves torch.float32.
        found = dtypes.named(
            str(dtype).removeprefix("torch.")
            if type(dtype).__module__ == "torch"
            else dtype
        )
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biuf" and not dtypes.is_float(found):
        raise BenchmarkError(
            f"{role} {name} has dtype {dtype!r}, which holds no real numbers that NumPy "
            "knows. Use float16, bfloat16, float32, float64, int32, int64 or bool."
        )
    return found

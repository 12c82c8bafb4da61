"""Axes: their values, how these read in a case id, and how ``-p`` replaces them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from steelyard.errors import SteelyardError

_NONE: Final = object()

_RESERVED: Final = frozenset(" [](),=%'\"")
"""What has a meaning in a case id, in ``-k`` or in a shell; written as ``%2c``, as is
what has one to a terminal, or which no store takes."""

_MANY: Final = 10_000
"""More values of one range than anybody waits for."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one parameter; at its default it does not appear in case ids."""

    values: tuple[Any, ...]
    default: Any = _NONE
    others: tuple[Any, ...] = ()
    """What ``-p`` may ask for besides; not swept by default."""


def axis(*values: Any, default: Any = _NONE, others: Sequence[Any] = ()) -> Axis:
    """Declare an axis with a default, or with values that only ``-p`` asks for.

    Old case ids stay what they were when an axis with a default is added to a
    benchmark.
    """
    return Axis(values, default, tuple(others))


def text_of(value: Any) -> str:
    """Write an axis's value as it stands in a case id: one word, ``8192x768``."""
    if isinstance(value, tuple):
        return "x".join(map(text_of, value))
    return "".join(
        c if c.isprintable() and c not in _RESERVED else _escaped(ord(c))
        for c in str(value)
    )


def _escaped(code: int) -> str:
    return f"%{code:02x}" if code < 0x100 else f"%u{code:04x}"


def plain(value: Any) -> Any:
    """Return an axis's value in the types that a pipe and a store bring back.

    NumPy's scalars become Python's and lists become tuples.

    Raises:
        TypeError: it is neither a number, a string, a bool, None, nor a tuple of these.
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if type(value) not in {bool, int, float, str, type(None)}:
        raise TypeError(
            f"{value!r}; expected a number, a string, a bool, None or a tuple of these"
        )
    return value


def declared(name: str, given: Sequence[Any] | Axis) -> Axis:
    """Return the axis that ``name`` is given as, its values plain and distinct.

    Raises:
        SteelyardError: it has none, two that read the same, or one that is not plain.
    """
    others = given.others if isinstance(given, Axis) else ()
    values = given.values if isinstance(given, Axis) else given
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SteelyardError(f"{name} is {values!r}. Give it a list of values.")
    try:
        listed, others = (tuple(map(plain, some)) for some in (values, others))
    except TypeError as error:
        raise SteelyardError(f"{name} has the value {error}. Name it by one.") from None
    if not listed:
        raise SteelyardError(f"{name} has no values. Give it at least one.")
    texts = [text_of(value) for value in (*listed, *others)]
    for text, times in Counter(texts).items():
        if times > 1:
            raise SteelyardError(
                f"{name} has two values that read {text!r}; case ids must differ. "
                "Leave one out."
            )
    return Axis(listed, given.default if isinstance(given, Axis) else _NONE, others)


def parse_override(text: str) -> tuple[str, list[Any]]:
    """Read ``axis=1,2`` or ``axis=2^10:2^20:4x`` (times 4) or ``axis=0:100:10``.

    Raises:
        SteelyardError: it reads as none of these.
    """
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise SteelyardError(
            f"-p {text!r} is not of the form axis=1,2 or axis=2^10:2^20:4x."
        )
    return name, [value for part in values.split(",") for value in _values(text, part)]


def _values(text: str, part: str) -> list[Any]:
    if ":" not in part or part[0].isalpha():  # cuda:sm_90a is a word
        return [_value(part)]
    try:
        start, stop, step = part.split(":")
        low, high = _number(start), _number(stop)
        grows = step.endswith("x")
        by = _number(step.removesuffix("x"))
        finite = all(map(math.isfinite, (low, high, by)))
    except (ValueError, OverflowError):
        raise SteelyardError(
            f"-p {text!r} has the range {part!r}; expected start:stop:step, with an "
            "x behind the step to multiply."
        ) from None
    if not finite or by <= (1 if grows else 0) or (grows and low <= 0):
        raise SteelyardError(
            f"-p {text!r}: the range {part!r} never ends. Change its ends or its step."
        )
    values: list[Any] = []
    while low <= high and len(values) <= _MANY:
        values.append(low)
        low = low * by if grows else low + by
    if not 0 < len(values) <= _MANY:
        many = f"more than {_MANY}" if values else "no"
        raise SteelyardError(
            f"-p {text!r}: the range {part!r} has {many} values. Change its ends or "
            "its step."
        )
    return values


def _value(text: str) -> Any:
    try:
        return _number(text)
    except (ValueError, OverflowError):
        return {"true": True, "false": False}.get(text.lower(), text)


def _number(text: str) -> int | float:
    base, power, exponent = text.partition("^")
    if power:
        if abs(int(exponent)) > 1024:  # beyond any float; a longer one takes minutes
            raise OverflowError
        result: int | float = _number(base) ** int(exponent)
        return result
    return int(text) if text.lstrip("+-").isdecimal() else float(text)

"""Values that were read from files, checked against the types that they should have.

What does not fit is refused at the door, in a sentence with the field and what was
expected there, so that nothing behind it has to expect anything else.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")

LONGEST: Final = 40
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True, slots=True)
class Within:
    """The bounds of an ``Annotated`` number; NaN is within none."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Say whether a number is within them."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Matching:
    """The regular expression that an ``Annotated`` text matches as a whole."""

    pattern: str

    def holds(self, value: str) -> bool:
        """Say whether a text matches it."""
        return re.fullmatch(self.pattern, value) is not None

    def __str__(self) -> str:
        return f"like {self.pattern}"


class Malformed(ValueError):  # noqa: N818 - reads as the verdict it is
    """A file holds something else than what belongs there."""


def parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        Malformed: it is no JSON, is nested too deeply, or holds half a character.
    """
    try:
        value = json.loads(text)
        escape = "\\ud" if isinstance(text, str) else b"\\ud"
        if escape in text.lower():  # type: ignore[operator] # both of one kind
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:  # UnicodeError and JSONDecodeError are ones
        raise Malformed(f"it is not JSON ({error})") from None
    return value


def checked(value: Any, kind: type[T], at: str = "") -> T:
    """Return a value of JSON's or TOML's types, if ``kind`` says that it belongs there.

    ``kind`` may be built of classes, dataclasses, typed dictionaries, literals, unions
    and containers, and be ``Annotated`` by `Within` or `Matching`. An integer is a float
    too; a boolean is no integer.

    Raises:
        Malformed: it does not; names the field.
    """
    if not _fits(value, kind, at):
        raise Malformed(
            f"{at or 'it'} is {_short(value)}, expected {_named(kind)}"
        ) from None
    return cast("T", value)


def _fits(value: Any, kind: Any, at: str) -> bool:
    """Say whether a value is of a type; what lies within it raises by itself."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return _fits(value, arguments[0], at) and arguments[1].holds(value)
    if origin in {Union, types.UnionType}:
        return _fits_one(value, arguments, at)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if is_dataclass(kind) or is_typeddict(kind):
        return isinstance(value, dict) and _fits_fields(value, kind, at)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            checked(key, arguments[0], at) is key
            and checked(one, arguments[1], _within(at, key)) is one
            for key, one in value.items()
        )
    if origin is tuple and arguments[-1:] != (...,):
        return (
            isinstance(value, list)
            and len(value) == len(arguments)
            and all(
                checked(one, kind, f"{at}[{number}]") is one
                for number, (one, kind) in enumerate(zip(value, arguments, strict=True))
            )
        )
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, list) and all(
            checked(one, arguments[0], f"{at}[{number}]") is one
            for number, one in enumerate(value)
        )
    return _is_plain(value, kind)


def _is_plain(value: Any, kind: Any) -> bool:
    """Say whether a value that holds no others is of a type."""
    if kind is float and isinstance(value, int):
        return (
            not isinstance(value, bool) and value.bit_length() < sys.float_info.max_exp
        )
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return any(value == one.value for one in kind)
    return isinstance(value, kind)


def _fits_one(value: Any, kinds: Sequence[Any], at: str) -> bool:
    """Say whether a value is of one of several types; the last one names the field."""
    if value is None:
        return types.NoneType in kinds
    *first, last = (one for one in kinds if one is not types.NoneType)
    for one in first:
        try:
            if _fits(value, one, at):
                return True
        except Malformed:
            continue
    return _fits(value, last, at)


def _fits_fields(value: Mapping[str, Any], kind: Any, at: str) -> bool:
    hints, needed = _fields(kind)
    for name, hint in hints.items():
        if name in value:
            checked(value[name], hint, _within(at, name))
        elif name in needed:
            raise Malformed(f"{at or 'it'} has no {name}")
    return True


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of fields, and the names of those that must be there."""
    # With extras: `__required_keys__` takes a postponed NotRequired for a required one.
    hints = get_type_hints(kind, include_extras=True)
    needed = frozenset(n for n, h in hints.items() if get_origin(h) is not NotRequired)
    return {n: h if n in needed else get_args(h)[0] for n, h in hints.items()}, needed


def _within(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _named(kind: Any) -> str:
    """Return a type in words."""
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in words:
        return words[kind]
    if origin is Annotated:
        return f"{_named(arguments[0])} {arguments[1]}"
    if origin in {Union, types.UnionType}:
        return " or ".join(_named(one) for one in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    if kind is types.NoneType:
        return "nothing"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return "a list"
    is_table = is_dataclass(kind) or is_typeddict(kind) or origin is not None
    return "a table" if is_table else f"a {getattr(kind, '__name__', kind)}"

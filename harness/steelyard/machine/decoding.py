"""Values that were read from files, checked against the types that they should have.

What does not fit is refused at the door, in a sentence with the field and what was
expected there, so that nothing behind it has to expect anything else.
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from hashlib import blake2b
from itertools import repeat
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

DEEPEST: Final = 100
"""Levels of JSON; files of ours have ten. Python recurses a thousand times, twice a level."""

CONTAINERS: Final = frozenset({dict, list})
DEEP: Final = "it is nested too deeply"

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
        raise Malformed(DEEP) from None
    except ValueError as error:  # UnicodeError and JSONDecodeError are ones
        raise Malformed(f"it is not JSON ({error})") from None
    _require_flat(value)
    return value


def _require_flat(value: Any) -> None:
    """Refuse what is nested more deeply than whoever walks it can follow."""
    level = [value] if type(value) in CONTAINERS else []
    for _ in range(1 + DEEPEST):
        if not level:
            return
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        # Lists of numbers, which are most of a file, are passed over at once.
        deep = (each for each in inside if CONTAINERS & {*map(type, each)})
        level = [one for each in deep for one in each if type(one) in CONTAINERS]
    raise Malformed(DEEP)


def canonical(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    """Return BLAKE2b of a value's canonical text: 32 hexadecimal digits."""
    return blake2b(canonical(value).encode(), digest_size=16).hexdigest()


def checked(value: Any, kind: type[T], at: str = "") -> T:
    """Return a value of JSON's or TOML's types, if ``kind`` says that it belongs there.

    ``kind`` may be built of classes, dataclasses, typed dictionaries, literals, unions
    and containers, and be ``Annotated`` by `Within` or `Matching`. An integer is a float
    too; a boolean is no integer.

    Raises:
        Malformed: it does not; names the field.
    """
    _required(cast("Any", kind))(value, at)
    return cast("T", value)


def made(value: Any, kind: type[T], at: str = "") -> T:
    """Return the dataclasses that JSON of `asdict` was made of, within any containers.

    Raises:
        Malformed: it was made of something else: see `checked`.
    """
    return cast("T", _made(checked(value, kind, at), kind))


def _made(value: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        several = [one for one in arguments if one is not types.NoneType]
        return value if value is None or len(several) > 1 else _made(value, *several)
    if is_dataclass(kind) or is_typeddict(kind):
        hints = {n: hint for n, hint in _fields(kind)[0].items() if n in value}
        return cast("Any", kind)(**{n: _made(value[n], h) for n, h in hints.items()})
    if origin is tuple:
        kinds = repeat(arguments[0]) if arguments[-1] is ... else arguments
        return tuple(_made(one, kind) for one, kind in zip(value, kinds, strict=False))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [_made(one, arguments[0]) for one in value]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _made(one, arguments[1]) for name, one in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value


Place = str | tuple[Any, str | int]
"""Where a value was found: a name, or a place and the key within it."""

Test = Callable[[Any, Place], bool]
"""Says whether a value is of a type; what lies within it raises by itself."""


@cache
def _required(kind: Any) -> Callable[[Any, Place], None]:
    """Return what raises of a value that is not of a type."""
    test = _test(kind)

    def require(value: Any, at: Place) -> None:
        if not test(value, at):
            raise Malformed(
                f"{_spelled(at) or 'it'} is {_short(value)}, expected {_named(kind)}"
            ) from None

    return require


@cache
def _test(kind: Any) -> Test:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda _value, _at: True
    if origin is Annotated:
        test, bounds = _test(arguments[0]), arguments[1]
        return lambda value, at: test(value, at) and bounds.holds(value)
    if origin in {Union, types.UnionType}:
        return _of_one(arguments)
    if origin is Literal:
        return lambda value, _: any(
            value == one and type(value) is type(one) for one in arguments
        )
    if is_dataclass(kind) or is_typeddict(kind):
        return _of_fields(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_table(*map(_required, arguments))
    if origin is tuple and arguments[-1:] != (...,):
        return _of_tuple([_required(one) for one in arguments])
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _of_list(_required(arguments[0]))
    return _of_plain(kind)


def _of_table(key: Callable[..., None], one: Callable[..., None]) -> Test:
    def test(value: Any, at: Place) -> bool:
        if not isinstance(value, dict):
            return False
        for name, inner in value.items():
            key(name, at)
            one(inner, (at, name))
        return True

    return test


def _of_tuple(parts: Sequence[Callable[..., None]]) -> Test:
    def test(value: Any, at: Place) -> bool:
        if not isinstance(value, list) or len(value) != len(parts):
            return False
        for number, (inner, one) in enumerate(zip(value, parts, strict=True)):
            one(inner, (at, number))
        return True

    return test


def _of_list(one: Callable[..., None]) -> Test:
    def test(value: Any, at: Place) -> bool:
        if not isinstance(value, list):
            return False
        for number, inner in enumerate(value):
            one(inner, (at, number))
        return True

    return test


def _of_plain(kind: Any) -> Test:
    """Return the test of values that hold no others."""
    if kind is float:
        return lambda value, _: (
            isinstance(value, float)
            or (
                isinstance(value, int)
                and not isinstance(value, bool)
                and value.bit_length() < sys.float_info.max_exp
            )
        )
    if kind is int:
        return lambda value, _: isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, _: any(value == one.value for one in kind)
    return lambda value, _: isinstance(value, kind)


def _of_one(kinds: Sequence[Any]) -> Test:
    """Return the test of one of several types; the last one names the field."""
    *first, last = (_test(one) for one in kinds if one is not types.NoneType)
    empty = types.NoneType in kinds

    def test(value: Any, at: Place) -> bool:
        if value is None:
            return empty
        for one in first:
            try:
                if one(value, at):
                    return True
            except Malformed:
                continue
        return last(value, at)

    return test


def _of_fields(kind: Any) -> Test:
    hints, needed = _fields(kind)
    fields = [(name, _required(hint), name in needed) for name, hint in hints.items()]

    def test(value: Any, at: Place) -> bool:
        if not isinstance(value, dict):
            return False
        for name, require, must in fields:
            if name in value:
                require(value[name], (at, name))
            elif must:
                raise Malformed(f"{_spelled(at) or 'it'} has no {name}")
        return True

    return test


def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of fields, and the names of those that must be there."""
    # With extras: `__required_keys__` takes a postponed NotRequired for a required one.
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        return hints, frozenset(
            one.name for one in fields(kind) if one.default is one.default_factory
        )
    needed = frozenset(n for n, h in hints.items() if get_origin(h) is not NotRequired)
    return {n: h if n in needed else get_args(h)[0] for n, h in hints.items()}, needed


def _spelled(at: Place) -> str:
    if isinstance(at, str):
        return at
    place, key = _spelled(at[0]), at[1]
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else key


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


OPENING: Final = '<script type="application/json" id="steelyard">'
CLOSING: Final = "</script>"

ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
"""What HTML reads within a script: in JSON these stand in strings only."""


def page_element(document: Any) -> str:
    """Return the element that holds a document of JSON's types."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return f"{OPENING}{text.translate(ESCAPES)}{CLOSING}"


def page_content(data: bytes) -> bytes:
    """Return the JSON of a page that has some; other bytes as they are."""
    if not data[:64].lstrip().lower().startswith(b"<!doctype html"):
        return data
    _, opened, rest = data.partition(OPENING.encode())
    return rest.partition(CLOSING.encode())[0] if opened else data

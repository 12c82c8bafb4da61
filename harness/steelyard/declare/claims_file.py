"""Reading ``claims.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

from steelyard.analyse import expression
from steelyard.analyse.bounds import bound
from steelyard.analyse.claims import Claim
from steelyard.declare import mode as modes
from steelyard.declare.axes import parse_override
from steelyard.errors import SteelyardError, suggestion
from steelyard.machine import files
from steelyard.machine.decoding import Malformed, Within, checked

NAME: Final = Path("claims.toml")


@dataclass(frozen=True, slots=True)
class File:
    """What a file says: its claims, and how they are measured."""

    claims: tuple[Claim, ...]
    suites: tuple[str, ...] = ()
    blocks: int | None = None


class _Claim(TypedDict):
    name: str
    cases: str | list[str]
    mode: str
    bound: str | list[str]
    axes: NotRequired[str | list[str]]
    relative_to: NotRequired[str | list[str]]
    mean: NotRequired[bool]
    fact: NotRequired[str]
    parts: NotRequired[list[str]]
    where: NotRequired[dict[str, str]]
    installed: NotRequired[list[str]]
    expected_failure: NotRequired[str]


class _File(TypedDict):
    claim: list[_Claim]
    suites: NotRequired[list[str]]
    blocks: NotRequired[Annotated[int, Within(1, 1000)]]


def load(path: Path) -> File:
    """Return the claims of a file.

    Raises:
        SteelyardError: it cannot be read, or says what is no claim.
    """
    try:
        text = files.read(path).decode()
    except FileNotFoundError:
        raise SteelyardError(
            f"there is no {path}. Write one, or name another: see docs/claims.md."
        ) from None
    except (OSError, ValueError) as error:
        raise SteelyardError(f"{path} cannot be read: {error}. Mend it.") from error
    return parse(text, path)


def parse(text: str, path: Path) -> File:
    """Return the claims of a file's text.

    Raises:
        SteelyardError: it has none, or says what is no claim; names which.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SteelyardError(f"{path} cannot be read: {error}. Mend it.") from error
    _known(table, _File, str(path))
    for number, one in enumerate(_tables(table), 1):
        _known(one, _Claim, f"{path}: claim {one.get('name', number)!r}")
    try:
        file = checked(table, _File)
    except Malformed as error:
        raise SteelyardError(f"{path}: {error}. Mend it.") from None
    claims = tuple(
        _claim(one, f"{path}: claim {one['name']!r}") for one in file["claim"]
    )
    _distinct(claims, path)
    return File(claims, tuple(file.get("suites", ())), file.get("blocks"))


def _tables(table: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = table.get("claim", [])
    return [one for one in found if isinstance(one, dict)] * isinstance(found, list)


def _known(table: Mapping[str, Any], kind: Any, where: str) -> None:
    """Refuse a key that nobody would read."""
    keys = kind.__annotations__
    for key in table.keys() - keys.keys():
        raise SteelyardError(f"{where} has the key {key!r}; {suggestion(key, keys)}")


def _claim(table: _Claim, where: str) -> Claim:
    try:
        made = Claim(
            name=table["name"],
            cases=_several(table["cases"]),
            mode=str(modes.parse(table["mode"])),
            bounds=tuple(map(bound, _several(table["bound"]))),
            axes=dict(map(parse_override, _several(table.get("axes", [])))),
            relative_to=_several(table.get("relative_to", [])),
            mean=table.get("mean", False),
            fact=table.get("fact", ""),
            parts=tuple(table.get("parts", ())),
            where=table.get("where", {}),
            installed=tuple(table.get("installed", ())),
            expected_failure=table.get("expected_failure", ""),
        )
        for text in made.cases:
            expression.parse(text)
        _agrees(made)
    except SteelyardError as error:
        sentence = str(error).replace("-k cannot", "cases cannot", 1)
        sentence = sentence.replace("-p ", "axes: ", 1)
        raise SteelyardError(f"{where}: {sentence}") from None
    return made


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _agrees(claim: Claim) -> None:
    """Refuse a claim of two numbers, and a bound in the unit of another number.

    Raises:
        SteelyardError: it is one of these.
    """
    numbers = {
        "relative_to": bool(claim.relative_to),
        "fact": bool(claim.fact),
        "parts": bool(claim.parts),
    }
    given = [name for name, there in numbers.items() if there]
    if len(given) > 1:
        raise SteelyardError(f"{' and '.join(given)} exclude each other: give one.")
    if not claim.bounds or not claim.cases:
        raise SteelyardError("it names no cases or no bound; give both.")
    if claim.mean and not claim.relative_to:
        raise SteelyardError("mean is of ratios: give relative_to.")
    seen = {one.quantity for one in claim.bounds}
    allowed = {"parts": ("time", ""), "fact": ("",), "relative_to": ("",)}
    rates = ("bytes", "operations", "items")
    expected = allowed.get("".join(given), ("time", *rates))
    if len(seen) > 1 or not seen <= {*expected}:
        what = {
            "": "a number without a unit, or in x or %",
            "time": "a time, as in 2 ms",
        }
        words = [what.get(one, f"{one} a second") for one in expected]
        raise SteelyardError(
            f"the bound is {claim.bounds[0]}, expected {' or '.join(words)}"
            f"{f' for {given[0]}' if given else ''}."
        )


def _distinct(claims: tuple[Claim, ...], path: Path) -> None:
    names = [claim.name for claim in claims]
    if not names:
        raise SteelyardError(f"{path} has no [[claim]]. Write one: see docs/claims.md.")
    for name in names:
        if names.count(name) > 1:
            raise SteelyardError(f"{path} has two claims {name!r}. Rename one.")

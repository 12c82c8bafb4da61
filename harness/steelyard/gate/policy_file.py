"""Reading ``ci/policy.toml``, and adding an accepted change or doubt to it."""

from __future__ import annotations

import difflib
import fcntl
import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from steelyard.analyse import expression
from steelyard.analyse.verdict import CHANGED
from steelyard.declare import config
from steelyard.errors import SteelyardError
from steelyard.gate.policy import DOUBTS, STATIC, VANISHED, Accepted, Rules, Tolerance
from steelyard.machine import files

NAME: Final = Path("ci", "policy.toml")


def default(folder: Path | None = None) -> Path:
    """Return where the policy of the project is that ``folder`` is in."""
    here = folder or Path.cwd()
    return (config.nearest(here, config.MARKS) or here) / NAME


def load(path: Path | None = None) -> Rules:
    """Return a project's rules: none where its default file is missing.

    Raises:
        SteelyardError: the file cannot be read, or says what is no policy.
    """
    place = path or default()
    if path is None and not place.exists():
        return Rules(place)
    try:
        text = files.read(place).decode()
    except (OSError, ValueError) as error:
        raise SteelyardError(f"{place} cannot be read: {error}. Mend it.") from error
    return parse(text, place)


def parse(text: str, path: Path) -> Rules:
    """Return the rules of a policy's text.

    Raises:
        SteelyardError: it is no policy; names the line.
    """
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SteelyardError(f"{path} cannot be read: {error}. Mend it.") from error
    reader = _Reader(path, text)
    reader.known(table, ("static", "tolerance", "accepted"), "", 1)
    static = reader.table(table)
    return Rules(
        path,
        tuple(reader.tolerances(table)),
        tuple(reader.accepted(table)),
        tuple(static.get("forbid", ())),
        str(static.get("reason", "")),
    )


class _Reader:
    """What of a policy's text is where, and whether it is what it should be."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def table(self, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``[static]``."""
        static = table.get("static", {})
        line = self._line(r"\[\s*static\s*\]|static\b", 0)
        if not isinstance(static, dict):
            raise self._wrong(line, "static", static, "a table")
        if static:
            self._values(static, _STATIC, ("forbid", "reason"), "static", line)
        return static

    def tolerances(self, table: Mapping[str, Any]) -> Iterator[Tolerance]:
        """Yield each ``[[tolerance]]``."""
        needed = ("cases", "percent", "reason", "until")
        for line, one in self._blocks(table, "tolerance"):
            self._values(one, _TOLERANCE, needed, "tolerance", line)
            try:
                expression.parse(one["cases"])
            except SteelyardError as error:
                sentence = str(error).replace("-k cannot", "cases cannot", 1)
                raise SteelyardError(f"{self._path}:{line}: {sentence}") from None
            yield Tolerance(
                cases=one["cases"],
                share=one["percent"] / 100,
                reason=one["reason"],
                until=one["until"],
                line=line,
            )

    def accepted(self, table: Mapping[str, Any]) -> Iterator[Accepted]:
        """Yield each ``[[accepted]]``."""
        needed = ("case", "mode", "verdict", "reason", "date")
        for line, one in self._blocks(table, "accepted"):
            self._values(one, _ACCEPTED, needed, "accepted", line)
            ratio = one.get("ratio")
            yield Accepted(
                case=one["case"],
                mode=one["mode"],
                verdict=one["verdict"],
                reason=one["reason"],
                on=one["date"],
                base=one.get("base", ""),
                head=one.get("head", ""),
                ratio=(float(ratio[0]), float(ratio[1])) if ratio else None,
                changes=tuple(one.get("changes", ())),
                line=line,
            )

    def _blocks(
        self, table: Mapping[str, Any], name: str
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the tables of an array with the lines they begin in."""
        found = table.get(name, [])
        line = self._line(rf"{name}\b", 0)
        if not isinstance(found, list):
            raise self._wrong(line, name, found, f"[[{name}]] before each")
        for one in found:
            line = self._line(rf"\[\[\s*{name}\s*\]\]", line)
            if not isinstance(one, dict):
                raise self._wrong(line, name, one, f"[[{name}]] before each")
            yield line, one
            line += 1

    def _line(self, pattern: str, after: int) -> int:
        """Return the first line from ``after`` on that begins so, else ``after``."""
        begins = re.compile(rf"\s*(?:{pattern})")
        numbered = enumerate(self._lines[max(after - 1, 0) :], max(after, 1))
        return next((n for n, text in numbered if begins.match(text)), max(after, 1))

    def known(
        self, table: Mapping[str, Any], keys: tuple[str, ...], name: str, line: int
    ) -> None:
        """Refuse a key that there is none of: it would be obeyed by nobody."""
        for key in table:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, 1)
                hint = (
                    f"did you mean {near[0]}?" if near else f"known: {', '.join(keys)}."
                )
                where = self._line(rf"\[*\s*{re.escape(key)}\b", line)
                raise SteelyardError(
                    f"{self._path}:{where}: {name or 'a policy'} has no {key!r}; {hint}"
                )

    def _values(
        self,
        table: Mapping[str, Any],
        readers: Mapping[str, tuple[Callable[[Any], bool], str]],
        needed: tuple[str, ...],
        name: str,
        line: int,
    ) -> None:
        self.known(table, tuple(readers), name, line)
        for key in needed:
            if key not in table:
                expected = readers[key][1]
                raise SteelyardError(
                    f"{self._path}:{line}: this {name} has no {key}, expected {expected}."
                )
        for key, value in table.items():
            fits, expected = readers[key]
            if not fits(value):
                where = self._line(rf"{key}\s*=", line)
                raise self._wrong(where, key, value, expected)

    def _wrong(self, line: int, key: str, value: Any, expected: str) -> SteelyardError:
        seen = value.isoformat() if isinstance(value, date) else repr(value)
        return SteelyardError(
            f"{self._path}:{line}: {key} is {seen}, expected {expected}."
        )


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _interval(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2
    return pair and all(map(_number, value)) and value[0] <= value[1]


def _day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


_VERDICTS: Final = (*CHANGED, VANISHED, STATIC, *sorted(DOUBTS))
_REASON: Final = (_text, "a sentence that says why")
_DAY: Final = (_day, "a date such as 2027-06-30")
_HASH: Final = (lambda value: isinstance(value, str), "a code's hash, or nothing")
_STATIC: Final = {
    "forbid": (_texts, "a list of words such as 'spills'"),
    "reason": _REASON,
}
_TOLERANCE: Final = {
    "cases": (_text, "words of case ids joined by and, or, not"),
    "percent": (_number, "a number above 0"),
    "reason": _REASON,
    "until": _DAY,
}
_ACCEPTED: Final = {
    "case": (_text, "the id of a case"),
    "mode": (lambda value: isinstance(value, str), "a mode such as 'kernel/cold'"),
    "verdict": (lambda value: value in _VERDICTS, f"one of {', '.join(_VERDICTS)}"),
    "base": _HASH,
    "head": _HASH,
    "ratio": (_interval, "the lower and the upper end of an interval"),
    "changes": (_texts, "a list of sentences"),
    "reason": _REASON,
    "date": _DAY,
}


def add(path: Path, changes: list[Accepted]) -> list[Accepted]:
    """Add accepted changes to a policy; return those that it did not have.

    The file is written aside and renamed: whoever is killed or finds the disk full
    leaves the old one.

    Raises:
        SteelyardError: the policy cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            rules = load(path) if path.exists() else Rules(path)
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            fresh = [one for one in changes if not _has(rules, one)]
            text = "\n".join([*filter(None, [old.rstrip("\n")]), *map(block, fresh)])
            parse(text, path)
            files.replace(path, f"{text}\n".encode())
    except OSError as error:
        raise SteelyardError(
            f"{path} cannot be written: {error.strerror}; it is as it was. Make room, or "
            "name another by --policy."
        ) from error
    return fresh


def _has(rules: Rules, change: Accepted) -> bool:
    """Say whether a policy names this very change already."""
    return any(_but_when(one) == _but_when(change) for one in rules.accepted)


def _but_when(one: Accepted) -> tuple[object, ...]:
    return one.case, one.mode, one.verdict, one.base, one.head, one.ratio, one.changes


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let nobody else add meanwhile."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def block(one: Accepted) -> str:
    """Return an accepted change as the policy's text has it."""
    lines = ["", "[[accepted]]", f"case = {_quoted(one.case)}"]
    lines += [f"mode = {_quoted(one.mode)}", f"verdict = {_quoted(one.verdict)}"]
    if one.changes:
        lines.append(f"changes = [{', '.join(map(_quoted, one.changes))}]")
    elif one.verdict not in DOUBTS:
        lines += [f"base = {_quoted(one.base)}", f"head = {_quoted(one.head)}"]
    if one.ratio:
        lines.append(f"ratio = [{one.ratio[0]:.4f}, {one.ratio[1]:.4f}]")
    lines += [f"reason = {_quoted(one.reason)}", f"date = {one.on.isoformat()}"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a TOML string: JSON's, but for the one control character it lets stand."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Reading ``ci/policy.toml``, and adding an accepted change or doubt to it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from steelyard.analyse import expression
from steelyard.analyse.verdict import CHANGED
from steelyard.declare import config
from steelyard.errors import SteelyardError, suggestion
from steelyard.gate.policy import STATIC, VANISHED, Accepted, Rules, Tolerance, acting
from steelyard.machine import files

NAME: Final = Path("ci", "policy.toml")

OPTIONAL: Final = "optional"


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
    reader.known(table, tuple(_KEYS), "", 1)
    (static,) = [*reader.tables(table, "static")] or [{}]
    return Rules(
        path,
        tuple(map(reader.tolerance, reader.tables(table, "tolerance"))),
        tuple(
            Accepted(on=one.pop("date"), **one)
            for one in reader.tables(table, "accepted")
        ),
        tuple(static.get("forbid", ())),
        static.get("reason", ""),
    )


class _Reader:
    """What of a policy's text is where, and whether it is what it should be."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()

    def tables(self, table: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
        """Yield ``[name]``, or each ``[[name]]``, with the ``line`` it begins in."""
        several = name != "static"
        found = table.get(name, [] if several else {})
        mark = rf"\[+\s*{name}\s*\]+"
        line = self._line(rf"{mark}|{name}\b", 0)
        expected = f"[[{name}]] before each" if several else "a table"
        if isinstance(found, list) is not several:
            raise self._wrong(line, name, found, expected)
        for one in found if several else [found] * (found != {}):
            line = self._line(mark, line)
            if not isinstance(one, dict):
                raise self._wrong(line, name, one, expected)
            self._check(one, name, line)
            lists = {n: tuple(v) for n, v in one.items() if isinstance(v, list)}
            yield {**one, **lists} | ({"line": line} if several else {})
            line += 1

    def tolerance(self, one: dict[str, Any]) -> Tolerance:
        """Return a tolerance of its table."""
        try:
            expression.parse(one["cases"])
        except SteelyardError as error:
            sentence = str(error).replace("-k cannot", "cases cannot", 1)
            raise SteelyardError(f"{self._path}:{one['line']}: {sentence}") from None
        return Tolerance(share=one.pop("percent") / 100, **one)

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
                where = self._line(rf"\[*\s*{re.escape(key)}\b", line)
                raise SteelyardError(
                    f"{self._path}:{where}: {name or 'a policy'} has no {key!r}; "
                    f"{suggestion(key, keys)}"
                )

    def _check(self, table: Mapping[str, Any], name: str, line: int) -> None:
        keys = _KEYS[name]
        self.known(table, tuple(keys), name, line)
        for key, (_, expected, *optional) in keys.items():
            if key not in table and not optional:
                raise SteelyardError(
                    f"{self._path}:{line}: this {name} has no {key}, expected {expected}."
                )
        for key, value in table.items():
            fits, expected, *_ = keys[key]
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


def _word(value: Any) -> bool:
    return isinstance(value, str)


_VERDICTS: Final = (*CHANGED, VANISHED, STATIC)
_REASON: Final = (_text, "a sentence that says why")
_DAY: Final = (_day, "a date such as 2027-06-30")
_HASH: Final = (_word, "a code's hash, or nothing", OPTIONAL)
_KEYS: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "static": {
        "forbid": (_texts, "a list of words such as 'spills'"),
        "reason": _REASON,
    },
    "tolerance": {
        "cases": (_text, "words of case ids joined by and, or, not"),
        "percent": (_number, "a number above 0"),
        "reason": _REASON,
        "until": _DAY,
    },
    "accepted": {
        "case": (_text, "the id of a case"),
        "mode": (_word, "a mode such as 'kernel/cold'"),
        "verdict": (
            lambda value: value in (*_VERDICTS, *acting()),
            f"one of {', '.join(_VERDICTS)}, or a doubt that a gate acts on",
        ),
        "base": _HASH,
        "head": _HASH,
        "ratio": (_interval, "the lower and the upper end of an interval", OPTIONAL),
        "changes": (_texts, "a list of sentences", OPTIONAL),
        "reason": _REASON,
        "date": _DAY,
    },
}
"""Of each table its keys: what fits, what is expected, and whether it may be missing."""


def add(path: Path, changes: list[Accepted]) -> list[Accepted]:
    """Add accepted changes to a policy; return those that it did not have.

    The file is written aside and renamed: whoever is killed or finds the disk full
    leaves the old one.

    Raises:
        SteelyardError: the policy cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(path.parent):  # nobody else adds meanwhile
            rules = load(path) if path.exists() else Rules(path)
            old = path.read_text(encoding="utf-8") if path.exists() else ""
            named = [*map(_but_when, rules.accepted)]
            fresh = [one for one in changes if _but_when(one) not in named]
            text = "\n".join([*filter(None, [old.rstrip("\n")]), *map(block, fresh)])
            parse(text, path)
            files.replace(path, f"{text}\n".encode())
    except OSError as error:
        raise SteelyardError(
            f"{path} cannot be written: {error.strerror}; it is as it was. Make room, or "
            "name another by --policy."
        ) from error
    return fresh


def _but_when(one: Accepted) -> tuple[object, ...]:
    return one.case, one.mode, one.verdict, one.base, one.head, one.ratio, one.changes


def block(one: Accepted) -> str:
    """Return an accepted change as the policy's text has it."""
    lines = ["", "[[accepted]]", f"case = {_quoted(one.case)}"]
    lines += [f"mode = {_quoted(one.mode)}", f"verdict = {_quoted(one.verdict)}"]
    if one.changes:
        lines.append(f"changes = [{', '.join(map(_quoted, one.changes))}]")
    elif one.verdict not in acting():
        lines += [f"base = {_quoted(one.base)}", f"head = {_quoted(one.head)}"]
    if one.ratio:
        lines.append(f"ratio = [{one.ratio[0]:.4f}, {one.ratio[1]:.4f}]")
    lines += [f"reason = {_quoted(one.reason)}", f"date = {one.on.isoformat()}"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a TOML string: JSON's, but for the one control character it lets stand."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

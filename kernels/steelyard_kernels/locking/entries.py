"""The lock file: a small block of lines for each case and target, and how it is read.

    adam[n=100,dtype=float32] cuda:sm_90a
      text 2fe3f1a2b3c4d5e6f708192a3b4c5d6e
      code 7718ab79ab833b08d8408fa7490444e6
      schedule v1 u1 b128 r0
      launch launches 1, blocks 1, threads 128, extent 100
      moves bytes 2400, operations 1302
      takes registers 23
      opcodes BRA 25, FADD 5, FFMA 34, LDG 3, STG 3

What is none is left out. The text is what the compiler was given, as a hash: where it is
still the same, the same compiler's code is known without compiling.

The last line has a digest of all above: a file that is cut off, merged or edited by hand
is refused by whoever reads it. One from elsewhere lacks the first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from steelyard_kernels.digest import digest
from steelyard_kernels.errors import KernelError

FORMAT: Final = 2
"""Version of the file; a newer one is refused, and an older one is to be written anew.

1. Entries.
2. The last line has a digest.
"""

_HEAD: Final = """\
# What the code of every kernel of the library takes, by case and target. Written by
# `steelyard lock`: read what changed before you commit it.
"""
_FIRST: Final = "kernels.lock"
_END: Final = "end"
WRITE: Final = "write it with `steelyard lock`"
AGAIN: Final = "write it anew with `steelyard lock`"

NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "launch": ("launches", "blocks", "threads", "extent"),
    "moves": ("bytes", "operations"),
    "takes": (
        "registers", "stack bytes", "spilled bytes", "shared bytes",
        "wide loads", "wide stores",
    ),
}  # fmt: skip
"""The lines of numbers, each with its names in order."""

_NOTHING: Final = "nothing"
_HASHES: Final = ("text", "code")
_LINES: Final = (*_HASHES, "schedule", *NUMBERS, "opcodes")
_HASH: Final = re.compile(r"[0-9a-f]{32}")
_COUNT: Final = re.compile(r"(\w[\w ]*) ([1-9]\d{0,17})")
_TITLE: Final = re.compile(r"(\w+(?:\[[\w=.,]+\])?) (\w+:[\w-]+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """What one kernel's code takes on one target."""

    case: str
    target: str
    text: str
    """The hash of what the compiler was given."""
    code: str
    """The hash of its instructions."""
    schedule: str
    numbers: Mapping[str, int]
    """By the names of `NUMBERS`; none is zero."""
    opcodes: Mapping[str, int]

    @property
    def key(self) -> tuple[str, str]:
        """Case and target."""
        return self.case, self.target


@dataclass(frozen=True, slots=True)
class Lock:
    """All entries, and by whose builds they were made: kind of target to compiler."""

    compilers: Mapping[str, str]
    entries: Mapping[tuple[str, str], Entry]


def text(lock: Lock) -> str:
    """Return the file of a lock; `read` is its inverse."""
    compilers = [f"compiler {kind} {name}" for kind, name in lock.compilers.items()]
    head = [f"{_FIRST} {FORMAT}", *compilers, f"entries {len(lock.entries)}"]
    blocks = ["\n".join(_block(entry)) for entry in lock.entries.values()]
    made = _HEAD + "\n\n".join(["\n".join(head), *blocks, ""])
    return f"{made}{_END} {digest(made.encode())}\n"


def _block(entry: Entry) -> Iterator[str]:
    yield f"{entry.case} {entry.target}"
    yield f"  text {entry.text}"
    yield f"  code {entry.code}"
    yield f"  schedule {entry.schedule}"
    for word, names in NUMBERS.items():
        yield f"  {word} {_spelled(entry.numbers, names)}"
    yield f"  opcodes {_spelled(entry.opcodes, sorted(entry.opcodes))}"


def _spelled(counts: Mapping[str, int], names: Iterable[str]) -> str:
    said = [f"{name} {counts[name]}" for name in names if counts.get(name)]
    return ", ".join(said) or _NOTHING


class Unreadable(KernelError):  # noqa: N818 - reads as the verdict it is
    """A lock file that is none, or not a whole one."""


class Foreign(Unreadable):
    """A file that is not ours to replace."""


def read(content: str, name: str) -> Lock:
    """Read a lock file; `name` is for errors.

    Raises:
        Unreadable: it is empty, foreign, cut off, damaged, or of another version.
    """
    lines = [
        (number, line)
        for number, line in enumerate(content.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise Unreadable(f"{name} is empty: {AGAIN}.")
    _check_version(lines[0][1], name)
    word, _, said = lines[-1][1].partition(" ")
    if word != _END or not content.endswith("\n"):
        raise Unreadable(f"{name} is cut off after line {lines[-1][0]}: {AGAIN}.")
    try:
        found = _lock(lines[1:-1])
    except _Bad as error:
        raise Unreadable(f"{name}:{error.line}: {error}; {AGAIN}.") from None
    if said != _digest(content):
        raise Unreadable(
            f"{name} is not what was written: the digest in its last line differs. "
            f"Somebody edited it, or merged two; {AGAIN}."
        )
    return found


def _digest(content: str) -> str:
    """Return the digest of all above the last line, whatever Git made of line ends."""
    above = content.replace("\r\n", "\n").rpartition(f"{_END} ")[0]
    return digest(above.encode(errors="replace"))


def _check_version(line: str, name: str) -> None:
    word, _, version = line.partition(" ")
    if word != _FIRST or not version.isdecimal():
        raise Foreign(
            f"{name} is no lock file, it begins with {line[:40]!r}: name another file, "
            "or move it away."
        )
    if int(version) > FORMAT:
        raise Foreign(
            f"{name} is of version {version}, this steelyard reads {FORMAT}: upgrade it."
        )
    if int(version) < FORMAT:
        raise Unreadable(f"{name} is of the old version {version}: {AGAIN}.")


class _Bad(Exception):  # noqa: N818 - told with its line by who catches it
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def _lock(lines: list[tuple[int, str]]) -> Lock:
    starts = [i for i, (_, line) in enumerate(lines) if _TITLE.fullmatch(line)]
    compilers: dict[str, str] = {}
    entries: dict[tuple[str, str], Entry] = {}
    promised = -1
    for number, line in lines[: starts[0] if starts else None]:
        word, _, rest = line.partition(" ")
        if word == "compiler" and " " in rest:
            kind, _, compilers[kind] = rest.partition(" ")
        elif word == "entries" and rest.isdecimal():
            promised = int(rest)
        else:
            raise _Bad(number, f"{line[:40]!r} is not known here")
    for start, end in pairwise([*starts, len(lines)]):
        entry = _entry(lines[start:end])
        if entry.key in entries:
            raise _Bad(lines[start][0], f"{entry.case} {entry.target} is there twice")
        entries[entry.key] = entry
    if len(entries) != promised:
        last = lines[-1][0] if lines else 1
        raise _Bad(last, f"there are {len(entries)} entries where {promised} were said")
    return Lock(compilers, entries)


def _entry(lines: list[tuple[int, str]]) -> Entry:
    number, title = lines[0]
    found = _fields(lines[1:])
    missing = [word for word in _LINES if word not in found]
    if missing:
        raise _Bad(number, f"{title} lacks its {missing[0]}")
    matched = _TITLE.fullmatch(title)
    assert matched
    for word in _HASHES:
        if not _HASH.fullmatch(found[word].rest):
            hint = f"{found[word].rest[:40]!r} is no hash of {word}"
            raise _Bad(found[word].line, hint)
    numbers: dict[str, int] = {}
    for word, names in NUMBERS.items():
        numbers |= _counts(found[word], names)
    opcodes = _counts(found["opcodes"])
    text, code, schedule = (found[word].rest for word in (*_HASHES, "schedule"))
    return Entry(matched[1], matched[2], text, code, schedule, numbers, opcodes)


class _Field(NamedTuple):
    line: int
    rest: str


def _fields(lines: list[tuple[int, str]]) -> dict[str, _Field]:
    """Read the lines of an entry by their first words, each there once."""
    found: dict[str, _Field] = {}
    for number, line in lines:
        word, _, rest = line.strip().partition(" ")
        if word not in _LINES or word in found or not line.startswith("  "):
            raise _Bad(number, f"{line.strip()[:40]!r} is not known here")
        found[word] = _Field(number, rest)
    return found


def _counts(field: _Field, names: tuple[str, ...] | None = None) -> dict[str, int]:
    """Read ``FFMA 12, LDG 3``; `names` are those that may be there."""
    found: dict[str, int] = {}
    for word in field.rest.split(", ") if field.rest != _NOTHING else []:
        matched = _COUNT.fullmatch(word)
        name = matched[1] if matched else ""
        if not matched or name in found or (names is not None and name not in names):
            raise _Bad(field.line, f"{word[:40]!r} is no count that belongs there")
        found[name] = int(matched[2])
    return found

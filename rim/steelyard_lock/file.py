"""The lock file: a small block of lines for each case and target, and how it is read.

    adam[n=100,dtype=float32] cuda:sm_90a
      text 2fe3f1a2b3c4d5e6f708192a3b4c5d6e
      code 7718ab79ab833b08d8408fa7490444e6
      schedule v1 u1 b128 r0
      launch launches 1, blocks 1, threads 128, extent 100
      moves bytes 2400, operations 1302
      takes registers 23
      opcodes BRA 25, FADD 5, FFMA 34, LDG 3, STG 3

A program of several launches has a block, with its partition as schedule, and one for each
distinct kernel, `bert[...] launch 3`.

What is none is left out. The text is what the compiler was given, as a hash: where it is
still the same, the same compiler's code is known without compiling.

The last line has a digest of all above: a file that is cut off, merged or edited by hand
is refused by whoever reads it. One from elsewhere lacks the first line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from steelyard_kernels.artifact import digest
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
    "moves": ("bytes", "operations", "workspace"),
    "takes": (
        "registers", "stack bytes", "spilled bytes", "shared bytes",
        "wide loads", "wide stores",
    ),
}  # fmt: skip
"""The lines of numbers, each with its names in order."""

_NOTHING: Final = "nothing"


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
        line
        for line in content.splitlines()
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise Unreadable(f"{name} is empty: {AGAIN}.")
    _check_version(lines[0], name)
    word, _, said = lines[-1].partition(" ")
    if word != _END or not content.endswith("\n"):
        raise Unreadable(f"{name} is cut off after {lines[-1][:40]!r}: {AGAIN}.")
    if said != _digest(content):
        raise Unreadable(
            f"{name} is not what was written: the digest in its last line differs. "
            f"Somebody edited it, or merged two; {AGAIN}."
        )
    try:
        return _lock(lines[1:-1])
    except (ValueError, KeyError) as error:  # of a development version, say
        raise Unreadable(f"{name} has what is not known here: {AGAIN}.") from error


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


def _lock(lines: Iterable[str]) -> Lock:
    """Read the lines between the first and the last, which the digest vouches for."""
    compilers: dict[str, str] = {}
    blocks: list[tuple[str, str, dict[str, str]]] = []
    for line in lines:
        word, rest = line.strip().split(" ", 1)
        if line.startswith(" "):
            blocks[-1][-1][word] = rest
        elif word == "compiler":
            kind, compilers[kind] = rest.split(" ", 1)
        elif word != "entries":
            case, target = line.rsplit(" ", 1)
            blocks.append((case, target, {}))
    entries = [_entry(*block) for block in blocks]
    return Lock(compilers, {entry.key: entry for entry in entries})


def _entry(case: str, target: str, said: Mapping[str, str]) -> Entry:
    numbers = {
        name: count for word in NUMBERS for name, count in _counts(said[word]).items()
    }
    opcodes = _counts(said["opcodes"])
    text, code, schedule = said["text"], said["code"], said["schedule"]
    return Entry(case, target, text, code, schedule, numbers, opcodes)


def _counts(line: str) -> dict[str, int]:
    """Read ``FFMA 12, LDG 3``."""
    words = line.split(", ") if line != _NOTHING else []
    pairs = (word.rsplit(" ", 1) for word in words)
    return {name: int(count) for name, count in pairs}

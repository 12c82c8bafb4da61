"""A mode says what is measured: quantity, cache, flavour and batch.

docs/benchmarks.md has what each of them times. A cold ``per_launch`` or ``latency`` is a
batch, or one call, whose data is in no cache; ``build/warm-disk`` a build that any process
of this user has made before, ``build/warm-memory`` one that this process has, and
``build/first`` that of a fresh process that finds nothing on disk
(``STEELYARD_CACHE=off``), from the interpreter's start to the end of the first launch.

``/dependent`` makes each launch wait for the one before (otherwise ``throughput``);
``/graph`` submits a batch as one CUDA graph; ``/allocated`` makes a latency allocate its
outputs (otherwise ``preallocated``); a last number is the batch.

On a GPU the launches of a stream run one after another as it is: ``kernel/warm`` and
``kernel/warm/dependent`` read the same there. A dependent ``per_launch`` waits on the
host for each launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steelyard.analyse.trial import QUANTITIES
from steelyard.errors import SteelyardError

CACHES: Final = {
    "kernel": ("cold", "warm"),
    "per_launch": ("warm", "cold"),
    "latency": ("warm", "cold"),
    "build": ("cold", "warm-disk", "warm-memory", "first"),
}
FLAVOURS: Final = {
    "kernel": ("throughput", "dependent"),
    "per_launch": ("throughput", "dependent", "graph"),
    "latency": ("preallocated", "allocated"),
    "build": ("",),
}
assert tuple(CACHES) == tuple(FLAVOURS) == QUANTITIES

LONGEST: Final = 7
"""Digits of a batch at most: its calls are spelled out, 80 MB of ten million."""


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """What one trial measures."""

    quantity: str
    cache: str
    flavour: str = ""
    batch: int = 1

    def __str__(self) -> str:
        words = [self.quantity, self.cache]
        if self.flavour and self.flavour != FLAVOURS[self.quantity][0]:
            words.append(self.flavour)
        if self.batch > 1:
            words.append(str(self.batch))
        return "/".join(words)


DEFAULTS: Final = (
    Mode("kernel", "cold", "throughput"),
    Mode("kernel", "warm", "throughput"),
)
BUILDS: Final = (Mode("build", "cold"), Mode("build", "warm-memory"))
"""What is measured by default of what is only built."""


def parse_all(texts: Sequence[str]) -> list[Mode]:
    """Read modes with commas between them, each once: a block holds no mode twice.

    Raises as `parse` does.
    """
    words = [word for text in texts for word in text.split(",")]
    return list(dict.fromkeys(map(parse, words)))


def parse(text: str) -> Mode:
    """Read a mode from its text.

    Raises:
        SteelyardError: a word of it is not known; the sentence lists those that are.
    """
    quantity, *words = text.strip().split("/")
    if quantity not in CACHES:
        raise _unknown(text, quantity, tuple(CACHES))
    cache, flavour, batch = CACHES[quantity][0], FLAVOURS[quantity][0], 1
    for word in words:
        if word in CACHES[quantity]:
            cache = word
        elif word and word in FLAVOURS[quantity]:
            flavour = word
        elif word.isdecimal() and quantity in {"per_launch", "latency"}:
            digits = word.lstrip("0") or "0"
            if digits == "0" or len(digits) > LONGEST:
                raise SteelyardError(
                    f"mode {text[:60]!r}: the batch is {digits[:60]}, expected 1 to "
                    f"{10**LONGEST - 1}."
                )
            batch = int(digits)
        else:
            known = (*CACHES[quantity], *filter(None, FLAVOURS[quantity]))
            raise _unknown(text, word, known)
    return Mode(quantity, cache, flavour, batch)


def _unknown(text: str, word: str, known: tuple[str, ...]) -> SteelyardError:
    return SteelyardError(
        f"mode {text!r} has the word {word!r}; expected one of {', '.join(known)}. "
        "Write for example kernel/cold, kernel/warm/dependent or latency/warm/64."
    )

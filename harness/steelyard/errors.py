"""What can go wrong, and the exit code each kind ends a command with.

0 fine; 1 regression; 2 a benchmark failed; 3 unresolved within the budget; 4 usage,
nothing matched, or the machines are not comparable.
"""

from __future__ import annotations

from collections.abc import Iterable

FINE = 0
REGRESSION = 1
FAILED = 2
UNRESOLVED = 3
USAGE = 4


class SteelyardError(Exception):
    """A user's mistake: one sentence that ends in the next step."""

    exit_code = USAGE


class UnjudgedError(SteelyardError):
    """The code that was to be judged kept a gate from its verdict."""


class BenchmarkError(SteelyardError):
    """A benchmark raised, hung, crashed, gave a wrong result or broke a red zone."""

    exit_code = FAILED


class StoreError(SteelyardError):
    """A store could not be read or written; nothing in it was lost."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence on a word that there is none of."""
    import difflib  # here alone: most commands end without

    every = list(known)
    near = difflib.get_close_matches(word, every, 1)
    return (
        f"did you mean {near[0]}?" if near else f"known: {', '.join(every) or 'none'}."
    )

"""The words of ``-k``: parts of a case id joined by and, or, not and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from steelyard.errors import SteelyardError

Predicate = Callable[[str], bool]

_TOKEN = re.compile(r"\s*(\(|\)|[^\s()]+)")


def parse(text: str) -> Predicate:
    """Return a predicate over case ids.

    A word matches an id that contains it (a name with its axes is a word too).

    Raises:
        SteelyardError: the expression is incomplete, or too deep to be read.
    """
    tokens = _TOKEN.findall(text)
    rest = _Tokens(tokens)
    try:
        predicate, following = _either(rest, next(rest))
    except RecursionError:
        raise SteelyardError(
            "-k cannot be read: it is nested too deeply. Leave parentheses out."
        ) from None
    if following:
        raise rest.unreadable()
    return predicate


class _Tokens(Iterator[str]):
    """The tokens one by one, and nothing for ever behind them."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._next = 0

    def __next__(self) -> str:
        """Return the next token; nothing at the end."""
        self._next += 1
        return "".join(self._tokens[self._next - 1 : self._next])

    def unreadable(self) -> SteelyardError:
        """Return the sentence on the token that was given last."""
        token = "".join(self._tokens[self._next - 1 : self._next])
        before = self._tokens[self._next - 2] if self._next > 1 else "-k"
        seen = repr(token) if token else "the end"
        return SteelyardError(
            f"-k cannot be read: after {before!r} comes {seen}; expected words of a "
            "case id joined by and, or, not and parentheses."
        )


def _either(rest: _Tokens, token: str) -> tuple[Predicate, str]:
    first, token = _both(rest, token)
    found = [first]
    while token == "or":  # noqa: S105 # a word, not a secret
        another, token = _both(rest, next(rest))
        found.append(another)
    return (lambda name: any(accepts(name) for accepts in found)), token


def _both(rest: _Tokens, token: str) -> tuple[Predicate, str]:
    first, token = _one(rest, token)
    found = [first]
    while token == "and":  # noqa: S105 # a word, not a secret
        another, token = _one(rest, next(rest))
        found.append(another)
    return (lambda name: all(accepts(name) for accepts in found)), token


def _one(rest: _Tokens, token: str) -> tuple[Predicate, str]:
    if token == "not":  # noqa: S105 # a word, not a secret
        inner, following = _one(rest, next(rest))
        return lambda name: not inner(name), following
    if token == "(":  # noqa: S105 # a word, not a secret
        inner, following = _either(rest, next(rest))
        if following != ")":
            raise rest.unreadable()
        return inner, next(rest)
    if token in {"", ")", "and", "or"}:
        raise rest.unreadable()
    return lambda name: token in name, next(rest)

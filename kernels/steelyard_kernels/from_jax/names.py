"""Parameters' names: those of the user's function, with the way into its pytrees."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from steelyard_kernels.imported import identifier


def of_function(function: Callable[..., Any]) -> str:
    """Return a function's name as a Python name; a lambda's is what it is."""
    name = getattr(function, "__name__", type(function).__name__)
    return re.sub(r"\W+", "_", name).strip("_") or "kernel"


def of_arguments(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first positional parameters, as far as they have any."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some callables say nothing
        parameters = []
    named = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return [*named, *(f"arg{place}" for place in range(len(named), count))][:count]


def unique(paths: Iterable[Sequence[Any]], arguments: Sequence[str]) -> list[str]:
    """Return one Python name for each leaf: weights["w1"] is weights_w1.

    `paths` are JAX's key paths from (args, kwargs) on.
    """
    names: list[str] = []
    for path in paths:
        words = [str(_word(entry)) for entry in path[1:]]
        if _word(path[0]) == 0:
            words[0] = arguments[int(words[0])]
        names.append(identifier("_".join(words), names))
    return names


def _word(entry: Any) -> Any:
    """Return what a step of a key path says: a place, a key or an attribute."""
    for attribute in ("idx", "key", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry

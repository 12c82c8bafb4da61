"""Kinds of machines, and the words that select some of them. Pure.

A kind is a text such as ``cpu=AMD EPYC 9654; cores=96; gpu=NVIDIA H200``: machines of one
kind may be equal, and are still not one machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from steelyard.analyse.trial import UNKNOWN
from steelyard.errors import SteelyardError

ANY: Final = "any"
"""Selects every kind."""


def of(machine: Mapping[str, Any]) -> str:
    """Return the kind of a run's machine; of its GPU where the run used one.

    Where neither a processor nor a GPU is known, the machine's name is its kind.
    """
    identity, gpu = machine.get("identity", {}), machine.get("gpu", {})
    facts = {name: identity.get(name, UNKNOWN) for name in ("cpu", "cores")}
    if set(facts.values()) == {UNKNOWN} and not gpu.get("name"):
        return text({"machine": identity.get("id", UNKNOWN)})
    return text(facts | ({"gpu": gpu["name"]} if gpu.get("name") else {}))


def text(facts: Mapping[str, Any]) -> str:
    """Return facts as the text of a kind; `facts_of` is its inverse."""
    clean = {name: str(value).replace(";", ",") for name, value in facts.items()}
    return "; ".join(f"{name}={value}" for name, value in clean.items())


def facts_of(kind: str) -> dict[str, str]:
    """Return the facts of a kind's text."""
    parts = (one.partition("=") for one in kind.split("; ") if one)
    return {name: value for name, _, value in parts}


def place(machine: Mapping[str, Any]) -> str:
    """Return a name for one machine: two runs with the same one compare."""
    said = json.dumps(machine.get("identity"), sort_keys=True, default=str)
    return blake2b(said.encode(), digest_size=8).hexdigest()


def accepts(on: str, facts: Mapping[str, str]) -> bool:
    """Tell whether ``gpu=H200,cpu=EPYC`` selects a machine with these facts.

    Every term must; a value is part of the fact's, in any case of its letters and with
    any signs between them. A ``name`` is a whole one.

    Raises:
        SteelyardError: it is not of that form.
    """
    return on == ANY or all(
        value == facts.get(name)
        if name == "name"
        else _plain(value) in _plain(facts.get(name, ""))
        for name, value in terms(on)
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold())


def terms(on: str) -> list[tuple[str, str]]:
    """Return the names and values of a selector.

    Raises:
        SteelyardError: it is not of the form ``gpu=H200,cpu=EPYC``.
    """
    found = [one.partition("=") for one in on.split(",")]
    if not all(name.strip() and value.strip() for name, _, value in found):
        raise SteelyardError(
            f"--on is {on!r}, expected NAME=PART,... such as gpu=H200 or cpu=EPYC, or "
            f"{ANY}."
        )
    return [(name.strip(), value.strip()) for name, _, value in found]

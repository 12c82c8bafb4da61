"""Which folders this process may import a project's code from.

Whoever starts a process that measures states it in a variable; after each answer the
process looks at what was imported, and refuses to measure other code than it is for.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from steelyard.machine.decoding import made

VARIABLE: Final = "STEELYARD_ORIGINS"

SHOWN: Final = 3
"""Modules that a refusal names."""

INSTALLED: Final = ("site-packages", "dist-packages")
"""Folders that hold what is installed, wherever they lie."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where a project's code comes from, and what is said where it does not."""

    names: tuple[str, ...] = ()
    """Dotted names of the project's modules and packages: all below them too."""
    places: tuple[str, ...] = ()
    """Folders that these may come from, but for environments within."""
    avoided: tuple[str, ...] = ()
    """Folders that nothing else may come from, but for environments within."""
    wrong: str = ""
    """What it would mean, and the next step: two clauses after the modules' names."""

    @classmethod
    def stated(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """Return what the parent stated; nothing where it did not."""
        return made(json.loads(variables.get(VARIABLE) or "{}"), cls)

    def variable(self) -> dict[str, str]:
        """Return the variable for a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    def refusal(self) -> str | None:
        """Return why what was imported is not to be measured; None where it is."""
        found = sorted(self._foreign_modules(sys.modules.copy()))
        if not found:
            return None
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return f"{', '.join(found[:SHOWN])}{more}: {self.wrong}"

    def _foreign_modules(self, modules: Mapping[str, Any]) -> Iterator[str]:
        if not self.names and not self.avoided:
            return
        for name, module in modules.items():
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or _within(file, self.places):
                continue
            own = any(f"{name}.".startswith(f"{one}.") for one in self.names)
            if own or _within(file, self.avoided):
                yield f"{name} from {file}"


def _within(file: str, places: tuple[str, ...]) -> bool:
    """Tell whether a file is in one of some folders, and in no environment within."""
    return any(
        path.startswith(f"{place.rstrip('/')}/")
        and not any(folder in path[len(place) :].split("/") for folder in INSTALLED)
        for place in places
        for path in (file, _real(file))
    )


@functools.cache
def _real(file: str) -> str:
    return os.path.realpath(file)

"""Modules that benchmarks, configurations and older environments name by an earlier path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from importlib.abc import Loader  # which loads `tempfile` and more where it runs

MOVED: Final = MappingProxyType(
    {
        "steelyard.asv": "steelyard.plugins.asv",
        "steelyard.axes": "steelyard.declare.axes",
        "steelyard.benchmark": "steelyard.declare.benchmark",
        "steelyard.builtin": "steelyard.declare.builtin",
        "steelyard.entry": "steelyard.cli",
        "steelyard.handles": "steelyard.declare.handles",
        "steelyard.pytest_plugin": "steelyard.plugins.pytest_plugin",
        "steelyard.work": "steelyard.prepare.work",
    }
)
"""Earlier names to today's: both are one module."""


class Finder:
    """Import a moved module by its earlier name."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 # as the protocol has it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for the earlier name of a module, None for any other."""
        loader = cast("Loader", self)
        return ModuleSpec(fullname, loader) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Have Python make an empty one."""

    def exec_module(self, module: ModuleType) -> None:
        """Put today's module in place of the empty one."""
        name = module.__name__
        sys.modules[name] = import_module(MOVED[name])


def install() -> None:
    """Let earlier names be imported; what is loaded has its earlier name at once.

    `steelyard.benchmark` is a function too, which importing the module would hide.
    """
    sys.meta_path.append(Finder())
    for name, today in MOVED.items():
        if today in sys.modules:
            sys.modules[name] = sys.modules[today]

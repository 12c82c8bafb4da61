"""Kernels made of another library's functions: how they are built, and named."""

from __future__ import annotations

import keyword
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU

if TYPE_CHECKING:
    from steelyard_kernels.building.facts import TargetBuild
    from steelyard_kernels.library.examples import Spec

_OUTPUT: Final = re.compile(r"out\d*")
"""Names of outputs, which a parameter updated in place would have."""


class Translated(Protocol):
    """A kernel for arguments of one kind, with shape and dtype of all that it takes."""

    @property
    def kernel(self) -> KernelFunction:
        """The kernel."""
        ...

    def specs(self) -> list[Any]:
        """Return shape and dtype of everything that a launch takes."""
        ...


class ImportedKernel(ABC):
    """A kernel of another library's function: `translation` makes it for arguments."""

    name: str

    @abstractmethod
    def translation(self, *args: Any) -> Translated:
        """Return the kernel for arguments of these shapes and dtypes."""

    def like(self, *arrays: Spec) -> Translated:
        """Return the kernel for arrays of these shapes and dtypes."""
        return self.translation(*arrays)

    def for_target(self, target: str, *arrays: Spec) -> TargetBuild:
        """Build for a target that this machine need not have; raises what failed."""
        from steelyard_kernels.building.facts import TargetBuild

        made = self.like(*arrays)
        build = partial(made.kernel.build, *made.specs(), target=target)
        return TargetBuild(lambda cache: build(cache=cache))

    def build(
        self,
        *args: Any,
        schedule: Schedule | None = None,
        target: str = CPU,
        cache: str = "warm-memory",
    ) -> Artifact | Failure:
        """Build for arguments of these shapes and dtypes; as `KernelFunction.build`."""
        found = self.translation(*args)
        return found.kernel.build(
            *found.specs(), schedule=schedule, target=target, cache=cache
        )

    def program(self, *args: Any) -> Program:
        """Return the expression for arguments of these shapes and dtypes."""
        found = self.translation(*args)
        return found.kernel.program(*found.specs())

    def candidates(self, *args: Any, target: str = CPU) -> tuple[Schedule, ...]:
        """Return every legal schedule worth trying."""
        found = self.translation(*args)
        return found.kernel.candidates(*found.specs(), target=target)

    def explain(self, *args: Any, target: str = CPU) -> str:
        """Return the model's table of the best schedules: why one was chosen."""
        found = self.translation(*args)
        return found.kernel.explain(*found.specs(), target=target)


def identifier(words: str, taken: Collection[str] = ()) -> str:
    """Return a Python name that is not taken: layers.0.weight is layers_0_weight."""
    name = re.sub(r"\W", "_", words) or "arg"
    name = name if name[0].isalpha() or name[0] == "_" else f"_{name}"
    while name in taken or keyword.iskeyword(name) or _OUTPUT.fullmatch(name):
        name += "_"
    return name

"""A built kernel bound to arrays of the host, packed once for many launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from steelyard_device import cpu, turns
from steelyard_device.series import Series, Step
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.calling.bind import Array, BoundKernel
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.calling.strides import OnHost, check_apart

if TYPE_CHECKING:
    from steelyard_kernels.calling.foreign import ForeignKernel


def threads_of(built: Artifact) -> int:
    """Return how many threads a launch uses, of several the most."""
    if built.parts:
        return max(map(threads_of, built.parts))
    return built.threads or cpu.pool_size()


def launch_of(
    built: Artifact,
    slots: Sequence[int],
    before: Sequence[Step] = (),
    after: Sequence[Step] = (),
) -> cpu.Launch:
    """Return a launch of a build, or of all its parts, with its slots' words.

    Steps around it take no slots.
    """
    if built.parts or before or after:
        steps = [step_of(each) for each in built.parts or (built,)]
        order = turns.around(built.order, len(steps), len(before), len(after))
        return Series([*steps, *before, *after], slots, order)
    assert built.code.function is not None  # a call builds for this machine
    return cpu.Launch(built.code.function, slots, threads_of(built), claims=True)


def step_of(built: Artifact) -> Step:
    """Return what a series needs to know of one of its kernels."""
    assert built.code.function is not None  # as above
    return built.code.function, len(built.slots), threads_of(built)


class CpuKernel(BoundKernel):
    """A kernel bound to arrays of the host, or to copies of them for each launch."""

    def __init__(
        self,
        convention: Convention,
        arrays: Sequence[Array],
        slots: Sequence[int],
        rebuild: Callable[[str], Artifact | Failure],
        copies: OnHost,
    ) -> None:
        self.threads = threads_of(convention.built)
        given = arrays[: len(convention.built.program.inputs)]
        before = copies.steps(given, back=False)
        after = copies.steps([arrays[n] for n in convention.outputs], back=True)
        launch = launch_of(convention.built, slots, before, after)
        null = functools.partial(cpu.null, self.threads)
        owners = [copies.owner(array) for array in arrays]
        if before or after:
            written = [owners[number] for number in convention.outputs]
            check_apart(convention.built.program.name, written)
        super().__init__(convention, owners, launch, null, rebuild)
        self.then = launch.then  # as a part of more work
        self._convention, self._slots, self._copies = convention, slots, copies
        self._walked = dict(zip(convention.names, arrays, strict=True))

    def facts(self) -> dict[str, object]:
        """Return what is known of the work without running it."""
        return {**super().facts(), "threads": self.threads}

    def binary(self) -> bytes:
        """Return the machine code, its call and its facts, for another process."""
        from steelyard_kernels.calling import foreign

        return foreign.packed(self._convention, self._walked, self._slots, self.facts())

    def of_binary(self, binary: bytes) -> ForeignKernel:
        """Return a launch of another build of this kernel on the same arrays, or copies.

        Raises KernelError where that is called on other memory.
        """
        from steelyard_kernels.calling import foreign

        return foreign.launchable(binary, self._convention, self._walked)

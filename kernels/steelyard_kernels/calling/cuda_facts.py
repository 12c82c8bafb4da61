"""What a GPU's driver says of a build, held against what was read of its cubin."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

from steelyard_device import cuda
from steelyard_device.timings import span
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.errors import CompilerBug
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.targets import parse


def facts_of_launch(built: Artifact, function: cuda.Function) -> dict[str, object]:
    """Return how a launch is cut, and how many of its blocks a multiprocessor holds.

    Raises CompilerBug where the driver does not find what was read in the cubin.
    """
    resident = function.occupancy(built.threads, built.shared)
    check_agrees(built, function.attributes, resident)
    return {
        "grid": built.blocks,
        "block": built.threads,
        "blocks_per_multiprocessor": resident,
    }


def check_agrees(built: Artifact, said: cuda.Attributes, resident: int) -> None:
    """Raise CompilerBug where driver and cubin differ: facts would be another's."""
    read = built.code.resources
    assert read is not None  # of code for a GPU
    gpu = GPUS[parse(built.target).arch]
    shared = read.shared + built.shared
    expected = gpu.blocks_resident(built.threads, read.registers, shared)
    for what, seen, known in (
        ("registers", said.registers, read.registers),
        ("bytes of shared memory", said.shared, read.shared),
        ("blocks on a multiprocessor", resident, expected),
    ):
        if seen != known:
            raise CompilerBug(
                f"{built.program.name} on {built.target}: the driver says {seen} {what}, "
                f"expected {known} by its cubin; report it with its schedule "
                f"{built.schedule.label}."
            )


def with_load(built: Artifact, context: cuda.Context) -> Artifact:
    """Return a build with the time of loading it, which is done for that alone."""
    started = perf_counter_ns()
    with span("load"):
        unload = cuda.load_again(context, built.code.image, built.code.entry)
    taken = perf_counter_ns() - started
    unload()
    return replace(built, phases=(*built.phases, ("load", taken)))

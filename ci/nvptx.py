"""Weigh one kernel's build through LLVM's PTX and nvJitLink against NVRTC's.

    python ci/nvptx.py [--arch sm_90a] [--rounds 15] [KERNEL...]

Both build the same loop kernel, in turns in one process, from emission to the cubin.
Medians in ms: of wall time, and of this process's CPU time, which neighbours disturb
less; ratios are medians of the rounds' own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any

from rich.console import Console
from rich.table import Table

from steelyard_device import cubin, nvptx, nvrtc
from steelyard_device.nvrtc import Compiled
from steelyard_kernels import library
from steelyard_kernels.emit import cuda
from steelyard_kernels.emit import nvptx as quick
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.ir.loops import Kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import device, parse

LINE = ((1 << 22,), "float32")
HALF = ((1 << 22,), "float16")
ROWS, ROW = ((8192, 4096), "float16"), ((4096,), "float16")
KERNELS: dict[str, tuple[KernelFunction, tuple[Any, ...]]] = {
    "empty": (library.empty, ()),
    "copy": (library.copy, (LINE,)),
    "triad": (library.triad, (LINE,) * 2),
    "adam": (library.adam, (LINE,) * 3),
    "adam_float16": (library.adam, (HALF,) * 3),
    "bias_layernorm": (library.bias_layernorm, (ROWS, *[ROW] * 4)),
}


def main() -> None:
    """Read the command line, weigh, print a row a kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("kernels", nargs="*", default=list(KERNELS))
    args = parser.parse_args()
    versions = f"{nvptx.compiler()} against NVRTC {nvrtc.compiler().version}"
    table = Table(title=f"{versions}, {args.arch}, {args.rounds} rounds")
    for title in (
        "kernel",
        "wall ms",
        "ratio",
        "CPU ms",
        "ratio",
        "registers",
        "bytes",
    ):
        table.add_column(title)
    for name in args.kernels:
        kernel = lowered(name, args.arch)
        table.add_row(name, *cells(kernel, args.arch, args.rounds))
    Console(width=100).print(table)


def lowered(name: str, arch: str) -> Kernel:
    """Return a library kernel under the heuristic's schedule."""
    function, specs = KERNELS[name]
    where = device(parse(f"cuda:{arch}"))
    program = function.program(*specs)
    schedule = strategies.heuristic(program, where)
    kernel = strategies.lower(program, schedule, where).kernel
    verify(kernel, "cuda")
    return kernel


def cells(kernel: Kernel, arch: str, rounds: int) -> list[str]:
    """Build both ways in turns; return medians and resources, the quick one's first."""

    def quickly() -> Compiled:
        return nvptx.compile(quick.emit(kernel), arch)

    def usually() -> Compiled:
        return nvrtc.compile(cuda.emit(kernel), arch)

    quickly(), usually()  # what is paid once a process
    rounds_of_both = [(timed(quickly), timed(usually)) for _ in range(rounds)]
    ways = list(zip(*rounds_of_both, strict=True))
    found = []
    for clock in (0, 1):
        ours, theirs = ([times[clock] for times in way] for way in ways)
        ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
        found += [f"{median(ours) / 1e6:.1f} / {median(theirs) / 1e6:.1f}"]
        found += [f"{ratio:.2f}"]
    made = [cubin.read(build().cubin)["kernel"] for build in (quickly, usually)]
    registers = " / ".join(str(one.registers) for one in made)
    return [*found, registers, " / ".join(str(one.code_bytes) for one in made)]


def timed(build: Callable[[], Compiled]) -> tuple[int, int]:
    """Return the nanoseconds of a build: wall, and of this process's CPUs."""
    wall, cpu = perf_counter_ns(), process_time_ns()
    build()
    return perf_counter_ns() - wall, process_time_ns() - cpu


if __name__ == "__main__":
    main()

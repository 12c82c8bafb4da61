"""Build the library and products by both emitters of GPU code, and hold them together.

    python ci/emitters.py [OUT.json]

CUDA C++ through NVRTC (`cuda:sm_90a`) against LLVM's PTX through nvJitLink
(`nvptx:sm_90a`), under one schedule: the time of a cold build, registers and bytes of spills
of a thread, and the GPU's time of a launch, in turn, in a warm cache. `chosen` is the time
under what `cuda` chooses itself where that is another schedule, which may have clusters and
tensor cores.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from steelyard_device import cuda
from steelyard_device.cuda import activity
from steelyard_kernels import dtypes, kernel, library
from steelyard_kernels.array import Array
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.calling import cuda_bind
from steelyard_kernels.calling.convention import convention_of
from steelyard_kernels.calling.cuda_bind import launch_of
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.library import examples
from steelyard_lock.cases import PROGRAMS, cases

ARCH: Final = "sm_90a"
ROUNDS: Final = 21
PRODUCTS: Final = ((64, 768, 768), (512, 3072, 768))

Spec = tuple[tuple[int, ...], str]
Work = tuple[str, KernelFunction, tuple[Spec, ...]]
Kept = dict[Any, cuda.Buffer]


@kernel
def product(x: Array, w: Array) -> Array:
    """Multiply x[m, k] by w[k, n]."""
    return x @ w


def every() -> Iterator[Work]:
    """Yield the kernels with the arrays that they are built for."""
    for case in cases():
        if case.kernel in PROGRAMS:
            continue  # LLVM has no tensor cores
        found = getattr(library, case.kernel)
        yield case.label, found, examples.specs(case.kernel, dict(case.axes))
    for m, n, k in PRODUCTS:
        specs = ((m, k), "float16"), ((k, n), "float16")
        yield f"product[{m}x{n}x{k}]", product, specs


def built(work: Work, target: str, schedule: Any = None) -> tuple[Artifact, float]:
    """Return a cold build and its milliseconds; raises what failed."""
    _, made, specs = work
    arrays = [(shape, dtypes.of(name)) for shape, name in specs]
    begin = perf_counter_ns()
    found = made.build(*arrays, target=target, schedule=schedule, cache="cold")
    took = (perf_counter_ns() - begin) / 1e6
    if isinstance(found, Failure):
        raise KernelError(f"{work[0]}: {target}: {found.error}")
    return found, took


def launch(work: Work, artifact: Artifact, context: cuda.Context, kept: Kept) -> Any:
    """Return a launch of a build, on arrays that other builds of the kernel share."""
    convention = convention_of(artifact, aligned=True)
    fresh = [
        (each.shape, each.dtype) for each in (*convention.fresh, *convention.hidden)
    ]
    given = [(shape, dtypes.of(name).numpy) for shape, name in work[2]]
    addresses = []
    for place, (shape, dtype) in enumerate((*given, *fresh)):
        key = place, shape, dtype
        if key not in kept:
            few = np.random.default_rng(place).standard_normal(1 << 16)
            values = (few * (dtype.kind != "i")).astype(dtype)
            kept[key] = cuda.copy_of(context, np.resize(values, shape))
        addresses.append(kept[key].address)
    context.wait()
    named = work[1].signature.scalars
    scalars = {s.name: s.default for s in named if s.default is not None}
    slots = cuda_bind.slots(convention, context.handle, addresses, scalars)
    return launch_of(artifact, context, context.stream, slots)


class Clock:
    """CUPTI's, of launches in turn."""

    def __init__(self, context: cuda.Context) -> None:
        self._context, self._recorder = context, activity.Recorder(context)
        self._windows = 0

    def times(self, works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
        """Return the median microseconds of each."""
        found: dict[int, list[int]] = {place: [] for place in range(len(works))}
        first = self._windows
        with self._recorder.recording():
            for place in list(found) * rounds:
                works[place]()
                with self._recorder.window(self._windows):
                    works[place]()
                self._windows += 1
            self._context.wait()
        for number, acts in self._recorder.collect().items():
            ends = max(act.end for act in acts) - min(act.start for act in acts)
            found[(number - first) % len(works)].append(ends)
        return [statistics.median(each) / 1e3 for each in found.values()]


def measured(work: Work, context: cuda.Context, clock: Clock) -> dict[str, Any]:
    """Return what both emitters make of a kernel."""
    nvptx, slow = built(work, f"nvptx:{ARCH}")
    chosen, _ = built(work, f"cuda:{ARCH}")
    schedule = None if nvptx.parts else nvptx.schedule
    text, quick = built(work, f"cuda:{ARCH}", schedule)
    kept: Kept = {}
    launches = [launch(work, each, context, kept) for each in (text, nvptx, chosen)]
    times = clock.times([each.launch for each in launches], ROUNDS)
    row: dict[str, Any] = {"case": work[0], "chosen_us": times[2]}
    row["chosen"] = facts_of(chosen)["schedule"]
    for name, one, took, us in (
        ("cuda", text, quick, times[0]),
        ("nvptx", nvptx, slow, times[1]),
    ):
        facts = facts_of(one)
        row[name] = {"build_ms": took, "us": us}
        row[name] |= {
            key: facts.get(key) for key in ("registers", "spill_bytes", "schedule")
        }
    return row


def main(out: str = "") -> None:
    """Print a line a kernel, and the geometric means."""
    context = cuda.context()
    clock, rows = Clock(context), list[dict[str, Any]]()
    for work in every():
        try:
            row = measured(work, context, clock)
        except KernelError as error:  # what one of them does not emit
            sys.stdout.write(f"{error}\n")
            continue
        rows.append(row)
        c, n = row["cuda"], row["nvptx"]
        sys.stdout.write(
            f"{row['case']}: build {c['build_ms']:.0f} {n['build_ms']:.0f} ms, "
            f"{c['us']:.2f} {n['us']:.2f} us ({n['us'] / c['us']:.3f}), registers "
            f"{c['registers']} {n['registers']}, chosen {row['chosen_us']:.2f} us\n"
        )
    for what in ("build_ms", "us"):
        ratios = [row["nvptx"][what] / row["cuda"][what] for row in rows]
        mean = statistics.geometric_mean(ratios)
        sys.stdout.write(
            f"{what}, nvptx over cuda: {mean:.3f} [{min(ratios):.3f}, {max(ratios):.3f}]\n"
        )
    if out:
        Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:2])

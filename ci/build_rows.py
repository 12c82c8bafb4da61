"""How much of a build's wall time its rows explain: bars of ci/build_bars.py."""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

from bars import Bar

from steelyard_device.spans import explained
from steelyard_device.timings import Timings, timings
from steelyard_kernels import library
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.cache import disk
from steelyard_kernels.library import examples

STEPS: Final = {
    "codegen",
    "parse",
    "check",
    "link",
    "CUDA C++ Frontend",
    "NVVM Optimizer",
    "PTX Translation",
    "function",
}
"""What LLVM and NVRTC do in one call, or say no more of than their own logs do; and the
kernel's function, which is its author's."""


def tracked(rounds: int = 5) -> Iterator[Bar]:
    """How much of builds' wall time their rows explain, and the widest of ours."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEELYARD_CACHE"] = folder
        disk.cache_clear()
        # One turn of the scheduler is as long as five builds from disk: more of them.
        for cache, count in (("cold", rounds), ("warm-disk", 5 * rounds)):
            seen = [
                (
                    f"{name} {target}",
                    [recorded(name, target, cache) for _ in range(count)],
                )
                for name in sorted(examples.SHAPES)
                for target in ("cpu", "cuda:sm_90a")
            ]
            yield from _tracked(cache, seen)


def recorded(name: str, target: str, cache: str) -> Timings:
    """Record five builds, after one that the caches are filled by."""
    kernel, arrays = getattr(library, name), examples.specs(name)
    assert isinstance(kernel.build(*arrays, target=target, cache=cache), Artifact)
    gc.collect()
    gc.disable()  # as `steelyard compile` does: it is other builds' leavings
    with timings() as taken:
        for _ in range(5):
            kernel.build(*arrays, target=target, cache=cache)
    gc.enable()
    return taken


def _tracked(
    cache: str, seen: Sequence[tuple[str, Sequence[Timings]]]
) -> Iterator[Bar]:
    """Hold the median recording of each kernel and target against the bars."""
    command = "python ci/build_bars.py --only tracked"
    middle = statistics.median_low
    least, of = min((middle(t.coverage for t in every), k) for k, every in seen)
    inner, inner_of = min(
        (middle(explained(t.rows(), t.wall) for t in every), k) for k, every in seen
    )
    yield Bar(
        f"wall time of a {cache} build that its rows explain, the least of all library "
        "kernels",
        ">= 95 %",
        f"{least:.1%} ({of}); innermost rows alone {inner:.1%} ({inner_of})",
        least >= 0.95,
        command,
    )
    (widest, row), label = max(
        (middle(widest_of_ours(t) for t in every), k) for k, every in seen
    )
    yield Bar(
        f"the widest row of a {cache} build that hides what is in it, steps of "
        "compilers and linkers apart",
        "<= 30 %",
        f"{widest:.0%} ({row} of {label})",
        widest <= 0.3,
        command,
    )


def widest_of_ours(taken: Timings) -> tuple[float, str]:
    """Return the widest row that no other lies in, as a share of the wall.

    What rows inside of a row leave is such a row. Steps of a foreign compiler are not
    ours to see into, nor is what runs inside of them.
    """
    rows = taken.rows()
    holding = {row.path[:-1] for row in rows}
    found = [
        (row.nanoseconds / taken.wall, " > ".join(row.path))
        for row in rows
        if row.path not in holding and not STEPS & set(row.path)
    ]
    return max(found)

"""What a call of a compiled kernel on a CPU takes beside NumPy's ufunc, as JSON.

``python ci/call_bars.py`` measures both in turn in one process: calls of 16 floats, with
``out=`` and allocating; the memory of 100,000 results; and a launch of 100,000 elements
behind a parallel region of another library (GNU OpenMP, whose threads go on spinning).
`ci/gpu_launch.py` has the calls on a GPU's tensors. It ends with 1 if a bar is missed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from steelyard_device import cpu, llvm
from steelyard_kernels import kernel
from steelyard_kernels.array import Array

BARS = {"given": 1.5, "allocated": 2.0, "memory": 2.0, "after_openmp": 2.0}
ROUNDS, CALLS = 41, 2000
RESULTS = 100_000
REGION = "define void @region(ptr %data) {\n  ret void\n}"


@kernel
def add(x: Array, y: Array) -> Array:
    """Return x + y."""
    return x + y


def ns(call: Callable[[], object], count: int = CALLS) -> float:
    """Return the nanoseconds of one call of many."""
    start = perf_counter_ns()
    for _ in range(count):
        call()
    return (perf_counter_ns() - start) / count


def in_turn(
    ours: Callable[[], object], theirs: Callable[[], object]
) -> dict[str, float]:
    """Return both medians and that of the rounds' ratios."""
    pairs = [(ns(ours), ns(theirs)) for _ in range(ROUNDS + 1)][1:]
    mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return {
        "ours_ns": round(mine, 1),
        "numpy_ns": round(other, 1),
        "ratio": round(ratio, 3),
    }


def calls() -> dict[str, dict[str, float]]:
    """Return what calls of 16 floats take."""
    x, y, out = (np.arange(16, dtype=np.float32) for _ in range(3))
    for _ in range(4):
        add(x, y)
        add(x, y, out=out)
    return {
        "given": in_turn(lambda: add(x, y, out=out), lambda: np.add(x, y, out=out)),
        "allocated": in_turn(lambda: add(x, y), lambda: np.add(x, y)),
    }


def held(who: str) -> int:
    """Return the bytes that the results of one function take in this process."""
    x = np.ones(16, np.float32)
    function: Callable[..., object] = add if who == "ours" else np.add
    kept: list[object] = [None] * RESULTS
    for _ in range(8):
        function(x, x)
    gc.collect()
    before = resident()
    for place in range(RESULTS):
        kept[place] = function(x, x)
    return resident() - before


def resident() -> int:
    """Return the bytes of memory that this process has pages for."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def memory() -> dict[str, float]:
    """Return what results take, each in a fresh process."""
    ours, theirs = (
        int(subprocess.check_output([sys.executable, __file__, who]))
        for who in ("ours", "numpy")
    )
    return {
        "ours_bytes": ours / RESULTS,
        "numpy_bytes": theirs / RESULTS,
        "ratio": round(ours / theirs, 3),
    }


def after_openmp() -> dict[str, object]:
    """Return what a launch takes with and without a region right before it."""
    try:
        parallel = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except OSError:
        return {"ratio": None, "why": "there is no libgomp.so.1 here"}
    region = llvm.link(llvm.assemble(REGION), ["region"])["region"]
    double = kernel(lambda x: x * 2)
    x = np.ones(100_000, np.float32)
    bound = double.bind(x)

    def launched(*, behind: bool) -> float:
        if behind:
            parallel(ctypes.c_void_p(region), None, 0, 0)
        return ns(bound.launch, 1)

    pairs = [
        tuple([launched(behind=behind) for _ in range(50)] for behind in (False, True))
        for _ in range(20)
    ][1:]
    without, behind = (
        [time for part in parts for time in part] for parts in zip(*pairs, strict=True)
    )
    a, b = statistics.median(without), statistics.median(behind)
    return {
        "without_us": round(a / 1e3, 2),
        "after_us": round(b / 1e3, 2),
        "ratio": round(b / a, 3),
        "mean_ratio": round(statistics.mean(behind) / statistics.mean(without), 3),
        "threads": cpu.pool_size(),
    }


def main() -> int:
    """Print what was measured with its bars; return 1 if one is missed."""
    if len(sys.argv) > 1:
        sys.stdout.write(str(held(sys.argv[1])))
        return 0
    rows: dict[str, dict[str, object]] = {
        **{name: dict(row) for name, row in calls().items()},
        "memory": dict(memory()),
        "after_openmp": after_openmp(),
    }
    missed = 0
    for name, row in rows.items():
        ratio = row["ratio"]
        row["bar"] = BARS[name]
        missed |= isinstance(ratio, float) and ratio > BARS[name]
    sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    return missed


if __name__ == "__main__":
    sys.exit(main())

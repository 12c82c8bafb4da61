"""What the thread's loop takes in JAX on a GPU and on the CPU beside it, as JSON.

``python ci/loop_jax.py`` prints milliseconds by device, dtype and program: the first call,
and the median call after with the lowest and the highest, each waited for. They are read
on the host's clock: the least is twenty times what a call costs there.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))  # the suites are not installed
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # others measure on this GPU

from suites import jax_loops
from suites.loops import UNITS, WIDTH

CALLS = 15


def rows() -> Iterator[dict[str, Any]]:
    """Yield what each program took on each device."""
    import jax

    for device in [jax.devices()[0], jax.devices("cpu")[0]]:
        for dtype in ("float32", "float64"):
            with jax.enable_x64(True), jax.default_device(device):
                rng = np.random.default_rng(0)
                x, w1, w2 = (
                    jax.numpy.asarray(rng.uniform(-2.5, -1.5, shape), dtype)
                    for shape in ((WIDTH,), (WIDTH, UNITS), (UNITS, WIDTH))
                )
                key = jax.numpy.asarray(12)
                for name, program in {
                    **jax_loops.programs(),
                    "jax_gradient": gradient(),
                }.items():
                    call = jax.jit(program)
                    times = [timed(call, x, key, w1, w2) for _ in range(CALLS + 1)]
                    yield {
                        "device": device.device_kind,
                        "platform": device.platform,
                        "dtype": dtype,
                        "program": name,
                        "first_ms": times[0],
                        "ms": statistics.median(times[1:]),
                        "low": min(times[1:]),
                        "high": max(times[1:]),
                    }


def gradient() -> Callable[..., Any]:
    """Return the sum of the second listing and its gradients by both weights."""
    import jax

    second = jax_loops.programs()["jax"]

    def total(x: Any, key: Any, w1: Any, w2: Any) -> Any:
        return second(x, key, w1, w2).sum()

    return jax.value_and_grad(total, (2, 3))


def timed(call: Callable[..., Any], *arrays: Any) -> float:
    """Return the milliseconds of a call that is waited for."""
    import jax

    began = perf_counter()
    jax.block_until_ready(call(*arrays))
    return 1e3 * (perf_counter() - began)


def main() -> None:
    """Print one object."""
    import jax

    said = {"jax": jax.__version__, "calls": CALLS, "rows": list(rows())}
    sys.stdout.write(json.dumps(said, indent=2) + "\n")


if __name__ == "__main__":
    main()

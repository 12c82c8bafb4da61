"""How long the thread's loop takes from its first call to its result, as JSON.

``python ci/loop_first.py ours|jax DTYPE`` in a process of its own, which has imported
everything: to trace, to compile with no cache, and to run 8000 iterations once.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))  # the suites are not installed

from suites import jax_loops
from suites.loops import UNITS, WIDTH

from steelyard_kernels import library


def main(whose: str, dtype: str) -> None:
    """Print one object."""
    os.environ["STEELYARD_CACHE"] = "off"
    rng = np.random.default_rng(0)
    x, w1, w2 = (
        rng.uniform(-2, -1, shape).astype(dtype)
        for shape in ((WIDTH,), (WIDTH, UNITS), (UNITS, WIDTH))
    )
    key, out = np.asarray(12), np.empty_like(x)
    run = library.noisy_mlp if whose == "ours" else jax_loops.compiled("jax_within")
    began = perf_counter()
    run(x, key, w1, w2, out=out)
    taken = perf_counter() - began
    assert np.isfinite(out).all()
    sys.stdout.write(json.dumps({"seconds": taken}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How many kernels a GPU runs for the thread's 8000 iterations, as CUPTI counts them.

``python ci/loop_launches.py`` prints one object: kernels by way to launch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))  # the suites are not installed

from suites.loops import OURS, UNITS, WIDTH

from steelyard_device import cuda
from steelyard_device.cuda import activity
from steelyard_device.cuda.memory import copy_of
from steelyard_kernels.library.noisy_mlp import ITERATIONS


def main() -> None:
    """Print one object."""
    context = cuda.context()
    recorder = activity.Recorder(context)
    shapes = ((WIDTH,), (WIDTH, UNITS), (UNITS, WIDTH))
    x, w1, w2 = (copy_of(context, np.full(each, -1, np.float32)) for each in shapes)
    key, out = copy_of(context, np.asarray(12)), cuda.Buffer(context, (1,), "float32")
    works = {name: one.bind(x, key, w1, w2, out=out) for name, one in OURS.items()}
    with recorder.recording():
        for number, work in enumerate(works.values()):
            with recorder.window(number):
                work.launch(1)
            work.wait()
        found = recorder.collect()
    kernels = {
        name: sum(one.kind == "kernel" for one in found[number])
        for number, name in enumerate(works)
    }
    said = {"iterations": ITERATIONS, "kernels": kernels, "gpu": context.device.name}
    sys.stdout.write(json.dumps(said, indent=2) + "\n")


if __name__ == "__main__":
    main()

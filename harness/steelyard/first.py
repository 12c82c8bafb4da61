"""Build and launch one case in this fresh process, then print where its time went.

Run as ``python -m steelyard.first PATH NAME AXES``, axes in JSON; the parent has the
time it started. Prints JSON: ``began`` in CLOCK_MONOTONIC, and the nanoseconds of
importing, of the first kernel and, where the work can be built, of the second.
"""

from time import monotonic_ns

BEGAN = monotonic_ns()  # before anything else of ours is imported

import json  # noqa: E402 # timed
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from steelyard import discovery, ledger, work  # noqa: E402
from steelyard.buffers import Buffers  # noqa: E402


def main(path: str, name: str, axes: str) -> None:
    """Launch the case once; the time its data takes is nowhere counted."""
    case = discovery.load(Path(path), name).case(json.loads(axes))
    description = case.describe()
    imported = monotonic_ns()
    launched = not description.call.built_for
    buffers = Buffers(description.handles if launched else (), 0, {})
    started = monotonic_ns()
    weighed = work.realise(description, buffers)
    if launched:
        weighed.launch(1)
        weighed.wait()
    done = monotonic_ns()
    said = {
        "began": BEGAN,
        "import": imported - BEGAN,
        "first kernel": done - started,
    }
    if isinstance(weighed, work.Buildable):
        weighed.build("cold")
        said[ledger.SECOND] = monotonic_ns() - done
    print(json.dumps(said))  # noqa: T201 # the answer to the parent


if __name__ == "__main__":
    main(*sys.argv[1:])

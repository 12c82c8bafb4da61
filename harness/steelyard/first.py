"""Build and launch one case in this fresh process, then print the time it was done.

Run as ``python -m steelyard.first PATH NAME AXES``, axes in JSON; the parent has the
time it started.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import monotonic_ns

from steelyard import discovery, work
from steelyard.buffers import Buffers


def main(path: str, name: str, axes: str) -> None:
    """Launch the case once; print CLOCK_MONOTONIC less the time its data took, in ns."""
    case = discovery.load(Path(path), name).case(json.loads(axes))
    description = case.describe()
    before = monotonic_ns()
    buffers = Buffers(description.handles, 0, {})
    data = monotonic_ns() - before
    weighed = work.realise(description, buffers)
    weighed.launch(1)
    weighed.wait()
    print(monotonic_ns() - data)  # noqa: T201 # the answer to the parent


if __name__ == "__main__":
    main(*sys.argv[1:])

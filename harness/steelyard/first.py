"""Build and launch one case in this fresh process, then print where its time went.

Run as `windows.FIRST` with PATH NAME AXES, axes in JSON; the parent has the time it
started. Prints JSON: ``began`` in CLOCK_MONOTONIC, and the nanoseconds of importing, of
the first kernel and, where the work can be built, of the second.
"""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic_ns

from steelyard import discovery, ledger, work
from steelyard.buffers import Buffers


def main(began: int, path: str, name: str, axes: str) -> None:
    """Launch the case once; the time its data takes is nowhere counted.

    ``began`` is when the process came to the first line of ours.
    """
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
        "began": began,
        "import": imported - began,
        "first kernel": done - started,
    }
    if isinstance(weighed, work.Buildable):
        weighed.build("cold")
        said[ledger.SECOND] = monotonic_ns() - done
    print(json.dumps(said))  # noqa: T201 # the answer to the parent

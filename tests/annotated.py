"""Histories of other projects, and where a person saw steps in them.

``series.json`` has windows with their times, whose licences (``series.txt``) allow that.
``annotated.json`` has windows of other projects without: these are read from clones, in
the folder that `STEELYARD_SERIES` names. ``noise.json`` has 240 runs of eight kernels on
a busy machine of two cores, in nanoseconds.
"""

import json
import math
import os
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from steelyard.store.imports import asv

HERE = Path(__file__).parent
NOISE = json.loads((HERE / "noise.json").read_text())
WITHIN = 5
"""Runs by which a place may be off."""

NEEDED = (
    "numpy-bench",
    "scipy-bench",
    "sunpy-benchmarks",
    "TCPD",
    "signal-processing-algorithms",
)
WHY = (
    "STEELYARD_SERIES names no folder with clones of pv/numpy-bench, pv/scipy-bench, "
    "sunpy/sunpy-benchmarks, alan-turing-institute/TCPD and "
    "mongodb/signal-processing-algorithms"
)


def kept(*, later=False):
    """Return (times, clear steps, unclear places) of each window that is kept here.

    Or only of those that were chosen `later`, when the detector's limits were fixed.
    """
    return [
        (one["values"], one["steps"], one["unclear"])
        for one in _told("series.json", later=later)
    ]


def clones():
    """Return the folder of the clones, or None."""
    folder = Path(os.environ.get("STEELYARD_SERIES", "/nonexistent"))
    return folder if all((folder / name).is_dir() for name in NEEDED) else None


def _told(name, *, later):
    windows = json.loads((HERE / name).read_text())["windows"]
    return [one for one in windows if one.get("later") or not later]


def windows(folder, *, later=False):
    """Return (times, clear steps, unclear places) of windows in clones, as `kept`."""
    wanted = defaultdict(list)
    for one in _told("annotated.json", later=later):
        wanted[one["repository"].partition("/")[2], one["machine"]].append(one)
    found = []
    for (name, machine), group in wanted.items():
        series = _series(folder / name / "results", machine)
        for one in group:
            points = series[one["case"]]
            last = points[-1].like
            times = [p.point for p in points if p.like == last]
            times = times[one["first"] : one["first"] + one["runs"]]
            assert times[0].commit.startswith(one["commit"]), one
            values = [point.estimate.value for point in times]
            found.append((values, one["steps"], one["unclear"]))
    return found


def _series(results, machine):
    """Return what asv kept of one machine, by case."""
    series = defaultdict(list)
    with tempfile.TemporaryDirectory() as made:
        alone = Path(made)
        for name in (machine, asv.BENCHMARKS):
            (alone / name).symlink_to((results / name).resolve())
        for one in asv.measured(alone):
            if one.point is not None:
                series[one.case].append(one)
    return series


def published(folder):
    """Return the series that other projects publish with their steps: times, steps."""
    mongodb = folder / "signal-processing-algorithms/tests/data/robust_series.json"
    found = {"robust_series": (json.loads(mongodb.read_text()), [25, 68, 114])}
    steps = {1: [144], 2: [97], 3: [179], 5: []}
    for number, at in steps.items():
        name = f"quality_control_{number}"
        read = json.loads(
            (folder / "TCPD/datasets" / name / f"{name}.json").read_text()
        )
        found[name] = ([20 + x for x in read["series"][0]["raw"]], at)
    return found


def score(detect, windows):
    """Return how many steps were found, how many were none, and how many missed."""
    hits = false = missed = 0
    for values, steps, unclear in windows:
        left = list(detect(values))
        for step in steps:
            near = [at for at in left if abs(at - step) <= WITHIN]
            if near:
                left.remove(min(near, key=lambda at: abs(at - step)))
            hits += bool(near)
            missed += not near
        false += sum(all(abs(at - u) > WITHIN for u in unclear) for at in left)
    return hits, false, missed


def peers():
    """Return other detectors that are installed, by name: times in, steps out.

    Each is asked for changes of 1 % and more.
    """
    return {
        name: found
        for name, made in (
            ("asv", _asv),
            ("Otava", _otava),
            ("e-divisive", _e_divisive),
            ("PELT, BIC", _pelt),
        )
        if (found := made()) is not None
    }


def _lasting(values, cuts):
    """Leave the cuts at which the mean changes by 1 %."""
    ends = [0, *cuts, len(values)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    changes = zip(cuts, pairwise(means), strict=True)
    return [at for at, (old, new) in changes if abs(math.log(new / old)) > 0.01]


def _asv():
    try:
        from asv import step_detect
    except ImportError:
        return None

    def detect(values):
        found = step_detect.detect_steps(values)
        return _lasting(values, [first for first, *_ in found[1:]])

    return detect


def _otava():
    try:
        from otava.analysis import compute_change_points
    except ImportError:
        return None

    def detect(values):
        found, _ = compute_change_points(
            values, window_len=50, max_pvalue=0.001, min_magnitude=0.01
        )
        return [one.index for one in found]

    return detect


def _e_divisive():
    try:
        from signal_processing_algorithms.energy_statistics import energy_statistics
    except ImportError:
        return None

    def detect(values):
        return _lasting(
            values, sorted(energy_statistics.e_divisive(values, pvalue=0.01))
        )

    return detect


def _pelt():
    try:
        import ruptures
    except ImportError:
        return None

    def detect(values):
        import numpy as np

        logs = np.log(values)
        noise = 1.4826 * np.median(np.abs(np.diff(logs))) / math.sqrt(2)
        price = 3 * math.log(len(values)) * noise**2
        found = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(logs).predict(price)
        return _lasting(values, found[:-1])

    return detect

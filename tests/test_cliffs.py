"""Sizes that are slower than the others predict: found where they are, and only there."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import trials

from steelyard.analyse.cliffs import Size, cliffs
from steelyard.analyse.rows import rows
from steelyard.analyse.stats import Estimate
from steelyard.report import curves, sweeps

HIDDEN = (768, 1024, 1280, 1536, 1600, 2048, 2560, 4096, 5140, 12288, 16384, 20480)
BEFORE = (27.9, 34.6, 47.3, 47.9, 60.0, 60.6, 90.0, 130, 432, 430, 1740, 1045)
AFTER = (26.7, 32.8, 44.3, 45.5, 55.4, 58.0, 77.5, 105, 304, 328, 514, 672)
"""Microseconds of a layer norm of 8192 rows in float16 on an A100, as NVIDIA/Fuser#383
reports them: before and after casts were removed."""


def sizes(times, known=0.01, nbytes=4 * 8192):
    """Return the sizes of a sweep over elements of a row."""
    return [
        Size(
            at,
            Estimate(1e3 * time, 1e3 * time * (1 - known), 1e3 * time * (1 + known)),
            {"bytes": float(nbytes * at)},
        )
        for at, time in zip(HIDDEN, times, strict=True)
    ]


def test_what_people_saw_in_a_layer_norm_is_found():
    """5140 and "the last four cases" of one table; of the other 5140 alone."""
    assert [one.at for one in cliffs(sizes(BEFORE))] == [5140, 12288, 16384, 20480]
    (one,) = cliffs(sizes(AFTER))
    assert one.at == 5140
    assert one.slower == pytest.approx(2.3, abs=0.1)


def test_an_interval_that_reaches_the_others_is_no_cliff():
    """What is not surely slower is not said to be."""
    assert cliffs(sizes(BEFORE, known=0.9)) == []
    assert cliffs(sizes(BEFORE)[:4]) == []
    assert cliffs([]) == []


def made_up(seed, noise):
    """Return a sweep of some kind of kernel without a cliff, as noisy as it says."""
    draw = random.Random(seed)
    count, low = draw.randrange(5, 25), 2 ** draw.uniform(3, 10)
    if draw.random() < 0.7:
        step = draw.choice((1.1, 1.3, 2, 4))
        places = [round(low * step**n) + n for n in range(count)]
    else:
        places = sorted(draw.sample(range(64, 20_000), count))
    fixed, each = 10 ** draw.uniform(0, 5), 10 ** draw.uniform(-2, 1)
    middle = places[count // 2]
    kind = draw.choice(("copy", "saturating", "cubes", "squares", "log", "fixed"))
    grown = {
        "copy": lambda n: n,
        "saturating": lambda n: n * (1 + 0.2 / (1 + n / middle)),
        "cubes": lambda n: n**3 / 1e3,
        "squares": lambda n: n**2 / 100,
        "log": lambda n: n * math.log2(n) / 10,
        "fixed": lambda n: 0,
    }[kind]
    found = []
    for n in places:
        time = (fixed + each * grown(n)) * math.exp(draw.gauss(0, noise))
        half = 2 * noise * time
        work = {"bytes": 12.0 * n * n if kind == "cubes" else 8.0 * n}
        if kind == "cubes" and draw.random() < 0.5:
            work["operations"] = 2.0 * n**3
        found.append(Size(n, Estimate(time, time - half, time + half), work))
    return found


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_few_sweeps_without_a_cliff_have_one(noise):
    """At most 1 %, of kernels that copy, compute, search, or take a fixed time."""
    wrong = sum(bool(cliffs(made_up(seed, noise))) for seed in range(400))
    assert wrong <= 4


def test_nearly_every_cliff_that_is_made_is_found():
    """One size of a copy, twice as slow, in 1,000 sweeps; the first two have no trend."""
    found = 0
    for seed in range(1000):
        draw = random.Random(seed)
        at, each = draw.randrange(2, 8), 10 ** draw.uniform(-1, 1)
        swept = []
        for n in range(8):
            time = (1000 + each * 2**n * 1000) * (2 if n == at else 1)
            time *= math.exp(draw.gauss(0, 0.02))
            whole = Estimate(time, 0.96 * time, 1.04 * time)
            swept.append(Size(2**n, whole, {"bytes": 8000.0 * 2**n}))
        found += [one.at for one in cliffs(swept)] == [2**at]
    assert found >= 950


def swept(times, mode="kernel/warm", impl="ours", nbytes=1000):
    """Return trials of a benchmark over n."""
    return [
        trials.trial(
            f"norm[n={n},impl={impl}]",
            range(time, time + 40),
            mode=mode,
            block=0,
            facts={"bytes": nbytes * n},
        )
        for n, time in times.items()
    ]


def test_a_copy_that_is_slower_too_excuses_a_size():
    """Beyond a cache a copy's rate falls as well; a size that is slower still stays."""
    times = {n: 10_000 * n * (1 if n < 32 else 4) for n in (2, 4, 8, 16, 32, 64)}
    slow = times | {64: 3 * times[64]}
    run = trials.run()
    for mode, copies, at in (
        ("kernel/cold", None, [32, 64]),
        ("kernel/cold", times, [64]),
        ("kernel/warm", times, [64]),
    ):
        made = swept(slow, mode) + (swept(copies, mode, "copy") if copies else [])
        (found,) = (
            one
            for one in sweeps.curves(run, rows(made), "n")
            if "copy" not in one.point
        )
        assert [cliff.at for cliff in found.cliffs] == at


def test_sizes_in_different_caches_do_not_predict_each_other():
    """Of a warm sweep without a copy, sizes that fit in a cache are judged apart."""
    times = {2**n: 10_000 * 2**n * (4 if n > 5 else 1) for n in range(11)}
    apart = trials.FACTS["identity"] | {"caches": {"L2": {"bytes": 33_000}}}
    run = trials.run(machine=trials.FACTS | {"identity": apart})
    (found,) = sweeps.curves(run, rows(swept(times)), "n")
    assert found.cliffs == ()
    (found,) = sweeps.curves(run, rows(swept(times | {16: 900_000})), "n")
    assert [cliff.at for cliff in found.cliffs] == [16]


def test_the_picture_of_the_pages_is_of_these_tables():
    """README.md and docs show it; this draws it anew."""
    found = [
        curves.Curve(
            "layer norm of NVIDIA/Fuser#383,",
            point,
            tuple((one.at, one.time) for one in sizes(times)),
            tuple(cliffs(sizes(times))),
        )
        for point, times in (("casts kept", BEFORE), ("casts removed", AFTER))
    ]
    picture = Path(__file__).parents[1] / "docs" / "cliffs.svg"
    assert picture.read_text() == curves.svg(found, "hidden")


def test_an_axis_of_shapes_is_no_axis_of_sizes():
    """Imported ones are lists."""
    made = rows([replace(one, axes={"n": [one.axes["n"]]}) for one in swept({1: 9})])
    assert sweeps.axes(made) == []
    assert list(sweeps.sentences(trials.run(), made)) == []


def test_cliffs_are_named_and_drawn():
    """In a sentence, and in the picture beside the point."""
    times = {n: 10_000 * n for n in (2, 4, 8, 16, 32, 64)} | {64: 2_000_000}
    made = rows(swept(times, "kernel/cold"))
    (said,) = sweeps.sentences(trials.run(), made)
    assert said == (
        "cliff: norm kernel/cold takes 2.000 ms at n = 64, 3.1 times what the other "
        "sizes predict"
    )
    drawn = curves.svg(sweeps.curves(trials.run(), made, "n"), "n")
    assert said in drawn
    assert 'font-weight="bold">64</text>' in drawn

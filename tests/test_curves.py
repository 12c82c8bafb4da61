"""Times over an axis as a picture, and where one overtakes another."""

import math
from xml.etree import ElementTree as ET

import pytest
import trials
from hypothesis import given
from hypothesis import strategies as st

from steelyard import SteelyardError
from steelyard.analyse import rows
from steelyard.analyse.stats import Estimate
from steelyard.report import curves
from steelyard.report.curves import Curve
from steelyard.report.scale import Scale

SVG = "{http://www.w3.org/2000/svg}"


def curve(times, what="cpu kernel/warm", point=""):
    """Return a curve of exact times by value."""
    exact = sorted((at, Estimate(t, t, t)) for at, t in times.items())
    return Curve(what, point, tuple(exact))


def measured(sizes=(1, 16, 256)):
    """Return rows of a CPU, slower with each chain, and of a GPU, which is not."""
    found = []
    for units in (1, 12):
        for n in sizes:
            for name, time in (("sizes", 1000 * n), ("gpu_sizes", 8000 * units)):
                case, axes = f"{name}[units={units},n={n}]", {"units": units, "n": n}
                ticks = tuple(range(time, time + 40))
                found.append(
                    trials.trial(case, ticks, mode="kernel/warm", block=0, axes=axes)
                )
    return rows.rows(found)


def test_one_overtakes_where_lines_between_logarithms_meet():
    """Time n against a constant 8 meets at 8, which nobody measured."""
    cpu, gpu = curve({1: 1.0, 64: 64.0}), curve({1: 8.0, 64: 8.0}, "gpu")
    assert curves.crossovers(cpu, gpu) == pytest.approx([8.0])
    assert curves.crossovers(gpu, cpu) == [1]
    assert curves.crossovers(gpu, gpu) == []
    assert curves.crossovers(cpu, curve({3: 0.5})) == []


@given(
    st.dictionaries(
        st.integers(1, 10**6),
        st.tuples(st.floats(1, 1e9), st.floats(1, 1e9)),
        min_size=1,
        max_size=8,
    )
)
def test_whoever_overtook_last_is_the_faster_at_the_end(times):
    """Overtakings of both directions take turns, each within the values measured."""
    one = curve({at: a for at, (a, _) in times.items()})
    other = curve({at: b for at, (_, b) in times.items()}, "gpu")
    there, back = curves.crossovers(one, other), curves.crossovers(other, one)
    assert abs(len(there) - len(back)) <= 1
    assert all(
        min(times) <= at * (1 + 1e-9) and at <= max(times) * (1 + 1e-9)
        for at in there + back
    )
    last, mine = times[max(times)][1], times[max(times)][0]
    if last < mine:
        assert max(there) >= max(back, default=0)


def test_a_line_a_row_in_one_colour_for_what_is_to_be_compared():
    """CPU and GPU of as many units have one colour and two kinds of dashes."""
    found = curves.curves(measured(), "n")
    assert [one.name for one in found] == [
        "gpu_sizes kernel/warm units=1",
        "gpu_sizes kernel/warm units=12",
        "sizes kernel/warm units=1",
        "sizes kernel/warm units=12",
    ]
    drawn = ET.fromstring(curves.svg(found, "n"))
    lines = [g for g in drawn.iter(f"{SVG}g") if g.get("stroke")]
    assert len({g.get("stroke") for g in lines}) == 2
    assert len({g.get("stroke-dasharray") for g in lines}) == 2
    assert len({(g.get("stroke"), g.get("stroke-dasharray")) for g in lines}) == 4
    assert all(len(list(g.iter(f"{SVG}circle"))) == 3 for g in lines)


def test_the_picture_says_from_where_on_the_gpu_is_faster():
    """8 chains of one unit, 96 of twelve, but for the spread of the windows."""
    said = list(curves.overtakings(curves.curves(measured(), "n"), "n"))
    assert [line for line in said if line.startswith("gpu")] == [
        "gpu_sizes kernel/warm units=1 is faster than sizes kernel/warm from n = 7.97 on",
        "gpu_sizes kernel/warm units=12 is faster than sizes kernel/warm from n = 96 on",
    ]


def test_a_row_that_failed_is_no_point(tmp_path):
    """Of nothing but failures there is no picture."""
    failed = rows.rows(
        [trials.trial("sizes[n=1]", (), mode="kernel/warm", axes={"n": 1}, error="no")]
    )
    assert curves.curves(failed, "n") == []
    with pytest.raises(SteelyardError, match="no row was measured over n"):
        curves.write(str(tmp_path / "x.svg"), [], "n")


def test_names_are_text_and_no_markup():
    """An axis may be called anything."""
    drawn = curves.svg([curve({1: 1.0}, "a<b", "x=1&2")], "n<m")
    assert "a<b x=1&2" in [each.text for each in ET.fromstring(drawn).iter()]


@pytest.mark.parametrize("across", [None, "impl", "zero", "missing"])
def test_what_has_no_logarithm_is_no_axis(across):
    """The sentence names those that are."""
    points = [{"n": 1, "impl": "ours", "zero": 0}, {"n": 2, "impl": "a", "zero": 1}]
    with pytest.raises(SteelyardError, match="give --across one of n"):
        curves.require(points, across, "x.svg")
    curves.require(points, "n", "x.svg")


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path):
    """Not after minutes."""
    with pytest.raises(SteelyardError, match="cannot be written"):
        curves.require([{"n": 1}], "n", str(tmp_path / "none" / "x.svg"))


@given(st.floats(1e-3, 1e12), st.floats(1.7, 1e6))
def test_round_times_lie_between_and_are_few(low, factor):
    """Powers of ten, or 1, 2 and 5 times those."""
    found = Scale(low, low * factor, 0, 1, log=True).ticks()
    assert len(found) <= 9
    assert all(low <= each <= low * factor for each in found)
    assert all(
        math.isclose(each / 10 ** math.floor(math.log10(each) + 1e-9), n)
        for each in found
        for n in [round(each / 10 ** math.floor(math.log10(each) + 1e-9))]
        if n in {1, 2, 5}
    )

import math

import pytest
import trials
from test_report import rendered

from steelyard.analyse import agreement, rows
from steelyard.analyse.doubts import clocks
from steelyard.analyse.stats import Estimate
from steelyard.report import clocks_table


def near(value, half=10.0):
    """Return an estimate with this half of an interval."""
    return Estimate(value, value - half, value + half)


def measured(clocks, block=0, **changes):
    """Return a trial that CUPTI read 3200 ns of, and others what the test says."""
    read = {
        name: {
            "ticks": ticks,
            "quantum": 32.0,
            "offset": offset,
            "uncertainty": 150.0,
            "drift": 1e-3,
        }
        for name, (ticks, offset) in clocks.items()
    }
    return trials.trial(
        "copy[n=1]",
        samples=trials.samples([3200] * 40),
        clock=trials.clock("cupti"),
        block=block,
        extra={"clocks": read, **changes},
    )


@pytest.mark.parametrize(
    ("less", "more", "kernels", "cause"),
    [
        ("cupti", "events", 1, "longer to launch than the delay that calibrates does"),
        ("events", "cupti", 1, "recording with CUPTI makes this kernel slower"),
        ("cupti", "events", 3, "of one launch, events reads them"),
        ("cupti", "graph", 2, "of one launch, graph reads them"),
        ("cupti", "graph", 1, "find another state of the caches"),
        ("events", "graph", 3, "find another state of the caches"),
        ("globaltimer", "cupti", 1, "is a build of its own, with more registers"),
    ],
)
def test_clocks_whose_intervals_do_not_meet_are_named_with_the_likely_cause(
    less, more, kernels, cause
):
    """Whichever way round they are given."""
    for order in ((less, more), (more, less)):
        values = {less: near(3200.0), more: near(3600.0)}
        read = [(trials.clock(name), values[name]) for name in order]
        (said,) = agreement.disagree(read, kernels)
        assert said.startswith(f"{more} reads 400.0 ns more than {less}")
        assert "leave 380.0 ns of it" in said
        assert said.endswith(f"{cause}.")


def test_intervals_that_touch_agree():
    """And one clock always does with itself; NaN is not called a difference of clocks."""
    cupti, events = map(trials.clock, ("cupti", "events"))
    assert not agreement.disagree([(cupti, near(3200.0)), (events, near(3220.0))])
    assert not agreement.disagree([(cupti, near(3200.0))])
    assert not agreement.disagree([])
    assert not agreement.disagree([(cupti, near(math.nan)), (events, near(3220.0))])


def test_each_clock_is_read_with_its_own_offset():
    """The trial's own comes first."""
    trial = measured({"events": ([6100] * 9, 2900.0), "graph": ([3260] * 9, 60.0)})
    found = agreement.readings(trial)
    assert list(found) == ["cupti", "events", "graph"]
    assert {estimate.value for estimate in found.values()} == {3200.0}
    assert found["events"].systematic == pytest.approx(150.0 + 3.2)
    assert not clocks.clocks_disagree(trial)


def test_a_trial_of_one_clock_has_one_reading():
    """Also where another one read nothing."""
    assert list(agreement.readings(measured({}))) == ["cupti"]
    assert list(agreement.readings(measured({"events": ([], 0.0)}))) == ["cupti"]
    assert list(agreement.readings(trials.trial())) == ["perf_counter_ns"]


def shown(made):
    """Return the page as a terminal shows it."""
    return rendered(clocks_table.page(rows.rows(made)))


def test_the_table_has_a_line_for_each_clock_with_the_parts_of_its_bar():
    """And a sentence for those that disagree."""
    clocks = {"events": ([6600] * 9, 2900.0), "graph": ([3260] * 9, 60.0)}
    page = shown([measured(clocks, block) for block in range(3)])
    lines = [line.split() for line in page.splitlines()]
    words = [line for line in lines if "us" in line]
    assert [line[-12:-10] for line in words[:3]] == [
        ["3.200", "us"],
        ["3.700", "us"],
        ["3.200", "us"],
    ]
    half, offset, drift = ("153.7", "150.0", "3.700")
    assert [words[1][place] for place in (-10, -4, -2)] == [half, offset, drift]
    assert "copy[n=1] kernel/warm: events reads 500.0 ns more than cupti" in page
    assert all(part in page for part in clocks_table.PARTS)


def test_blocks_that_another_clock_did_not_read_are_left_out_of_its_line():
    """It read the second one only."""
    made = [measured({}), measured({"events": ([6100] * 9, 2900.0)}, block=1)]
    (row,) = rows.rows(made)
    found = clocks_table.by_clock(row)
    assert [len(each) for each in found.values()] == [2, 1]


def test_rows_of_one_clock_make_no_table():
    """Nor does nothing."""
    assert shown([trials.trial()]) == ""
    assert shown([]) == ""

"""One axis, or the mode, across a table."""

import pytest
import trials
from test_report import rendered

from steelyard import SteelyardError
from steelyard.analyse import rows
from steelyard.report import columns, pivot, stored
from steelyard.report.formats import Results
from steelyard.report.grid import grid


def titles(sheet):
    """Return the titles of a table's columns."""
    return tuple(column.title for column in sheet.columns)


def measured(case, mode="kernel/warm", time=1000, **more):
    """Return the blocks of a case whose windows read about ``time`` ns."""
    ticks = tuple(range(time, time + 40))
    return [trials.trial(case, ticks, mode=mode, block=b, **more) for b in range(3)]


def calls(**more):
    """Return the rows of two cases in batches, the second without the largest."""
    cells = {("ours", 1): 900, ("ours", 10): 300, ("ours", 100): 200, ("numpy", 1): 700}
    cells["numpy", 10] = 600
    found = []
    for (impl, batch), time in cells.items():
        mode = "per_launch/warm" + f"/{batch}" * (batch > 1)
        found += measured(f"call[n=8,impl={impl}]", mode, time, **more)
    return rows.rows(found)


def test_what_goes_across_is_golden(golden):
    """Modes in their order; each cell has its error, and a mark where it is doubted.

    What was not measured is a dash; an axis of one value is in the title. Below are
    tables of ratios, paired within blocks, and of what is wanted and known, then what
    doubts mean and what failed: of nothing there is no table.
    """
    failed = trials.trial("call[n=9]", (), error="call[n=9]: it is wrong.")
    made = calls(facts={"items": 2}, doubts=("drifting",))
    shown = [*rows.relative_to(made, "impl=numpy"), *rows.rows([failed])]
    wanted = columns.read("cpu,items,watts")
    text = rendered(pivot.page(shown, "mode", wanted), 100)
    golden("".join(f"{line.rstrip()}\n" for line in text.splitlines()))
    assert pivot.sheets(rows.rows([failed]), "n") == []


def test_values_of_an_axis_go_across_as_numbers():
    """100 is behind 20; the one mode ends the title; who has no such axis is left out."""
    sizes = (100, 3, 20)
    made = [t for n in sizes for t in measured(f"copy[n={n}]", axes={"n": n})]
    (found,) = pivot.sheets(rows.rows([*made, *measured("b[m=1]")]), "n")
    assert titles(found) == ("n=3", "n=20", "n=100")
    assert found.title == "copy kernel/warm"
    assert len(found.rows) == 1


def test_shapes_are_written_as_in_case_ids():
    """One word each."""
    shapes = ((64, 768), (4096, 768))
    made = rows.rows(
        t
        for shape in shapes
        for t in measured(f"mm[shape={shape[0]}x768,impl=a]", axes={"shape": shape})
    )
    (found,) = pivot.sheets(made, "mode")
    assert {line[0] for line in found.rows} == {"64x768", "4096x768"}


def test_an_axis_that_no_case_has_is_refused():
    """The nearest is told; a mode is always there, and nothing has no axes."""
    points = [row.axes for row in calls()]
    pivot.require(points, "mode")
    with pytest.raises(SteelyardError, match="axes: impl"):
        pivot.require(points, "imp")
    with pytest.raises(SteelyardError, match="there are none"):
        pivot.require([], "n")


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_what_is_too_wide_goes_on_below(width):
    """No cell is lost or cut, and a row of nothing is left out of its part."""
    (whole,) = pivot.sheets(calls(), "mode")
    parts = list(whole.fitting(width))
    assert {titles(part)[0] for part in parts} == {"impl"}
    assert sum((titles(part)[1:] for part in parts), ()) == titles(whole)[1:]
    if width < 80:
        assert len(parts[-1].rows) == 1
    text = rendered(pivot.page(calls(), "mode"), 200)
    assert all(cell in text for line in whole.rows for cell in line)


def test_what_names_all_rows_alike_is_in_the_title_of_a_wide_table():
    """Once, as a terminal may have it; of figures that are none there is no part."""
    titles_ = [name * 20 for name in "abc"]
    lines = [("same\x1b[31m", n, "1", "-", "3") for n in "xy"]
    parts = list(grid("times", ("case", "n"), titles_, lines).fitting(40))
    assert [part.title for part in parts] == ["times, case same\\x1b[31m", "times"]
    assert [titles(part) for part in parts] == [("n", titles_[0]), ("n", titles_[2])]
    assert not list(grid("", ("case",), titles_, [("x", "-", "-", "-")]).fitting(40))


def test_markdown_is_one_table_whatever_its_width():
    """JSON and CSV have no tables and say so."""
    run = trials.run()
    text = stored.dumps("markdown", Results(run, [], calls(), "mode"))
    heads = "| impl | per_launch/warm | per_launch/warm/10 | per_launch/warm/100 |"
    assert f"{heads}\n| --- | ---: | ---: | ---: |\n" in text
    with pytest.raises(SteelyardError, match="--format csv is none"):
        stored.dumps("csv", Results(run, [], calls(), "mode"))

"""Scripts of ci/ that judge the clocks of a GPU."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script of ci/."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module


def test_a_line_through_readings_is_straight_in_their_ratios(script):
    """A constant offset is the intercept, and no microsecond outweighs another."""
    slope, intercept = script("gpu_clocks").line(
        [(x, 1.001 * x + 600) for x in (2e3, 5e4, 2e6)]
    )
    assert slope == pytest.approx(1.001)
    assert intercept == pytest.approx(600)

"""Scripts of ci/ that write pages and judge the clocks of a GPU."""

import importlib
import importlib.metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch):
    """Return a function that imports a script of ci/."""
    monkeypatch.syspath_prepend(str(ROOT / "ci"))
    return importlib.import_module


def test_a_table_is_what_its_command_prints(script):
    """Between the markers; a command that prints nothing leaves the page as it is."""
    page = "a\n<!-- $ steelyard --version -->\nold\n<!-- $ -->\nb\n"
    version = importlib.metadata.version("steelyard")
    made = page.replace("old", f"steelyard {version}")
    assert script("tables").written(page) == made
    with pytest.raises(SystemExit, match="there is no nothing"):
        script("tables").written(page.replace("--version", "claims nothing"))


def test_a_line_through_readings_is_straight_in_their_ratios(script):
    """A constant offset is the intercept, and no microsecond outweighs another."""
    slope, intercept = script("gpu_clocks").line(
        [(x, 1.001 * x + 600) for x in (2e3, 5e4, 2e6)]
    )
    assert slope == pytest.approx(1.001)
    assert intercept == pytest.approx(600)

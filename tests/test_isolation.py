"""What one case leaves behind must not reach another: through the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from steelyard.cli import main

SUITE = """
import numpy as np

from steelyard import benchmark


@benchmark
def large(b):
    x = b.input(1 << 20, "float64")
    y = b.output(1 << 20, "float64")
    return b.launch(lambda x, out: np.add(2 * x, x, out=out), x, out=y)


@benchmark
def temporaries(b):
    x = b.input(200_000, "float64")
    y = b.output(200_000, "float64")

    def work(x, out):
        parts = [x + n for n in range(12)]
        np.add(parts[0], parts[11], out=out)

    return b.launch(work, x, out=y)
"""


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """Work in a folder with a store, a lock and a suite of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_LOCK", str(tmp_path / "lock"))
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "suite.py").write_text(SUITE)
    return tmp_path


def command(*arguments, code=0):
    """Run the command line and return what it printed."""
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def measured(file, *arguments, code=0):
    """Run a suite; return its trials by case."""
    command("run", file, "--json", "run.json", *arguments, code=code)
    told = json.loads(Path("run.json").read_text())
    return {trial["case"]: trial for trial in told["trials"]}


def test_a_case_that_allocates_takes_the_same_alone_and_after_another():
    """It was 4 times as slow alone: glibc trimmed its heap in each launch."""
    how = ("--mode", "kernel/warm", "--blocks", "1", "--seed", "0")
    both = measured("suite.py", *how)
    alone = measured("suite.py", *how, "-k", "temporaries")
    ratio = alone["temporaries"]["low"] / both["temporaries"]["low"]
    assert 0.5 < ratio < 2
    said = " ".join(command("compare", "@-2", "@-1").split())
    assert "selection" in said
    assert "2, 1 of them not in new" in said
    run = json.loads(command("show", "--format", "json"))
    assert "never trims" in run["machine"]["settings"]["freed_memory"]

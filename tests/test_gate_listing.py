"""Which cases a side's suites have, asked from outside."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from shell import git
from test_gate_sides import SUITE, project

from steelyard.gate import listing
from steelyard.gate.sides import Side
from steelyard.store.session import Request

__all__ = ["project"]


def known(base, places, pattern=None):
    """Return the ids of base's own cases."""
    return {case.id for case in listing.known(base, Request(places, pattern))}


def test_base_is_driven_by_heads_suites_and_asked_for_its_own_before(project):
    """So that a case that vanished is seen."""
    with Side.of_ref("HEAD", ["suites"]) as base:
        assert known(base, ["suites"]) == {"adding[n=16]", "adding[n=32]"}
        assert known(base, ["suites"], "64") == set()
        long = f"16 or {'x' * mmap.PAGESIZE * 32}"  # than an argument may be
        assert known(base, ["suites"], long) == {"adding[n=16]"}
        assert known(base, ["other"]) == set()
        base.install_suites()
        file = project / "suites" / "adding.py"
        assert base.path_of(file) == base.root / "suites" / "adding.py"
        assert base.path_of(file).read_text() == file.read_text()
        assert base.path_of(Path("/elsewhere.py")) == Path("/elsewhere.py")


def test_what_a_case_measures_is_known_without_its_code(project):
    """What its launch is given, and what its files hold, is part of it."""
    suite, data = project / "suites" / "adding.py", project / "data.npy"
    head = Side.head()

    def defined(*, steps=3, value=1, work="work(x, steps, out):\n    pass"):
        np.save(data, np.arange(16) + value)
        text = f"from steelyard import benchmark\nSTEPS = {steps}\ndef {work}\n"
        text += f"@benchmark\ndef adding(b):\n    x = b.load({str(data)!r})\n"
        suite.write_text(
            f"{text}    y = b.output(16)\n    return b.launch(work, x, STEPS, out=y)"
        )
        return listing.definitions(head, listing.of(head, Request(["suites"])).cases)

    assert defined() == defined(work="work(x, steps, out):\n    1 / 0")
    others = [
        defined(),
        defined(steps=40),
        defined(value=2),
    ]  # of other sizes: bytecode is kept
    assert len({one["adding"] for one in others}) == len(others)


@pytest.mark.parametrize("place", [".", "mine.suite"])
def test_suites_are_also_the_whole_checkout_or_modules(project, place):
    """Base has its own, and takes head's where these are installed."""
    suite = project / "src" / "mine" / "suite.py"
    for sizes in ("16", "32"):
        suite.write_text(SUITE.format(sizes=sizes).replace("def adding", "def more"))
        git(project, "add", "src")
        git(project, "commit", "-q", "-m", sizes)
    head = Side.head().prepared()
    with head as head, Side.of_ref("HEAD~1", [place], files=[suite]) as base:
        assert known(base, [place], "more") == {"more[n=16]"}
        base.install_suites()
        assert base.path_of(suite).read_text() == suite.read_text()

"""Baselines that nothing can be read from, or that are of something else: never a pass."""

import json
import math
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest
import shell
import storm_gate
import trials
from fakes import case_of
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse.verdict import Verdict
from steelyard.declare.mode import parse
from steelyard.errors import FINE, USAGE
from steelyard.gate import decide, stored
from steelyard.gate.blocks import Point, unusable
from steelyard.gate.decide import POLICY, Evidence
from steelyard.gate.outcome import Outcome
from steelyard.store.store import Store


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Make a repository with a stored run, and a copy of its store."""
    made = storm_gate.Shop(tmp_path_factory.mktemp("shop"))
    code, said = steelyard(made, "run", "--tag", "old", "--blocks", "1", "--no-check")
    assert code == FINE, said
    return made


def steelyard(shop, *arguments):
    """Run a command where the suite is; return its exit code and all that it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop.root)
        patch.setattr(tempfile, "tempdir", str(shop.temporary))
        done = shell.command(*arguments, code=None)
    return done.exit_code, done.output


def copied(shop, tmp_path):
    """Return a copy of the shop's store, and a connection that changes it."""
    place = tmp_path / "copy.db"
    with sqlite3.connect(shop.store) as old, sqlite3.connect(place) as new:
        old.backup(new)
    return place, sqlite3.connect(place)


def truncated(place):
    """Leave the first half."""
    data = place.read_bytes()
    place.write_bytes(data[: len(data) // 2])


def text(place):
    """Leave something that is no database."""
    place.write_text("case,ns\ncopy,12\n")


def foreign(place):
    """Leave a database of somebody else's."""
    place.unlink()
    with sqlite3.connect(place) as database:
        database.execute("create table benchmarks (name text)")


def garbled(place):
    """Leave samples that are none."""
    with sqlite3.connect(place) as database:
        database.execute("update trial set samples = x'00ff00ff'")


@pytest.mark.parametrize("damage", [truncated, foreign, garbled])
def test_a_store_that_cannot_be_read_is_no_baseline(damage, shop, tmp_path):
    """One sentence and exit code 4; what is not ours stays as it is.

    `test_store` has every other damage.
    """
    place, _ = copied(shop, tmp_path)
    damage(place)
    before = place.read_bytes()
    code, said = steelyard(shop, "gate", "old", "--store", str(place))
    assert code == USAGE, said
    assert "Traceback" not in said
    assert "passed" not in said
    if damage is foreign:
        assert place.read_bytes() == before


def test_a_run_of_another_machine_is_refused_with_what_differs(shop, tmp_path):
    """Exit code 4, before anything is measured."""
    place, database = copied(shop, tmp_path)
    ((document,),) = database.execute("select machine from run")
    other = json.loads(document)
    other["identity"]["cpu"], other["identity"]["id"] = "Other CPU", "ffff"
    with database:
        database.execute("update run set machine = ?", [json.dumps(other)])
    trials.seal(place)
    code, said = steelyard(shop, "gate", "old", "--store", str(place))
    assert code == USAGE, said
    assert "machine" in said
    assert "Other CPU" in said or "ffff" in said


def test_a_case_of_another_dtype_is_not_comparable(tmp_path):
    """Exit code 4, and both are named; whatever the times are."""

    def copying(b):
        x = b.input((4,), "float32")
        return b.launch(lambda x: None, x)

    point = Point(case_of(copying), parse("latency/warm"))
    path = tmp_path / "s.db"

    def kept(dtype):
        facts = {"dtype": dtype}
        made = trials.trial("copying", mode="latency/warm", facts=facts)
        return trials.kept(path, [made])

    sides = kept("float32"), kept("float64")
    with Store.open(str(path)) as store:
        (found,) = stored.findings(store, *sides, [point])
    assert found.note == "not comparable: dtype float32 -> float64"
    assert Outcome("old", "new", (found,)).exit_code == USAGE


def test_a_base_that_does_not_build_is_refused_with_the_end_of_its_log(shop):
    """Exit code 4, and no worktree is left."""
    config = shop.root / "pyproject.toml"
    before = config.read_text()
    line = "sh -c 'echo no compiler; exit 3'"
    config.write_text(f'[tool.steelyard]\nbuild = "{line}"\n')
    try:
        code, said = steelyard(shop, "gate", "HEAD")
    finally:
        config.write_text(before)
    assert code == USAGE, said
    assert "does not build" in said
    assert "no compiler" in said
    assert shop.worktrees() == 0


@pytest.mark.parametrize(
    ("ticks", "offset", "sentence"),
    [
        ([], 0.0, "no window"),
        ([5, -5, 5] * 10, 0.0, "10 of 30 windows took no time, or less"),
        ([0] * 30, 0.0, "30 of 30 windows took no time"),
        ([100] * 30, 200.0, "is no time"),
        ([100] * 30, math.nan, "is no time"),
        ([100] * 30, math.inf, "is no time"),
        ([100] * 30, 0.0, ""),
    ],
)
def test_a_time_that_is_none_is_told_and_never_judged(ticks, offset, sentence):
    """Negative, nothing, not a number, or infinite."""
    clock = trials.clock("events", 1.0, offset=offset)
    said = unusable(trials.trial(ticks=ticks, clock=clock))
    assert (sentence in said) if sentence else said == ""


ODD = st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=12), ODD, st.data())
def test_a_block_that_is_no_number_never_passes(blocks, odd, data):
    """In whichever place; a mean that is no number is none."""
    place = data.draw(st.integers(0, len(blocks)))
    spoilt = (*blocks[:place], odd, *blocks[place:])
    seen = {"a": Evidence(spoilt)}
    assert decide.undecided(seen, POLICY) == set()
    judged = decide.judge(seen, {}, POLICY)["a"][0]
    assert judged.verdict is Verdict.UNRESOLVED
    assert judged.more > 0
    even = Evidence((0.0,) * len(spoilt), spoilt)
    assert decide.judge({"a": even}, {}, POLICY)["a"][0].verdict is not Verdict.SPREAD


def test_killed_commands_lose_nothing_and_the_next_one_works(tmp_path, monkeypatch):
    """At a moment each; `storm_gate.py` does so two hundred times."""
    shorter = ["run", "--blocks", "2", "--no-check"]
    monkeypatch.setitem(storm_gate.COMMANDS, "run", shorter)
    length = {"run": 1.5, "gate": 3.0}
    seen = storm_gate.storm(Path(tmp_path), 2, os.getpid(), length)
    assert {name: seen[name] for name in storm_gate.WRONG} == dict.fromkeys(
        storm_gate.WRONG, 0
    )
    assert seen["trials"] > 0

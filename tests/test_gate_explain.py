import dataclasses
import math

import pytest
import shell
import trials
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse.stats import Estimate
from steelyard.gate import worktrees
from steelyard.gate.difference import Difference
from steelyard.gate.explain import accounts, explain, ranked
from steelyard.gate.outcome import StaticChange

FACTS = {
    "code_hash": "aa",
    "schedule": "tile 4",
    "registers": 40,
    "blocks_resident": 8,
    "spill_bytes": 0,
    "opcodes": {"FADD": 60, "LDG": 40},
    "bytes": 8192,
}


def side(mhz=(1980, 1980), facts=(), **changes):
    """Return a side's trials of two blocks on a GPU."""
    samples = trials.samples(range(1000, 1040))
    values = {"facts": FACTS | dict(facts), "samples": samples} | changes
    made = [
        values | {"samples": dataclasses.replace(values["samples"], mhz=(clock,) * 40)}
        for clock in mhz
    ]
    case = "softmax[columns=768]"
    return [trials.trial(case, block=block, **one) for block, one in enumerate(made)]


def because(ratio, **changes):
    """Return why the second side takes ``ratio`` of the first's time."""
    estimate = Estimate(ratio, ratio - 0.01, ratio + 0.01)
    return explain(side(), side(**changes), estimate)


def test_sides_that_do_not_differ_explain_nothing():
    """Whatever the ratio, there is nothing to point at."""
    assert because(1.5) == ()
    assert explain([], side()) == ()


def test_what_accounts_for_more_of_the_change_comes_first():
    """12 % more instructions explain 12 %; a clock at 99 % does not."""
    facts = {"opcodes": {"FADD": 60, "LDG": 40, "HFMA2": 12}, "registers": 43}
    first, *rest = because(1.12, mhz=(1960, 1960), facts=facts | {"code_hash": "bb"})
    assert first == "12 % more instructions (HFMA2 +12) (accounts for up to 100 %)"
    assert rest == [
        "3 more registers, 40 -> 43",
        "other code",
        "the clock 1980 -> 1960 MHz (accounts for up to 9 %)",
    ]


def test_fewer_blocks_at_once_predict_as_much_more_time():
    """A third fewer blocks hide at most a third less of the waiting."""
    found = because(1.33, facts={"blocks_resident": 6, "registers": 48})
    assert found[0] == (
        "occupancy, 2 fewer blocks, 8 -> 6 on a multiprocessor (accounts for up to "
        "100 %)"
    )


def test_a_slow_clock_is_blamed_before_code_that_predicts_the_other_direction():
    """It takes fewer instructions and longer: the clock fell by a tenth."""
    found = because(1.1, mhz=(1800, 1800), facts={"opcodes": {"FADD": 50, "LDG": 40}})
    assert found == (
        "the clock 1980 -> 1800 MHz (accounts for up to 100 %)",
        "10 % fewer instructions (FADD -10) (for the other direction)",
    )


def test_what_predicts_nothing_stands_in_an_order_of_plausibility():
    """Other work first, the machine last."""
    state = {"throttle": ["gpu_idle", "hw_slowdown"], "temperature_c": 84}
    capped = {"sw_power_cap": 7, "sw_thermal": 0, "hw_slowdown": "unknown"}
    found = explain(
        side(extra={"neighbours": 0.0}),
        side(
            facts={"code_hash": "bb", "schedule": "tile 8", "spill_bytes": 16},
            extra={"gpu": {"after": state, "capped": capped}, "neighbours": 1.5},
            hashes={"method": "1", "source": "s1", "inputs": "other"},
        ),
        Estimate(1.2, 1.1, 1.3),
        ({"versions": {"numpy": "2.1", "commit": "a"}}, {"versions": {"numpy": "2.2"}}),
        files=("harness/a.py", "kernels/softmax.py", "b.py", "c.py"),
    )
    assert found == (
        "other inputs",
        "schedule tile 4 -> tile 8",
        "16 more bytes of spills, 0 -> 16",
        "other code",
        "changed: kernels/softmax.py, harness/a.py, b.py and 1 more",
        "slowed down for none -> sw_power_cap",
        "temperature none -> 80 °C",
        "others used 0.0 -> 1.5 processors",
        "numpy 2.1 -> 2.2",
    )


def test_half_the_work_is_said_to_be_other_work():
    """A kernel that became quicker because it does less."""
    assert because(0.5, facts={"bytes": 4096}) == (
        "bytes of a launch 8.00 KiB -> 4.00 KiB (accounts for up to 100 %)",
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"registers": None, "opcodes": None, "bytes": "unknown"},
        {"registers": math.nan, "opcodes": {}, "blocks_resident": 0, "bytes": math.inf},
    ],
)
def test_facts_that_are_not_there_predict_nothing(facts):
    """Absent, unknown, zero and not a number: no share, no error."""
    assert not [words for words in because(1.1, facts=facts) if "accounts" in words]


DIFFERENCES = st.lists(
    st.builds(
        Difference,
        st.sampled_from(["inputs", "code", "registers", "clock", "versions"]),
        st.just("differs"),
        st.floats(0.1, 10),
    )
)


@given(DIFFERENCES, st.floats(-1, 1))
def test_a_rank_never_prefers_who_accounts_for_less(found, change):
    """Of two notable predictions the larger stands first, the contrary ones last."""
    shares = [accounts(one, change) for one in ranked(found, change)]
    notable = [share for share in shares if share is not None and share >= 0.1]
    assert notable == sorted(notable, reverse=True)
    assert shares[: len(notable)] == notable
    contrary = [share is not None and share < 0 for share in shares]
    assert contrary == sorted(contrary)


def test_changed_files_are_those_that_git_names(tmp_path):
    """Committed or not; tests and what is no source make nothing slower."""
    for name in ("a.py", "b.py", "test_a.py", "c.txt", "d.cu"):
        (tmp_path / name).write_text("1")
    shell.commit(tmp_path, "first")
    for name in ("a.py", "test_a.py", "c.txt", "d.cu"):
        (tmp_path / name).write_text("2")
    assert worktrees.changed(tmp_path, "HEAD") == ("a.py", "d.cu")
    assert worktrees.changed(tmp_path, "no-such") == ()
    assert worktrees.changed(tmp_path, f"--output={tmp_path / 'written'}") == ()
    assert not (tmp_path / "written").exists()


def test_without_git_nothing_is_explained_by_files(tmp_path, monkeypatch):
    """An explanation is less then, never an error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert worktrees.changed(tmp_path, "HEAD") == ()


STATIC = (
    StaticChange("softmax[n=9,dtype=float16]", "cpu:x86-64-v3", ("2 more loads",)),
    StaticChange("softmax[n=9,dtype=float32]", "cpu:x86-64-v3", ("9 % more", "b")),
    StaticChange("softmax[n=9,dtype=float32]", "cuda:sm_90a", ("3 more registers",)),
    StaticChange("soft[n=9,dtype=float32]", "cpu:x86-64-v3", ("1 more loads",)),
)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            {"target": "cpu"},
            ("code of softmax[n=9,dtype=float32] cpu:x86-64-v3: 9 % more, b",),
        ),
        ({"target": "cpu", "opcodes": {"add": 1}}, ()),
        ({"target": "nvptx:sm_90"}, ()),
        ({}, ()),
    ],
)
def test_the_lock_file_tells_what_a_kernel_does_not_count_itself(facts, told):
    """Of its own name and kind of target, the size that is nearest."""
    one = trials.trial("softmax[n=7,dtype=float32]", [1000] * 8, facts=facts)
    assert explain([one], [one], static=STATIC) == told

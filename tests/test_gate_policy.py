import dataclasses
import multiprocessing
import re
import textwrap
import tomllib
from datetime import date, timedelta
from pathlib import Path

import outcomes
import pytest
import shell
import trials
from hypothesis import given
from hypothesis import strategies as st
from outcomes import CASE, finding, outcome

from steelyard.analyse.verdict import Verdict
from steelyard.errors import FAILED, FINE, REGRESSION, SteelyardError
from steelyard.gate import document, doubted, policy, policy_file, words
from steelyard.gate.decide import POLICY
from steelyard.gate.policy import Accepted, Rules, apply

TODAY = date(2026, 11, 20)
PATH = Path("ci/policy.toml")
TEXT = """
# why this file
[static]
forbid = ["spills", "local loads"]
reason = "always an accident here"

[[tolerance]]
cases = "softmax and kernel/cold"
percent = 8
reason = "the flush moves it"
until = 2027-06-30

[[tolerance]]
cases = "softmax or dispatch"
percent = 12.5
reason = "Python's own time"
until = 2026-11-19
"""


def rules(text=TEXT):
    """Return the rules of a text."""
    return policy_file.parse(text, PATH)


def judged(*findings, text=TEXT, today=TODAY, **changes):
    """Return what a policy makes of findings."""
    return apply(outcome(*findings, **changes), rules(text), today)


def meant(one=None, **changes):
    """Return an acceptance of a finding."""
    one = one or finding()
    values = {
        "case": one.case,
        "mode": one.mode,
        "verdict": policy.verdict_of(one),
        "reason": "it is right now",
        "on": TODAY,
        "base": one.codes[0],
        "head": one.codes[1],
        "ratio": (1.08, 1.12),
    }
    return Accepted(**(values | changes))


def test_a_slowdown_within_the_tolerance_passes_with_its_reason():
    """Beyond it is a regression all the same."""
    made = judged(finding(ratio=1.07))
    assert made.exit_code == 0
    assert made.findings[0].reason == "the flush moves it"
    assert judged(finding(ratio=1.09)).exit_code == 1


def test_a_pattern_is_of_the_case_and_its_mode():
    """Another mode of the case is not covered."""
    assert judged(finding(ratio=1.07, mode="latency/warm")).exit_code == 1


def test_a_tolerance_holds_on_its_last_day_and_not_after():
    """Once over it lets nothing pass, and that is said with the line."""
    slow = finding("dispatch[n=1]", ratio=1.1)
    assert judged(slow, today=date(2026, 11, 19)).exit_code == 0
    late = judged(slow, today=date(2026, 11, 20))
    assert late.exit_code == 1
    (note,) = late.notes
    assert note.startswith("ci/policy.toml:13: the tolerance of 'softmax or dispatch'")
    assert "ended on 2026-11-19" in note


def test_what_a_case_may_move_is_what_it_is_measured_for():
    """As long as its tolerance holds; of all other cases it is the gate's own."""
    noisy, quiet = ("softmax[n=9]", "kernel/cold"), ("adam[n=9]", "kernel/cold")
    held = rules().policy([noisy, quiet], date(2027, 6, 30))
    assert held.of(" ".join(noisy)).tolerance == pytest.approx(0.08)
    assert held.of(" ".join(quiet)).tolerance == POLICY.tolerance
    assert rules().policy([noisy, quiet], date(2027, 7, 1)) == POLICY


@pytest.mark.parametrize(
    ("words", "fails"),
    [
        ("more bytes of spills: 0 -> 16", True),
        ("fewer bytes of spills: 16 -> 8", False),
        ("4 new local loads", True),
        ("more local loads: 0 -> 1", True),
        ("more local stores: 0 -> 4", False),
        ("more registers: 40 -> 43", False),
    ],
)
def test_code_fails_by_itself_where_there_is_more_of_what_is_forbidden(words, fails):
    """Less of it is what everybody wants."""
    static = (dataclasses.replace(outcomes.STATIC[0], changes=(words,)),)
    made = judged(static=static)
    assert made.exit_code == fails
    assert ("always an accident here" in made.static[0].forbidden) == fails


ACCEPTING = [
    ({}, {}, True),
    ({}, {"codes": ("aa" * 8, "cc" * 8)}, False),  # another change of the same case
    ({}, {"mode": "kernel/warm"}, False),
    ({}, {"judgement": outcomes.judgement(1.3)}, False),  # much worse than it was
    ({}, {"judgement": outcomes.judgement(1.15)}, True),  # hardly worse
    ({}, {"judgement": outcomes.judgement(float("nan"))}, False),
    ({}, {"judgement": None}, False),
    ({"ratio": None}, {}, False),
    ({"base": "", "head": ""}, {"codes": ("", "")}, True),  # nobody knows the code
    ({"base": "", "head": ""}, {}, False),
]


@pytest.mark.parametrize(("of_policy", "of_finding", "passes"), ACCEPTING)
def test_only_the_very_change_that_was_meant_passes(of_policy, of_finding, passes):
    """Its codes, its mode, its verdict, and no worse than it was measured."""
    one = meant(**of_policy)
    made = apply(outcome(finding(**of_finding)), Rules(PATH, accepted=(one,)), TODAY)
    assert (made.exit_code == 0) == passes
    assert (made.findings[0].reason == "it is right now") == passes


def test_a_change_of_unknown_code_is_accepted_for_a_month():
    """There is no hash that would tell the next change from it."""
    slow = finding(codes=("", ""))
    with_hash, without = (Rules(accepted=(meant(one),)) for one in (finding(), slow))
    late = TODAY + timedelta(days=31)
    assert apply(outcome(slow), without, TODAY).exit_code == 0
    assert apply(outcome(slow), without, late).exit_code == 1
    assert apply(outcome(finding()), with_hash, late).exit_code == 0


def test_a_case_that_vanished_passes_only_where_that_is_meant():
    """A crash is never accepted, whatever the policy says."""
    gone = finding(mode="", verdict=None, note="vanished: only the base has this case")
    one = Rules(accepted=(meant(gone, ratio=None),))
    assert apply(outcome(gone), Rules(), TODAY).exit_code == 2
    assert apply(outcome(gone), one, TODAY).exit_code == 0
    crash = dataclasses.replace(gone, note="the worker died of SIGSEGV")
    assert apply(outcome(crash), one, TODAY).exit_code == 2


def test_an_accepted_change_that_was_merged_is_said_to_be_over():
    """Base has the new code: nothing is left to accept."""
    merged = finding(
        verdict=Verdict.IDENTICAL_CODE, judgement=None, codes=("bb" * 8,) * 2
    )
    made = apply(outcome(merged), Rules(PATH, accepted=(meant(line=7),)), TODAY)
    assert made.notes == (
        f"ci/policy.toml:7: the accepted change of {CASE} is in the baseline; remove it.",
    )


def test_an_unexplained_improvement_is_told():
    """An accepted one is not."""
    quick = finding(verdict=Verdict.FASTER, ratio=0.8)
    (note,) = judged(quick, text="").notes
    assert note.startswith(f"{CASE}: faster, and nobody has said why")
    known = Rules(accepted=(meant(quick, ratio=(0.78, 0.82)),))
    assert apply(outcome(quick), known, TODAY).notes == ()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[static", 1, "cannot be read"),
        ("[[tolerance]]\npercent = 5", 1, "has no cases, expected words of case ids"),
        (
            TEXT.replace("percent = 8", "percent = 0"),
            9,
            "percent is 0, expected a number",
        ),
        (TEXT.replace("percent = 8", "percent = nan"), 9, "percent is nan"),
        (TEXT.replace("percent = 8", "percent = true"), 9, "percent is True"),
        (TEXT.replace("2026-11-19", "2026-11-19T00:00:00"), 17, "until is 2026-11-19T"),
        (TEXT.replace("2026-11-19", "'soon'"), 17, "until is 'soon', expected a date"),
        (TEXT.replace('"Python\'s own time"', '" "'), 16, "reason is ' ', expected"),
        (TEXT.replace("softmax or dispatch", "softmax or"), 13, "cases cannot be read"),
        (TEXT.replace("until = 2027-06-30", ""), 7, "this tolerance has no until"),
        (TEXT.replace("forbid", "forbids"), 4, "static has no 'forbids'; did you mean"),
        (TEXT.replace("[static]", "[statics]"), 3, "a policy has no 'statics'"),
        ("tolerance = 5", 1, "tolerance is 5, expected [[tolerance]] before each"),
        ("static = 5", 1, "static is 5, expected a table"),
        ("tolerance = [5]", 1, "tolerance is 5"),
        ('[[accepted]]\ncase = "a"\nmode = 5', 1, "this accepted has no verdict"),
    ],
)
def test_a_bad_policy_is_refused_with_the_line(text, line, words):
    """In one sentence, before anything is measured."""
    with pytest.raises(SteelyardError) as caught:
        rules(text)
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0
    where = f"ci/policy.toml:{line}: " if "cannot be read" not in words else str(PATH)
    assert str(caught.value).startswith(where)


def test_a_file_that_is_not_there_is_an_empty_policy_unless_it_was_named(
    tmp_path, monkeypatch
):
    """A folder or bytes that are no text are neither."""
    monkeypatch.chdir(tmp_path)
    assert policy_file.load() == Rules(tmp_path / PATH)
    with pytest.raises(SteelyardError, match="No such file"):
        policy_file.load(tmp_path / "mine.toml")
    (tmp_path / "ci").mkdir()
    (tmp_path / PATH).write_bytes(b"\xff\xfe")
    with pytest.raises(SteelyardError, match="cannot be read"):
        policy_file.load()


def test_the_policies_that_are_written_down_are_policies():
    """The documentation's, the docstring's, and our own."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "gate.md").read_text()
    (shown,) = re.findall(r"```toml\n(\[static\].*?)```", page, re.DOTALL)
    documented = textwrap.dedent(
        policy.__doc__.split("::\n\n")[1].split("\n\nThe verdict")[0]
    )
    assert rules(shown).tolerance("dispatch[n=1]", "latency/warm", TODAY).share == 0.08
    assert rules(documented).accepted[0].verdict == "slower"
    assert policy_file.load(root / PATH).forbid


WORDS = st.text(min_size=1).filter(str.strip)


@given(WORDS, WORDS, st.lists(WORDS, max_size=3).map(tuple))
def test_an_accepted_change_reads_back_as_it_was_written(case, reason, changes):
    """Quotes, control characters and any alphabet among it."""
    codes = {"base": "", "head": "", "ratio": None} if changes else {}
    one = meant(case=case, reason=reason, changes=changes, verdict="slower", **codes)
    text = policy_file.block(one)
    (read,) = policy_file.parse(text, PATH).accepted
    assert dataclasses.replace(read, line=0) == one


def last_gate(tmp_path, *findings, **changes):
    """Keep an outcome as the last gate's of a project there."""
    (tmp_path / "pyproject.toml").touch()
    made = outcome(*findings, **changes)
    document.keep(made, tmp_path / ".steelyard")
    return made


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Stand in a project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEELYARD_STORE", raising=False)
    return tmp_path


def test_an_accepted_regression_passes_the_next_gate(project):
    """The policy is made, keeps what it had, and names the change with its codes."""
    made = last_gate(project, finding(), finding("even[n=1]", Verdict.SAME))
    shell.files(project, {PATH: TEXT})
    said = shell.command("accept", CASE, "--reason", 'rounded "right"\nnow').output
    assert said.split(": ")[1].split(",")[0] == "slower"
    text = (project / PATH).read_text()
    assert text.startswith(TEXT.rstrip())
    (one,) = tomllib.loads(text)["accepted"]
    assert one["reason"] == 'rounded "right" now'
    assert (one["base"], one["head"]) == ("aa" * 8, "bb" * 8)
    assert apply(made, policy_file.load(), policy.now()).exit_code == 0
    said = shell.command("accept", CASE, "--reason", "again", code=None).output
    assert said.count("before") == 1
    assert (project / PATH).read_text() == text


def test_work_that_keeps_results_on_purpose_can_be_accepted(project):
    """Its doubts are still shown; a slowdown behind them fails as any other."""
    doubts = ("clocks-disagree", "remembers")
    doubtful = [trials.trial(doubts=doubts)]
    both = [finding(verdict=Verdict.FASTER, ratio=0.8), finding(mode="kernel/warm")]
    found = [doubted.of(one, doubtful, doubtful) for one in both]
    assert last_gate(project, *found).exit_code == FAILED
    assert f"accept '{CASE}'" in "\n".join(words.explained(found[0]))
    said = shell.command("accept", CASE, "--reason", "a cache is what it is").output
    assert said.count("accepted in") == 3  # slower: one doubt of two acts
    known = policy_file.load()
    quick, slow = (
        doubted.of(one, doubtful, doubtful, known.doubts(one.case, one.mode))
        for one in both
    )
    assert quick.doubts == (doubts, doubts)
    assert "accepts the doubt remembers: a cache is what it is" in quick.note
    assert (outcome(quick).exit_code, outcome(slow).exit_code) == (FINE, REGRESSION)
    assert known.doubts("other[n=1]", "kernel/cold") == {}


def test_improvements_vanished_cases_and_forbidden_code_can_be_meant(project):
    """Each in its own words."""
    gone = finding("gone[n=1]", None, mode="", note="vanished: only the base has it")
    both = (*outcomes.STATIC, dataclasses.replace(outcomes.STATIC[0], target="cpu"))
    static = tuple(dataclasses.replace(one, forbidden="no spills") for one in both)
    quick = finding(verdict=Verdict.FASTER, ratio=0.8)
    made = last_gate(project, quick, gone, static=static)
    shell.command("accept", CASE, "gone[n=1]", "adam", "--reason", "meant")
    bare = dataclasses.replace(made, static=both)
    with_rule = (project / PATH).read_text() + '\n[static]\nforbid = ["spills"]\n'
    with_rule += 'reason = "always an accident"\n'
    known = policy_file.parse(with_rule, PATH)
    assert apply(bare, known, policy.now()).exit_code == 0
    assert apply(bare, dataclasses.replace(known, accepted=()), TODAY).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["softmax", "--reason", "x"], f"The nearest is {CASE}."),
        (["even[n=1]", "--reason", "x"], "even[n=1] is same in kernel/cold; only what"),
        (["broken[n=1]", "--reason", "x"], "broken[n=1] is failed in kernel/cold"),
        ([CASE, "--reason", " "], "--reason is empty"),
        ([CASE], "Missing option '--reason'"),
        ([CASE, "-m", "latency/warm", "--reason", "x"], f"{CASE} is regression in"),
        (
            [CASE, "--reason", "x", "--from", "none.json"],
            "no outcome of a gate at none.json",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(project, arguments, words):
    """And nothing is written."""
    last_gate(project, *outcomes.EVERY)
    assert words in shell.command("accept", *arguments, code=4).output
    assert not (project / PATH).exists()


def test_a_spoiled_policy_is_not_written_over(project):
    """Its line is told instead."""
    last_gate(project, finding())
    shell.files(project, {PATH: "[static"})
    said = shell.command("accept", CASE, "--reason", "meant", code=4).output
    assert "cannot be read" in said
    assert (project / PATH).read_text() == "[static"


def test_a_full_disk_leaves_the_policy_as_it_was(project, monkeypatch):
    """The new one was written aside."""
    last_gate(project, finding())
    shell.files(project, {PATH: TEXT})

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy_file.files.os, "fsync", full)
    said = shell.command("accept", CASE, "--reason", "meant", code=4).output
    assert "No space left on device; it is as it was" in said
    assert (project / PATH).read_text() == TEXT
    assert [path.name for path in (project / "ci").iterdir()] == [PATH.name]


def add_some(path, name):
    """Accept ten changes one after the other."""
    for number in range(10):
        policy_file.add(path, [meant(case=f"{name}[n={number}]")])


def test_two_at_once_lose_no_change_of_each_other(tmp_path):
    """Both add to the same file."""
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=add_some, args=(tmp_path / PATH, n)) for n in "ab"]
    for one in both:
        one.start()
    for one in both:
        one.join()
    found = policy_file.load(tmp_path / PATH).accepted
    assert sorted(one.case for one in found) == [
        f"{name}[n={number}]" for name in "ab" for number in range(10)
    ]


@pytest.mark.parametrize("shape", ["table", "markdown", "json", "junit"])
def test_the_last_gate_is_shown_again_and_ends_as_it_did(project, shape):
    """In any form, from the store's folder or a file."""
    made = last_gate(project, *outcomes.EVERY)
    assert made.exit_code == 2
    again = ("verdict", "--format", shape)
    said = shell.command(*again, code=2).output
    assert CASE in said
    place = project / ".steelyard" / document.LAST
    assert shell.command(*again, "--from", place, code=2).output == said


def test_without_a_gate_there_is_nothing_to_show(project):
    """The sentence says what to run."""
    said = shell.command("verdict", code=4).output
    assert "Run `steelyard gate BASELINE`" in said

"""Subjects of new commits are short and imperative (CONTRIBUTING.md)."""

import re
import subprocess

import pytest
from test_layers import ROOT

LONGEST = 72
SINCE = "2026-11-22T16:00:00+00:00"
"""When the rule began: a clone need not hold the commit that brought it."""

TENSES = re.compile(
    r"(?!Embed|Exceed|Feed|Need|Seed|Shed|Speed|Bring|String)\w+(ed|ing)"
)


def fault(subject):
    """Say what is wrong with a commit's subject; nothing if it is as asked for."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, at most {LONGEST} are allowed"
    if not re.match(r"[A-Z]\w+,? \S", subject):
        return "expected a capital letter and several words"
    if subject.endswith("."):
        return "a subject has no full stop"
    if TENSES.fullmatch(subject.split()[0].rstrip(",")):
        return "expected an imperative: Add, not Added or Adding"
    return ""


@pytest.mark.parametrize(
    ("subject", "right"),
    [
        ("Add steelyard init", True),
        ("Speed up the gate's listing", True),
        ("Feed samples one at a time", True),
        ("Build, list and tune each kernel", True),
        ("Listed, built and tuned kernels", False),
        ("Keep " + "x" * 67, True),
        ("Keep " + "x" * 68, False),
        ("Added steelyard init", False),
        ("Adding steelyard init", False),
        ("add steelyard init", False),
        ("Add steelyard init.", False),
        ("wip", False),
        ("Fixes", False),
    ],
)
def test_a_subject_is_held_against_the_rule(subject, right):
    """As CONTRIBUTING.md has it."""
    assert (fault(subject) == "") == right


def test_new_commits_of_this_checkout_keep_the_rule():
    """In any clone, shallow ones too; older commits are left as they are."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    log = subprocess.run(
        ["git", "log", "--no-merges", f"--since={SINCE}", "--format=%h %s"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commits = [line.split(" ", 1) for line in log.splitlines()]
    assert {name: wrong for name, text in commits if (wrong := fault(text))} == {}

"""A gate acts on what its trials doubt: a faster number of work that lies is no pass."""

import json

import pytest
import trials
from outcomes import finding, outcome
from shell import git
from test_gate_run import gate, project, shop, write

from steelyard.analyse.doubts import Act, known
from steelyard.analyse.verdict import Verdict
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED
from steelyard.gate import document, doubted, words
from steelyard.report import gate_markdown, gate_terminal, junit

__all__ = ["project", "shop"]

MEMO = """
import numpy

known = {}

def work(x, out):
    key = x[::97].tobytes()
    if key not in known:
        for _ in range(400):
            numpy.multiply(x, 1.0, out=out)
        known[key] = out.copy()
    out[...] = known[key]
"""


@pytest.mark.measuring
def test_a_kernel_that_remembers_results_is_no_faster_kernel(shop):
    """It takes twice as long on new data; the old gate said that it is quicker."""
    write(shop, turns=200)
    git(shop, "commit", "-qam", "slow")
    (shop / "src" / "mine" / "__init__.py").write_text(MEMO)
    code, found, _ = gate(shop, "HEAD")
    one = found["adding[n=1000]"]
    assert code == FAILED
    assert one["is"] == "failed"
    assert "remembers" in one["doubts"]["head"]
    assert "head is doubted (remembers): " in one["note"]


def trial(*names):
    """Return a trial with these doubts."""
    return trials.trial(doubts=names)


@pytest.mark.parametrize("doubt", known().values(), ids=str)
@pytest.mark.parametrize("side", ["base", "head"])
def test_each_doubt_does_what_its_row_says(doubt, side):
    """To a case that is faster: it fails, is open, or passes with the doubt beside."""
    sides = {"base": [trial()], "head": [trial()], side: [trial(), trial(str(doubt))]}
    found = doubted.of(finding(verdict=Verdict.FASTER, ratio=0.5), **sides)
    code = outcome(found).exit_code
    if doubt.act is Act.FAIL:
        assert code == (FAILED if side == "head" else UNRESOLVED)
    else:
        assert code == (FINE if doubt.act is Act.PRINT else UNRESOLVED)
    assert (doubt.reason in found.note) is (doubt.act is not Act.PRINT)


@pytest.mark.parametrize(
    ("verdict", "doubt", "code"),
    [
        (Verdict.SAME, "unchecked", FINE),
        (Verdict.SAME, "idle", UNRESOLVED),
        (Verdict.SAME, "remembers", FAILED),
        (Verdict.SLOWER, "idle", REGRESSION),
        (Verdict.SLOWER, "remembers", FAILED),
    ],
)
def test_no_doubt_makes_a_slower_case_pass(verdict, doubt, code):
    """And one without a reference passes as long as it is no faster."""
    found = doubted.of(finding(verdict=verdict), [trial()], [trial(str(doubt))])
    assert outcome(found).exit_code == code


def test_every_form_of_an_outcome_says_the_doubts_of_both_sides():
    """The table, Markdown, JSON and back, JUnit and annotations; quiet rows too."""
    doubts = (("preempted",), ("idle", "preempted"))
    for verdict in (Verdict.SAME, Verdict.UNRESOLVED):
        made = outcome(finding(verdict=verdict, ratio=1.0, doubts=doubts))
        assert words.doubts(made.findings[0]) == "idle (head), preempted"
        shown = [
            gate_terminal.dumps(made, "table"),
            gate_markdown.dumps(made),
            junit.of_gate(made),
            "\n".join(gate_markdown.annotation_lines(made)),
        ]
        assert all("idle (head)" in " ".join(text.split()) for text in shown)
        assert known()["idle"].hint[:30] in shown[0]
        text = document.dumps(made)
        assert json.loads(text)["findings"][0]["doubts"]["head"] == [
            "idle",
            "preempted",
        ]
        assert document.loads(text).findings == made.findings

import dataclasses
import json
import math
import re
from html import unescape

import junit_schema
import outcomes
import pytest
import shell
from hypothesis import given
from hypothesis import strategies as st
from outcomes import CASE, finding, outcome
from test_report import rendered

from steelyard.analyse import doubts
from steelyard.analyse.verdict import Verdict
from steelyard.errors import SteelyardError
from steelyard.gate import document, words
from steelyard.report import formats, gate_markdown, gate_terminal, junit
from steelyard.report.pages import gate

FULL = outcome(
    *outcomes.EVERY,
    static=outcomes.STATIC,
    calibration=outcomes.CALIBRATION,
    runs={"base": "b" * 32, "head": "a" * 32},
    notes=("base's numbers are from another time",),
)
KINDS = (
    *("failed", "regression", "unresolved", "not-gateable", "tolerated"),
    *("accepted", "faster", "new", "same", "identical-code"),
)


def on_a_terminal(made, width=160):
    """Return what a terminal of the given width shows."""
    return rendered(gate_terminal.page(made), width)


def test_a_case_that_vanished_says_how_that_is_accepted():
    """A renamed case is one of the checkout's that is new, and one that is gone."""
    gone = finding(mode="", verdict=None, note="vanished: only the base has this case")
    for one, said in ((gone, True), (dataclasses.replace(gone, accepted=True), False)):
        made = outcome(one)
        shown = [on_a_terminal(made), gate_markdown.dumps(made)]
        shown += ["\n".join(words.explained(one)), gate.dumps(made)]
        assert [f"steelyard accept '{CASE}'" in unescape(s) for s in shown] == [
            said
        ] * 4
        assert words.sentence(one).startswith(f"{CASE}: ")


@pytest.mark.parametrize("doubt", doubts.known())
def test_hints_of_a_gate_name_no_option_that_only_a_run_has(doubt):
    """A gate has no --blocks, and --budget leaves its cases unresolved."""
    made = outcome(finding(doubts=((), (doubt,))))
    for shown in (on_a_terminal(made), gate.dumps(made)):
        assert doubt in shown
        assert not re.search("--b(udget|locks)", shown)


def test_each_finding_is_called_what_the_policy_makes_of_it():
    """One of each kind, what wants attention first."""
    assert [words.kind(one) for one in words.in_order(FULL)] == list(KINDS)


def test_the_largest_change_comes_first_and_nan_before_all():
    """What is not a number may be anything: it is looked at first."""
    ratios = (1.2, math.nan, 1.5)
    made = outcome(*(finding(f"case[n={r}]", ratio=r) for r in ratios))
    assert [one.case for one in words.in_order(made)] == [
        *("case[n=nan]", "case[n=1.5]", "case[n=1.2]")
    ]
    assert made.exit_code == 1


ALIKE = [
    *(dataclasses.replace(outcomes.STATIC[0], target=f"cuda:sm_{n}") for n in (80, 86)),
    dataclasses.replace(outcomes.STATIC[0], target="cpu:x86-64-v3", changes=("less",)),
]
IDENTICAL = [
    finding(case, Verdict.IDENTICAL_CODE, judgement=None)
    for case in ("adam[n=1]", "adam[n=2]", "empty")
]
SHOWN = {
    "every_kind": FULL,
    "nothing": outcome(),
    "no_verdict": outcome(problem=outcomes.PROBLEM),
    "static": outcome(*IDENTICAL, static=(*outcomes.STATIC, *ALIKE)),
}


def test_a_gate_that_was_never_tried_says_so():
    """Where it measured: of code alone there is nothing to try."""
    assert "never tried on this machine" in words.trust(outcome(finding()))
    assert words.trust(SHOWN["static"]) == ""


@pytest.mark.parametrize("shape", formats.names("gate"))
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_of_an_outcome_is_golden(golden, name, shape):
    """On a terminal, and as Markdown whose quiet rows are folded."""
    text = gate_terminal.dumps(SHOWN[name], shape)
    assert text.endswith("\n")
    if shape == "junit":
        junit_schema.check(text)
    elif shape not in {"html", "json"}:  # a page, and what is read back below
        lines = (f"{line.rstrip()}\n" for line in text.splitlines())
        golden("".join(lines), f"{name}_{shape}")


def test_entries_of_junit_are_golden(golden):
    """Of what fails, is skipped and passes, of code, and of a problem."""
    told = {"failed", "regression", "unresolved", "not-gateable", "tolerated", "new"}
    some = [one for one in outcomes.EVERY if words.kind(one) in told]
    made = outcome(*some, static=outcomes.STATIC, problem=outcomes.PROBLEM)
    golden(junit.of_gate(made))


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.031, "3.1 %"),
        (0.9971, "100 %"),
        (1.234, "123 %"),
        (0.0, "0 %"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_shares_are_written_without_an_exponent(share, text):
    """What has no value is a dash."""
    assert words.share(share) == text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_cuts_no_line(width):
    """Columns go where there is no room, cells fold."""
    assert max(map(len, on_a_terminal(FULL, width).splitlines())) <= width


def test_json_reads_back_as_what_it_was_written_from():
    """All but what is no number, which JSON has not."""
    assert document.loads(document.dumps(FULL)) == FULL
    problem = document.loads(document.dumps(outcome(problem=outcomes.PROBLEM)))
    assert (str(problem.problem), problem.exit_code) == (str(outcomes.PROBLEM), 4)


def test_json_is_strict_and_says_the_exit_code():
    """NaN is null and reads back as NaN: it stays a regression."""
    made = outcome(finding(ratio=math.nan))
    found = json.loads(document.dumps(made), parse_constant=pytest.fail)
    assert found["exit_code"] == 1
    assert found["findings"][0]["is"] == "regression"
    assert found["findings"][0]["judgement"]["ratio"] is None
    assert document.loads(document.dumps(made)).exit_code == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "{}",
        lambda text: "null",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"slower"', '"sluggish"'),
        lambda text: text.replace('"codes"', '"cods"'),
        lambda text: text.replace('"schema": 2', '"schema": 3'),
        lambda text: text.replace('"exit_code": 2', '"exit_code": 0'),
        lambda text: text.replace('"line": 12', '"line": 13'),
        lambda text: text.replace('"blocks": 15', '"blocks": null'),
    ],
)
def test_a_spoiled_document_is_refused_in_a_sentence(spoil):
    """Truncated, foreign, newer, or edited by hand."""
    with pytest.raises(SteelyardError, match=r"last\.json"):
        document.loads(spoil(document.dumps(FULL)), "last.json")


def test_a_kept_outcome_is_whole_or_the_one_before(tmp_path, monkeypatch):
    """The disk is full while the second is written."""
    document.keep(FULL, tmp_path)

    def full(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(document.files.os, "fsync", full)
    with pytest.raises(SteelyardError, match="No space left"):
        document.keep(outcome(), tmp_path)
    assert document.read(tmp_path / document.LAST) == FULL
    assert [path.name for path in tmp_path.iterdir()] == [document.LAST]


def test_markdown_leaves_no_cell_and_calls_nobody():
    """A note with a bar, a line's end, HTML and an @ stays text."""
    note = "raised |x|\n</details><img src=x> @somebody `code` *"
    text = gate_markdown.dumps(outcome(finding(verdict=None, note=note)))
    row = next(line for line in text.splitlines() if line.startswith("| ❌"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 10
    assert "<img" not in text
    assert "@somebody" not in text


def test_markdown_keeps_an_id_in_its_code_span():
    """A backtick in an id ends nothing: not in the table, nor in the advice."""
    case = "x[n=`a`` @somebody <img src=x>]"
    text = gate_markdown.dumps(outcome(finding(case, ratio=1.2, changes=("why",))))
    assert text.count(f"``` {case} ```") == 1
    assert f"``` steelyard accept '{case}' --reason TEXT ```" in text
    assert "@somebody" not in re.sub(r"```.*?```", "", text)


def test_a_page_with_annotations_holds_no_other_commands(capsys):
    """What looks like a workflow command in a note is printed between two tokens."""
    note = "::error::not ours"
    gate_terminal.write(outcome(finding(note=note), notes=(note,)), annotations=True)
    first, *shown = capsys.readouterr().out.splitlines()
    token = first.removeprefix("::stop-commands::")
    assert shown.index(f"::{token}::") > shown.index(note)


def test_markdown_that_github_would_refuse_is_cut():
    """Nothing is left open, and it says so."""
    every = tuple(
        finding(f"case[n={n}]", changes=("x" * 500,), ratio=1.1) for n in range(300)
    )
    text = gate_markdown.dumps(outcome(*every))
    assert len(text) < 65_536
    assert text.count("<details>") == text.count("</details>")
    assert "Cut here" in text


@pytest.mark.parametrize(
    "made",
    [
        outcome(problem=outcomes.PROBLEM),
        outcome(finding(verdict=Verdict.NOT_GATEABLE)),
        outcome(
            finding(verdict=Verdict.SAME),
            static=(dataclasses.replace(outcomes.STATIC[0], forbidden="no spills"),),
        ),
    ],
    ids=["problem", "nothing gateable", "forbidden"],
)
def test_junit_fails_where_the_gate_does(made):
    """Whoever reads only the document is told no other story."""
    assert made.exit_code
    root = junit_schema.check(junit.of_gate(made))
    assert int(root.get("failures")) > 0


@given(st.text())
def test_whatever_a_benchmark_says_junit_stays_xml(note):
    """Control characters and halves of pairs are replaced."""
    junit_schema.check(
        junit.of_gate(outcome(finding(verdict=None, note=note, reason=note)))
    )


def decoded(line):
    """Return level, properties and message of a workflow command, as GitHub reads it."""
    level, rest = re.fullmatch(r"::(\w+) (.*)", line).groups()
    written, _, message = rest.partition("::")
    properties = dict(pair.split("=", 1) for pair in written.split(","))

    def plain(text):
        for sign, number in ((",", "2C"), (":", "3A"), ("\n", "0A"), ("\r", "0D")):
            text = text.replace(f"%{number}", sign)
        return text.replace("%25", "%")

    return level, {n: plain(v) for n, v in properties.items()}, plain(message)


def test_annotations_stand_at_the_benchmarks_line(tmp_path, monkeypatch):
    """Of what is wrong, by its path in the checkout; what is fine has none."""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    place = tmp_path / "suites" / "a, b: 100 %.py"
    made = outcome(
        finding(file=str(place), changes=("5 % more, or so",)),
        finding("even[n=1]", Verdict.SAME),
    )
    (line,) = gate_markdown.annotation_lines(made)
    level, properties, message = decoded(line)
    assert level == "error"
    assert properties["file"] == "suites/a, b: 100 %.py"
    assert properties["line"] == "12"
    assert properties["title"] == f"{CASE} kernel/cold: regression"
    assert "\n1. 5 % more, or so" in message
    assert "file=suites/a%2C b%3A 100 %25.py,line=12," in line
    (line,) = gate_markdown.annotation_lines(outcome(finding(line=0)))
    assert "line" not in decoded(line)[1]


@given(st.text(), st.text(min_size=1))
def test_an_annotation_is_one_line_whatever_it_says(message, title):
    """What is read back is what was said."""
    line = gate_markdown.command("error", message, title=title)
    assert not set("\r\n") & set(line)
    _, properties, said = decoded(line)
    assert (properties["title"], said) == (title, message)


def test_every_kind_of_finding_is_annotated_as_loud_as_it_is():
    """A problem and forbidden code too."""
    static = dataclasses.replace(outcomes.STATIC[0], forbidden="no spills")
    made = dataclasses.replace(FULL, static=(static,), problem=outcomes.PROBLEM)
    levels = [decoded(line)[0] for line in gate_markdown.annotation_lines(made)]
    assert levels == ["error", "error", "error", "warning", "notice", "error"]


def test_annotations_do_not_spoil_json_on_standard_output(capsys):
    """They go to standard error, which a workflow reads too."""
    gate_terminal.write(FULL, "json", None, annotations=True)
    captured = capsys.readouterr()
    assert document.loads(captured.out) == FULL
    assert captured.err.startswith("::error ")


def test_a_report_goes_to_a_file_and_says_where_it_cannot(tmp_path, capsys):
    """The outcome can be shown again, so nothing is lost."""
    gate_terminal.write(FULL, "junit", str(tmp_path / "junit.xml"), annotations=True)
    junit_schema.check((tmp_path / "junit.xml").read_text())
    assert capsys.readouterr().out.startswith("::error ")
    with pytest.raises(SteelyardError, match=r"No such file.*steelyard verdict"):
        gate_terminal.write(FULL, "json", str(tmp_path / "no" / "such"))


def test_only_what_shows_tables_costs_rich():
    """JSON, Markdown and JUnit are made of the standard library."""
    gate = "from steelyard.gate import document, explain, policy"
    report = "from steelyard.report import gate_markdown, junit"
    script = f"import sys; {gate}; {report}; print(*sys.modules)"
    done = shell.python("-c", script, check=True)
    assert not {"rich", "numpy", "sqlalchemy"} & set(done.stdout.split())

"""Claims about measured rows: reading them, judging them, and the command."""

import json
import re
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import junit_schema
import pytest
import shell
import trials
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse import bounds, claims
from steelyard.analyse.claims import State
from steelyard.analyse.rows import rows
from steelyard.declare import claimed, claims_file, discovery
from steelyard.errors import FAILED, FINE, REGRESSION, UNRESOLVED, USAGE, SteelyardError
from steelyard.store.store import Store

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "claims.md").read_text()
LEVELS = (1.0, 1.3, 0.9, 1.1)
"""How fast a made-up machine is in each block."""

NANOSECONDS = range(99_800, 100_200, 10)


def measured(case, factor=1.0, levels=LEVELS, **changes):
    """Return the trials of a case that takes 100 us times a factor."""
    return [
        trials.trial(
            case,
            [round(n * factor * level) for n in NANOSECONDS],
            block=block,
            **changes,
        )
        for block, level in enumerate(levels)
    ]


def read(*lines, name="a claim", cases="copy", mode="kernel/warm", bound=None):
    """Return the one claim of a file; unless it has a bound, one of its kind."""
    bound = bound or ("<= 1.05" if "relative_to" in str(lines) else "<= 105 us")
    head = [f"{k} = {json.dumps(v)}" for k, v in (("name", name), ("mode", mode))]
    head += [f"{k} = {json.dumps(v)}" for k, v in (("cases", cases), ("bound", bound))]
    text = "\n".join(["[[claim]]", *head, *lines])
    return claims_file.parse(text, Path("claims.toml")).claims[0]


def judged(claim, *made, machine=trials.FACTS, **why):
    """Return what some trials say of a claim."""
    every = rows([one for some in made for one in some])
    return claims.judge([claim], every, machine, **why)


OURS, THEIRS = "copy[n=8,impl=ours]", "copy[n=8,impl=numpy]"
RELATIVE = 'relative_to = "impl=numpy"'


@pytest.mark.parametrize(
    ("factor", "state", "code"),
    [
        (1.0, State.HOLDS, FINE),
        (1.049, State.HOLDS, FINE),
        (1.05, State.UNDECIDED, UNRESOLVED),
        (1.06, State.FAILS, REGRESSION),
    ],
)
def test_a_ratio_is_judged_by_its_interval_from_paired_blocks(factor, state, code):
    """The machine's level moves by 40 % between blocks and drops out of the ratio.

    Of exactly the bound some of the interval is beyond it.
    """
    claim = read(RELATIVE)
    noisy = [1.0, 1.0001, 0.9999, 1.0]
    levels = [level * more for level, more in zip(LEVELS, noisy, strict=True)]
    (line,) = judged(claim, measured(OURS, factor, levels), measured(THEIRS))
    assert (line.case, line.base, line.state) == (OURS, THEIRS, state)
    assert line.estimate.value == pytest.approx(factor, rel=1e-3)
    assert claims.exit_code([line]) == code


def test_the_time_alone_is_as_uncertain_as_the_machine():
    """Without a reference the levels of the blocks are the interval."""
    (line,) = judged(read(bound="<= 105 us"), measured(OURS))
    assert line.state is State.UNDECIDED
    assert "crosses the bound" in line.why
    (line,) = judged(read(bound="<= 1 ms"), measured(OURS))
    assert line.state is State.HOLDS


NUMBERS = st.floats(0.001, 1000)


@given(NUMBERS, NUMBERS, st.sampled_from(["<", "<=", ">", ">="]), NUMBERS)
def test_a_bound_holds_where_it_holds_of_every_number_of_the_interval(
    a, b, sign, limit
):
    """Both ends and the limit itself, if it is within, decide."""
    low, high = sorted((a, b))
    inside = [low, high, *([limit] if low <= limit <= high else [])]
    compare = {
        "<": lambda x: x < limit,
        "<=": lambda x: x <= limit,
        ">": lambda x: x > limit,
        ">=": lambda x: x >= limit,
    }
    each = {compare[sign](x) for x in inside}
    verdict = bounds.Bound(sign, limit, "", "").judge(low, high)
    assert verdict is (each.pop() if len(each) == 1 else None)


@pytest.mark.parametrize(
    ("bound", "low", "high"),
    [
        ("<= 2 ms", 1.9e6, 2e6),
        ("< 5us", 1, 4999),
        (">= 95 %", 0.95, 2),
        (">= 30 GB/s", 3e10, 4e10),
        ("> 1e3 item/s", 1001, 2000),
        ("<= 1.05 x", 0.1, 1.05),
    ],
)
def test_units_are_nanoseconds_and_units_a_second(bound, low, high):
    """The interval is just within the bound; ten times as far it is not."""
    one = bounds.bound(bound)
    assert one.judge(low, high) is True
    factor = 10 if one.sign.startswith("<") else 0.1
    assert one.judge(low * factor, high * factor) is not True
    assert bounds.bound(str(one)) == one


def test_the_fastest_of_several_is_what_a_ratio_is_related_to():
    """Of two copies the faster one, whatever their order."""
    streaming = "copy[n=8,impl=streaming]"
    claim = read('relative_to = ["impl=numpy", "impl=streaming"]', bound="<= 3")
    (line,) = judged(
        claim, measured(OURS), measured(THEIRS, 0.8), measured(streaming, 0.5)
    )
    assert line.base == streaming
    assert line.estimate.value == pytest.approx(2, rel=1e-3)


def test_values_of_axes_are_measured_and_judged_and_no_others():
    """Also such as the suite does not sweep; rows of others are not looked at."""
    made = []
    for shape in ((8, 4), (2, 2), (3, 3)):
        case = f"copy[shape={'x'.join(map(str, shape))},n=1]"
        made.append(measured(case, axes={"shape": shape, "n": 1}))
    claim = read('axes = ["shape=8x4,2x2", "n=1"]')
    cases = [line.case for line in judged(claim, *made)]
    assert cases == ["copy[shape=2x2,n=1]", "copy[shape=8x4,n=1]"]
    with pytest.raises(
        SteelyardError, match=r"'a claim': axes: 'n' is not of the form"
    ):
        read('axes = "n"')
    suite = discovery.discover([str(ROOT / "suites" / "gpu.py")])
    claim = read('axes = "hidden=96,768"', cases="gpu_layernorm and ours")
    found = [case.id for case in claimed._cases(claim, suite)]
    assert found == [
        f"gpu_layernorm[hidden={n},dtype=float16,impl=ours]" for n in (96, 768)
    ]


@pytest.mark.parametrize(
    ("factors", "bound", "state"),
    [
        ((0.5, 2.0), "<= 1.01", State.HOLDS),
        ((0.5, 2.0), "<= 0.99", State.FAILS),
        ((0.5, 0.98), "<= 0.75", State.HOLDS),
        ((0.5, None), "<= 9", State.BROKEN),
        ((), "<= 9", State.MISSING),
    ],
)
def test_a_mean_is_one_line_of_all_its_cases(factors, bound, state):
    """The geometric one; where a case has no ratio, the mean has none."""
    made = []
    for n, factor in enumerate(factors):
        ours, theirs = f"copy[n={n},impl=ours]", f"copy[n={n},impl=numpy]"
        failed = {"error": "it is wrong"} if factor is None else {}
        axes = ({"n": n, "impl": "ours"}, {"n": n, "impl": "numpy"})
        made.append(measured(ours, factor or 1, axes=axes[0], **failed))
        made.append(measured(theirs, axes=axes[1]))
    claim = read(RELATIVE, "mean = true", cases="copy", bound=bound)
    (found,) = judged(claim, *made)
    assert found.state is state
    if found.estimate:
        mean = (factors[0] * factors[1]) ** 0.5
        assert found.estimate.low <= mean * 1.001
        assert found.estimate.value == pytest.approx(mean, rel=1e-4)
        assert found.case.startswith("mean of 2: copy[n=0,impl=ours]")


def test_rates_facts_and_parts_of_a_call_are_bounded_too():
    """8192 bytes in 100 us; what the work says; a tenth of the call."""
    steady = measured(OURS, levels=(1.0, 1.001, 0.999, 1.0))
    (rate,) = judged(read(bound=">= 80 MB/s"), steady)
    assert rate.estimate.value == pytest.approx(8.192e7, rel=1e-2)
    assert rate.estimate.low < rate.estimate.value < rate.estimate.high
    assert rate.state is State.HOLDS
    (fact,) = judged(read('fact = "operations"', bound="<= 1000"), steady)
    assert (fact.estimate.value, fact.state) == (1024, State.FAILS)
    several = measured(OURS, facts={"launches": [{}, {}]})
    (fact,) = judged(read('fact = "launches"', bound="<= 2"), several)
    assert (fact.estimate.value, fact.state) == (2, State.HOLDS)
    parts = [
        measured(OURS, levels=(1.0,) * block + (1.0,), ledger=ledger)[block]
        for block, ledger in enumerate(
            {"submit": 10_000.0 + block, "kernel": 90_000.0} for block in range(4)
        )
    ]
    for bound, value in (("<= 11 us", 10_001.5), ("<= 11 %", 0.1)):
        (line,) = judged(read('parts = ["submit"]', bound=bound), parts)
        assert line.estimate.value == pytest.approx(value, rel=1e-3)
        assert line.state is State.HOLDS
    (line,) = judged(read('parts = ["submit"]', bound="<= 11 us"), parts[:1])
    assert (line.state, line.why) == (
        State.MISSING,
        "the row has no parts submit of two blocks",
    )


CODES = {
    State.HOLDS: FINE,
    State.EXPECTED: FINE,
    State.FAILS: REGRESSION,
    State.BROKEN: FAILED,
    State.MISSING: UNRESOLVED,
    State.SKIPPED: UNRESOLVED,
    State.UNDECIDED: UNRESOLVED,
}
"""How the command ends where all of its lines are so."""

FAST, SLOW = read(bound="<= 1 s"), read(bound=">= 1 s")
KNOWN = 'expected_failure = "issue 7"'
DOUBTED = {"doubts": ("remembers",)}


@pytest.mark.parametrize(
    ("claim", "made", "state", "why"),
    [
        (read(cases="cpy"), {}, State.MISSING, "The nearest is"),
        (read(mode="build/cold"), {}, State.MISSING, "no row of 'copy'"),
        (read(RELATIVE), {}, State.MISSING, "no row of impl=numpy"),
        (FAST, {"error": "it raised", "ticks": ()}, State.BROKEN, "it raised"),
        (FAST, DOUBTED, State.UNDECIDED, "remembers: "),
        (SLOW, DOUBTED, State.FAILS, ""),
        (read(KNOWN, bound=">= 1 s"), {}, State.EXPECTED, "issue 7"),
        (read(KNOWN, bound="<= 1 s"), {}, State.HOLDS, "does not any more"),
        (
            *(read('where = {gpu = "H200"}'), {}, State.SKIPPED),
            "gpu is none, the claim is about H200",
        ),
        (
            *(read('where = {cores = ">= 4"}'), {}, State.SKIPPED),
            "cores is 2, the claim is about >= 4",
        ),
        (
            read('where = {cpu = "test", cores = ">= 2"}', bound="<= 1 s"),
            *({}, State.HOLDS, ""),
        ),
    ],
)
def test_what_is_not_judged_says_why_and_has_an_exit_code(claim, made, state, why):
    """A table of states; each with what its line says and how the command ends."""
    ticks = {"ticks": NANOSECONDS} | made
    every = [trials.trial(OURS, block=block, **ticks) for block in range(4)]
    lines = judged(claim, every)
    assert [line.state for line in lines] == [state]
    assert why in lines[0].why
    assert claims.exit_code(lines) == CODES[state]


@pytest.mark.parametrize(
    ("limit", "spans", "state"),
    [
        (2, (10**9, 10**9), State.HOLDS),
        (2, (2 * 10**9, 10**9), State.UNDECIDED),  # of the host's clocks
        (1.15, (10**9, 10**9), State.UNDECIDED),
        (1.05, (10**9, 10**9), State.FAILS),
    ],
)
def test_clocks_that_disagree_leave_a_claim_undecided_unless_it_holds_by_each(
    limit, spans, state
):
    """By its own clock ours takes 1.1 times as long as NumPy's, by events 1.2 times."""
    made = []
    for factor, case in ((1.0, THEIRS), (1.1, OURS)):
        for block in range(4):
            events = [round(1000 * (1.2 if factor > 1 else 1.0)) + k for k in range(5)]
            made.append(
                trials.trial(
                    case,
                    [round(1000 * factor) + k for k in range(5)],
                    block=block,
                    doubts=("clocks-disagree",),
                    extra={
                        "clocks": {"events": {"ticks": events, "quantum": 1.0}},
                        "spans": spans,
                    },
                )
            )
    (line,) = judged(read(RELATIVE, bound=f"<= {limit}"), made)
    assert line.state is state
    if state is State.HOLDS:
        assert line.why == "2 clocks disagree; it holds by each"


def test_what_needs_a_module_that_is_not_installed_is_skipped_unless_it_is_there():
    """A run from elsewhere may have the rows."""
    needed = 'installed = ["no_such_module"]'
    claim = read(needed, bound="<= 1 s", cases=["copy", "triad"])
    why = {"unavailable": {claim.name: "no_such_module is not installed here"}}
    assert [line.state for line in judged(claim, **why)] == [State.SKIPPED]
    assert [line.state for line in judged(claim, measured(OURS), **why)] == [
        State.SKIPPED,
        State.HOLDS,
    ]


def test_the_worst_line_decides_the_exit_code():
    """A failure before a broken case before what cannot be judged."""
    claim = read()
    order = [State.FAILS, State.BROKEN, State.UNDECIDED, State.HOLDS, State.SKIPPED]
    lines = [claims.Judged(claim, state) for state in order]
    codes = [claims.exit_code(lines[first:]) for first in range(len(lines))]
    assert codes == [REGRESSION, FAILED, UNRESOLVED, FINE, UNRESOLVED]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "claims.toml: it has no claim"),
        ("claim = []", "claims.toml has no [[claim]]"),
        ("claim = [", "claims.toml cannot be read"),
        ("[[clam]]", "claims.toml has the key 'clam'; did you mean claim?"),
        ("[[claim]]\nname = 'x'", "claim[0] has no cases"),
        (
            "[[claim]]\nname = 'x'\nmod = 1",
            "claim 'x' has the key 'mod'; did you mean mode",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_sentence(text, words):
    """It says where and what was expected."""
    with pytest.raises(SteelyardError, match=re.escape(words)):
        claims_file.parse(text, Path("claims.toml"))


@pytest.mark.parametrize(
    ("keys", "lines", "words"),
    [
        ({"bound": "= 1"}, [], "the bound is '= 1', expected a sign"),
        ({"bound": "<= 1.0.5"}, [], "expected a sign"),
        ({"bound": "<= 5 min"}, [], "Units: "),
        ({"bound": "<= 5"}, [], "the bound is <= 5, expected a time"),
        ({"bound": "<= 5 ms"}, [RELATIVE], "or in x or % for relative_to"),
        ({"bound": "<= 5"}, [RELATIVE, 'fact = "x"'], "exclude each other"),
        ({"bound": "<= 5 ms"}, ["mean = true"], "mean is of ratios: give relative_to"),
        ({"cases": []}, [], "no cases"),
        ({"bound": ["<= 1 ms", ">= 1 B/s"]}, [], "the bound is <= 1 ms, expected"),
        ({"mode": "kernel/hot", "bound": "<= 1 s"}, [], "has the word 'hot'"),
        ({"cases": "a and", "bound": "<= 1 s"}, [], "cases cannot be read"),
    ],
)
def test_a_claim_that_is_wrong_is_refused_by_its_name(keys, lines, words):
    """Whatever is wrong with it."""
    with pytest.raises(SteelyardError, match=re.escape(words)) as caught:
        read(*lines, **keys)
    assert "claim 'a claim': " in str(caught.value)


def test_two_claims_of_one_name_and_an_unknown_fact_are_refused():
    """Names tell lines apart; a fact that nobody knows would skip for ever."""
    one = '[[claim]]\nname="x"\ncases="c"\nmode="kernel/warm"\nbound="< 1 s"\n'
    with pytest.raises(SteelyardError, match="two claims 'x'"):
        claims_file.parse(2 * one, Path("claims.toml"))
    with pytest.raises(SteelyardError, match=r"where has no 'gpus'; known: .*cores"):
        judged(read('where = {gpus = "2"}'))


MORE = """
[[claim]]
name = "a small call stays below a millisecond"
cases = ["double[n=1000,impl=multiply]", "double[n=2000,impl=multiply]"]
mode = "latency/warm"
bound = "< 1 ms"

[[claim]]
name = "large arrays stream"
cases = "double and n=100000 and multiply"
mode = "kernel/warm"
bound = ">= 1 GB/s"
"""
"""Beside those of the page: cases by their ids, and a rate."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Work in a folder with the suite and the claims of docs/claims.md."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_STORE", str(tmp_path / "store.db"))
    (suite,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (listing,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    texts = {"suites/doubling.py": suite, "claims.toml": listing + MORE}
    return shell.files(tmp_path, texts)


def test_the_claims_of_the_page_are_measured_judged_and_judged_again(project):
    """One run measures what they need and no more; other forms are of the stored run."""
    asked = ("claims", "--blocks", "2", "--format", "json")
    done = shell.command(*asked, code=None)
    document = json.loads(done.stdout)
    lines = document["claims"]
    assert done.exit_code == document["exit_code"]
    assert [(line["case"], line["relative_to"]) for line in lines] == [
        ("double[n=1000,impl=add]", "double[n=1000,impl=multiply]"),
        ("double[n=100000,impl=add]", "double[n=100000,impl=multiply]"),
        (None, None),
        ("double[n=1000,impl=multiply]", None),
        ("double[n=2000,impl=multiply]", None),
        ("double[n=100000,impl=multiply]", None),
    ]
    assert lines.pop(2)["state"] == "skipped"
    assert all(one["low"] <= one["value"] <= one["high"] for one in lines)
    with Store.open("store.db", create=False) as store:
        (run,) = store.runs()
        seen = {(t.case, t.mode) for t in store.trials(run.uid)}
    warm = {
        f"double[n={n},impl={i}]" for n in (1000, 100_000) for i in ("multiply", "add")
    }
    calls = {f"double[n={n},impl=multiply]" for n in (1000, 2000)}
    assert seen == {(c, "kernel/warm") for c in warm} | {
        (c, "latency/warm") for c in calls
    }
    asked = ("claims", "--run", "claims", "--format", "json")
    again = shell.command(*asked, code=done.exit_code)
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_a_stored_run_gives_every_form(project):
    """JUnit counts failures and what is not judged; Markdown and the table agree."""
    made = [
        *measured("double[n=1000,impl=add]", 5),
        *measured("double[n=1000,impl=multiply]"),
        *measured("double[n=1000,impl=multiply]", mode="latency/warm"),
    ]
    trials.kept("store.db", made)
    listed = "FAILS".lower()
    again = partial(shell.command, "claims", "--run", "@-1")
    table = again(code=REGRESSION)
    assert "fails: 1, not measured: 2, holds: 1, skipped: 1" in table.stdout
    again("--output", "table.txt", code=REGRESSION)
    written = (project / "table.txt").read_text()
    assert written.split() == table.stdout.split()
    markdown = again("--format", "markdown", code=REGRESSION).stdout
    (row,) = [line for line in markdown.splitlines() if listed in line and "|" in line]
    assert "| 5.000 | [5.00, 5.00] | <= 2 | fails |" in row
    done = again("--format", "junit", "--output", "x.xml", code=REGRESSION)
    assert not done.stdout
    root = junit_schema.check((project / "x.xml").read_text())
    assert (root.get("tests"), root.get("failures")) == ("5", "1")
    skipped = [one.get("message") for one in root.iter("skipped")]
    assert len(skipped) == 3
    assert any("the claim is about H200" in one for one in skipped)
    (failure,) = root.iter("failure")
    assert "expected <= 2" in failure.get("message")
    assert isinstance(root, ET.Element)


def test_a_record_keeps_the_last_number_of_each_claim_on_each_machine(project):
    """What is not measured stays, claims that are gone go, and order is the file's.

    One pair of blocks has no interval, and is no number to keep.
    """
    for factor, cpu in ((5, "A|B"), (3, "A|B"), (4, "C"), (7, "C")):
        machine = trials.FACTS | {"identity": trials.FACTS["identity"] | {"cpu": cpu}}
        made = (
            *measured("double[n=1000,impl=add]", factor, LEVELS[factor // 7 * 3 :]),
            *measured("double[n=1000,impl=multiply]"),
        )
        trials.kept("store.db", made, machine=machine)
        recorded = ("claims", "--run", "@-1", "--record", "record.md")
        shell.command(*recorded, code=None)
    record = (project / "record.md").read_text()
    lines = [line for line in record.splitlines() if line.startswith("|")][2:]
    assert [(r"A\|B, 2 cores" in line, "| 3.000 |" in line) for line in lines] == [
        (True, True),
        (False, False),
    ]
    assert "[4.00, 4.00]" in lines[1]
    done = shell.command(
        "claims", "--run", "@-1", "-k", "GPU", "--record", "record.md", code=UNRESOLVED
    )
    assert (project / "record.md").read_text() == record
    (project / "record.md").write_text("# Mine\n")
    done = shell.command("claims", "--run", "@-1", "--record", "record.md", code=USAGE)
    assert "no table of claim, case, mode, machine" in done.stderr
    assert (project / "record.md").read_text() == "# Mine\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.toml"], "there is no nothing.toml. Write one"),
        (["-k", "streams fast"], "-k cannot be read"),
        (["-k", "adds"], "no claim is called 'adds'"),
        (["--blocks", "0"], "--blocks is 0, expected a whole number of at least 1"),
        (["--run", "@-9"], "store"),
        (["suites"], "is a directory"),
    ],
)
def test_a_wrong_command_is_a_sentence_and_a_usage_error(project, arguments, words):
    """Nothing is measured; no traceback."""
    done = shell.command("claims", *arguments, code=USAGE)
    assert words in done.output
    assert "Traceback" not in done.output


def test_where_every_claim_is_about_another_machine_nothing_was_judged(project):
    """Nothing is measured, and that is no success."""
    done = shell.command("claims", "-k", "GPU", code=UNRESOLVED)
    assert "skipped: 1" in done.stdout
    assert not (project / "store.db").exists()


def test_every_claim_of_our_own_is_about_cases_that_there_are():
    """Unless it needs a GPU, or what is not installed."""
    file = claims_file.load(ROOT / "claims.toml")
    here = [one for one in file.claims if not claimed.missing_modules(one)]
    found = discovery.discover([str(ROOT / suite) for suite in file.suites])
    pairs, absent = claimed.pairs(here, found)
    assert pairs
    assert {why for why in absent.values() if " a GPU: " not in why} == set()

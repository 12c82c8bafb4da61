import csv
import dataclasses
import io
import json
import math

import pytest
import trials
from test_report import rendered

from steelyard.analyse import bounds, claims, compare, rows
from steelyard.errors import USAGE, SteelyardError
from steelyard.report import comparison
from steelyard.report.formats import Compared, formats

CASE = "copy[n=1024,impl=numpy]"
LEVELS = (1.0, 1.3, 0.9, 1.1)
"""How fast a made-up machine is in each block."""


def side(factor=1.0, levels=LEVELS, **changes):
    """Return a run's trials: the machine's level times what is compared."""
    return [
        trials.trial(
            CASE,
            [round(n * factor * level) for n in range(100_000, 100_400, 10)],
            block=block,
            **changes,
        )
        for block, level in enumerate(levels)
    ]


def test_blocks_are_paired_so_that_the_machine_drops_out():
    """A 5 % change is exact although the machine's level moves by 40 %."""
    (row,) = compare.compare(side(), side(1.05))
    assert row.ratio.value == pytest.approx(1.05, rel=1e-3)
    assert row.ratio.low > 1.04
    assert row.differs
    assert row.note == "same code"
    (row,) = compare.compare(side(), side())
    assert row.ratio.value == 1
    assert not row.differs


def test_only_blocks_of_the_same_number_are_paired():
    """A run that was cut short is compared by the blocks it has."""
    (row,) = compare.compare(side(), side(2)[1:3])
    assert row.ratio.value == pytest.approx(2, rel=1e-3)
    (none,) = compare.compare(side()[:1], side()[1:])
    assert (none.ratio, none.note) == (None, "not comparable: no block in common")


def test_one_pair_of_blocks_says_nothing_of_its_ratios_error():
    """However still both blocks were: the next pair may be anywhere."""
    (row,) = compare.compare(side()[:2], side(1.3)[1:])
    assert row.ratio.value == pytest.approx(1.3, rel=1e-3)
    assert (row.ratio.low, row.ratio.high) == (0.0, math.inf)
    assert not row.differs
    assert row.note.startswith("one pair")
    assert "nan" not in str(comparison.sheet([row])).lower()
    assert "one pair of blocks" in comparison.sentence(row.ratio, [])
    made = rows.relative_to(
        rows.rows([trials.trial("a[i=x]"), trials.trial("a[i=y]")]), "i=x"
    )
    assert not any(one.relative.known for one in made)
    within = (bounds.bound("<= 1.1"),)
    claim = claims.Claim("c", ("a",), "kernel/warm", within, relative_to=("i=x",))
    judged = claims.judge([claim], made, trials.FACTS)
    assert {str(one.state) for one in judged} == {"undecided"}
    assert {one.why for one in judged} == {
        "one pair of blocks has no interval: raise --blocks"
    }


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"hashes": {"method": "2"}}, "not comparable: method 1 -> 2"),
        ({"error": "it raised", "ticks": ()}, "failed in new"),
        ({"mode": "kernel/cold"}, "missing in base"),
        ({"facts": {"code_hash": "bb"}}, "other code"),
        ({"facts": {}}, ""),
        (
            {"clock": trials.clock("cupti")},
            "not comparable: clock perf_counter_ns 1 -> cupti 1",
        ),
        ({"hashes": {"method": "1", "source": "s2", "inputs": "i1"}}, "other source"),
    ],
)
def test_what_stands_against_a_ratio_is_named(changes, note):
    """There is no ratio of different methods, of failures, or of one side alone."""
    ticks = {"ticks": range(1000, 1040)} | changes
    new = [trials.trial(CASE, **ticks)]
    row = compare.compare([trials.trial(CASE)], new)[0]
    prefix = note.startswith(("not comparable", "failed", "missing"))
    assert (row.ratio is None) == prefix
    assert note in row.note


def test_a_time_of_zero_has_no_ratio():
    """A clock that saw nothing gives no number to divide by."""
    (row,) = compare.compare([trials.trial(ticks=[0] * 9)], [trials.trial()])
    assert row.ratio is None


def test_differences_name_machine_versions_and_settings():
    """Load and free memory differ between any two runs and are left out."""
    facts = {group: dict(values) for group, values in trials.FACTS.items()}
    facts["moment"]["load"] = 9.0
    facts["settings"]["governor"] = "powersave"
    facts["versions"]["llvmlite"] = "0.51.0"
    new = trials.run(machine=facts, settings={"seed": 1})
    found = compare.differences(trials.run(), new)
    assert [(d.name, d.base, d.new) for d in found] == [
        ("governor", "performance", "powersave"),
        ("llvmlite", "0.50.0", "0.51.0"),
        ("seed", "0", "1"),
    ]
    assert compare.differences(new, new) == []
    compare.require_same_machine(trials.run(), new)


def test_other_inputs_are_named_where_only_ratios_are_shown():
    """An axis that an id leaves out may have been another size."""
    base, new, unknown = (side(hashes={"inputs": held}) for held in ("i1", "i2", ""))
    assert not compare.inputs(base, base)
    assert not compare.inputs(unknown, new)
    *_, found = compare.around(trials.run(), trials.run(), base, new)
    assert (found.name, found.new) == ("inputs", f"others of {CASE}")


def test_two_machines_are_refused_with_what_differs():
    """The exit code is 4; the sentence names the fact and the way round."""
    facts = trials.FACTS | {"identity": trials.FACTS["identity"] | {"cpu": "Other"}}
    other = trials.run(machine=facts)
    with pytest.raises(
        SteelyardError, match=r"cpu Test CPU -> Other.*--across-machines"
    ) as caught:
        compare.require_same_machine(trials.run(), other)
    assert caught.value.exit_code == USAGE


def test_a_pattern_that_no_case_contains_is_refused():
    """The nearest case is named."""
    made = compare.compare(side(), side())
    how = (lambda one: one.case), "impl=numpy", "there is no"
    assert rows.selected(made, *how) == made
    with pytest.raises(SteelyardError, match=r"no 'copi'.*nearest is copy"):
        rows.selected(made, how[0], "copi", how[2])


def compiled(compiler, target="cpu"):
    """Return a trial of code that a compiler made for a target."""
    facts = {"code_hash": "aa", "target": target, "compiler": compiler}
    return trials.trial(f"made[on={target}]", facts=facts)


def test_other_compilers_are_named_by_their_target():
    """A target that one side lacks differs in nothing; plain callables have none."""
    base = [compiled("llvm 20"), compiled("nvrtc 13.0 ab", "cuda"), trials.trial()]
    new = [compiled("llvm 20"), compiled("nvrtc 13.5 cd", "cuda"), trials.trial()]
    found = compare.compilers(base, new)
    assert found == [
        compare.Difference("compiler", "cuda", "nvrtc 13.0 ab", "nvrtc 13.5 cd")
    ]
    assert compare.compilers(base[:1], new) == []
    notes = [row.note for row in compare.compare(base, new)]
    assert notes.count("one pair, same code, other compiler") == 1


def on_gpu(trials_):
    """Return the same trials as a GPU's."""
    return [dataclasses.replace(t, extra={"gpu": trials.STATE}) for t in trials_]


def with_gpu(**facts):
    """Return a run on a GPU."""
    return trials.run(machine=trials.FACTS | {"gpu": trials.GPU | facts})


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({"name": "NVIDIA A100"}, "name NVIDIA H200 -> NVIDIA A100"),
        ({"driver": "590.1"}, "driver 580.159.04 -> 590.1"),
    ],
)
def test_cases_of_two_gpus_or_drivers_are_refused(facts, what):
    """The exit code is 4; those of the CPU beside them compare."""
    made = compare.compare(on_gpu(side()), on_gpu(side(1.05)))
    with pytest.raises(
        SteelyardError, match=f"1 rows .*{what}.*-k.*--across-machines"
    ) as caught:
        compare.require_same_gpu(with_gpu(), with_gpu(**facts), made)
    assert caught.value.exit_code == USAGE
    host = compare.compare(side(), side())
    compare.require_same_gpu(with_gpu(), with_gpu(**facts), host)


def test_two_gpus_of_one_model_compare_and_are_told_apart():
    """What differs is shown; peaks follow from the rest and are not."""
    made = compare.compare(on_gpu(side()), on_gpu(side()))
    other = with_gpu(uuid="001122334455", ecc="off", peaks={})
    compare.require_same_gpu(with_gpu(), other, made)
    found = [(d.group, d.name) for d in compare.differences(with_gpu(), other)]
    assert found == [("gpu", "uuid"), ("gpu", "ecc")]


def test_a_run_without_a_gpu_compares_with_one_that_had_it():
    """By the cases of the CPU, which both have."""
    made = compare.compare(side(), side() + on_gpu(side(mode="kernel/cold")))
    compare.require_same_gpu(trials.run(), with_gpu(), made)
    assert compare.differences(trials.run(), with_gpu()) == []


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_comparison_folds_cases_and_cuts_no_figure(width):
    """Two cases that differ at their ends can be told apart; figures may go on below."""
    cases = [f"copies_of_rows[columns=12288,impl=number_{n}]" for n in "ab"]
    sides = [
        [
            dataclasses.replace(each, case=case)
            for case in cases
            for each in side(factor)
        ]
        for factor in (1.0, 1.05)
    ]
    run = trials.run()
    page = rendered(comparison.page(run, run, [], compare.compare(*sides)), width)
    table = page.split("settings are the same")[1]
    same, head, _, *lines = table.strip().split("\n")
    assert same == "mode kernel/warm"
    assert table.count(" us ") == 4
    folded = "".join(line[: head.index("ratio")].strip() for line in lines)
    assert folded.startswith("".join(cases))
    assert "…" not in table
    assert max(map(len, table.splitlines()[:-4])) <= width


def test_a_comparison_is_exported_with_every_number():
    """JSON has both runs and what differs; CSV and Markdown have the rows."""
    made = compare.compare([*side(), trials.trial("gone")], side(1.05))
    runs = trials.run(uid="a" * 32), trials.run(uid="b" * 32)
    around = [compare.Difference("settings", "governor", "x", "y")]

    def text(shape):
        return formats()[shape].compared(Compared(*runs, around, made))

    document = json.loads(text("json"))
    row, alone = document["rows"]
    assert (document["base"]["uid"], document["new"]["uid"]) == ("a" * 32, "b" * 32)
    assert document["differences"][0]["name"] == "governor"
    assert row["low"] <= row["ratio"] == made[0].ratio.value <= row["high"]
    assert row["differs"] is True
    assert row["base"] == made[0].base.value
    assert (alone["ratio"], alone["note"]) == (None, "missing in new")
    lines = list(csv.DictReader(io.StringIO(text("csv"))))
    assert float(lines[0]["ratio"]) == row["ratio"]
    assert [line["case"] for line in lines] == [CASE, "gone"]
    assert len(text("markdown").splitlines()) == 4

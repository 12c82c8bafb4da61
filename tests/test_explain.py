"""Two rows and why one takes longer: what is named first, and what nothing accounts for."""

import dataclasses

import pytest
import shell
import trials

from steelyard.analyse.rows import rows
from steelyard.gate import explain_gpu
from steelyard.gate.explain import differences, ranked
from steelyard.report import comparison
from steelyard.report.comparison import Side

GPU = {"multiprocessors": 108, "name": "A100", "driver": "550"}

CAPPED_AT_255 = {
    "code_hash": "aa",
    "registers": 155,
    "blocks_per_multiprocessor": 1,
    "block": 352,
    "grid": 8192,
    "spill_bytes": 0,
    "opcodes": {"LDG": 24, "FADD": 400, "STG": 8},
    "bytes": 168_427_520,
}
"""What NVIDIA/Fuser#383 says of its kernel without spills: 235 GB/s."""

CAPPED_AT_72 = CAPPED_AT_255 | {
    "code_hash": "bb",
    "registers": 72,
    "blocks_per_multiprocessor": 3,
    "spill_bytes": 1450,
    "opcodes": {"LDG": 24, "FADD": 400, "STG": 8, "LDL": 180, "STL": 170},
}
"""The same with three times the blocks, and spills: 496 GB/s."""


def side(facts, nanoseconds, *, run=None, mode="kernel/cold", **changes):
    """Return a row of two blocks."""
    ticks = range(nanoseconds, nanoseconds + 40)
    made = [
        trials.trial("norm[n=5140]", ticks, mode=mode, block=b, facts=facts, **changes)
        for b in range(2)
    ]
    machine = trials.FACTS | {"gpu": GPU}
    (row,) = rows(made)
    return Side("x", run or trials.run(machine=machine), row)


def said(base, head):
    """Return the page of two sides as lines."""
    return [str(part) for part in comparison.explanation(base, head)]


def test_a_cap_of_registers_is_a_matter_of_occupancy():
    """NVIDIA/Fuser#383: 235 GB/s at 255 registers, 496 at 72 with all its spills."""
    first, second, *rest = said(
        side(CAPPED_AT_255, 715776), side(CAPPED_AT_72, 339_645)
    )
    assert "B takes 0.475 times what A takes" in first
    assert "occupancy, 11 -> 33 warps on a multiprocessor" in first
    assert "can account for all of it" in first
    assert "accounts for up to 100 %" in second
    assert any("83 fewer registers, 155 -> 72" in line for line in rest)
    others = [line for line in rest if "(for the other direction)" in line]
    assert rest[-len(others) :] == others
    for words in ("bytes of spills", "more instructions"):
        assert any(words in line for line in others)


def test_spills_predict_the_memory_that_they_move_at_most():
    """On an H200 the same limit of 72 registers on 224 threads: 66 us, then 155."""
    base = CAPPED_AT_255 | {"block": 224, "grid": 2048}
    capped = CAPPED_AT_72 | {"block": 224, "grid": 2048, "spill_bytes": 1752}
    first, second, *_ = said(side(base, 66_100), side(capped, 154_600))
    assert "1752 more bytes of spills, 0 -> 1752 can account for all of it" in first
    assert "accounts for up to 100 %" in second


def test_what_nothing_accounts_for_is_said():
    """All of it, or what is left beside the best of what differs."""
    (first,) = said(side(CAPPED_AT_72, 1000), side(CAPPED_AT_72, 2000))
    assert "nothing that differs predicts it, so all of it is unexplained" in first
    more = CAPPED_AT_72 | {"opcodes": CAPPED_AT_72["opcodes"] | {"FADD": 550}}
    first, *_ = said(side(CAPPED_AT_72, 100_000), side(more, 200_000))
    assert (
        "can account for 25 % of it, and no single difference for the other 75 %"
        in first
    )
    (first,) = said(side(CAPPED_AT_72, 1000), side(CAPPED_AT_72, 1000))
    assert "which is no change" in first


def test_waves_and_bytes_in_flight_predict_what_they_waste():
    """324 blocks at once: 330 take two rounds, 324 one."""
    machines = {"gpu": GPU}, {"gpu": GPU}
    full, over = (side(CAPPED_AT_72 | {"grid": n}, 1000) for n in (324, 330))
    (found,) = explain_gpu.differences(full.row.trials[0], over.row.trials[0], machines)
    assert found.words == (
        "waves of blocks 1.00 -> 1.02: of the time in waves 100 -> 51 % is used"
    )
    assert found.predicted == pytest.approx(324 * 2 / 330)
    wide = side(CAPPED_AT_72 | {"loads_128": 24}, 1000)
    (found,) = explain_gpu.differences(
        full.row.trials[0],
        dataclasses.replace(
            wide.row.trials[0], facts=wide.row.trials[0].facts | {"grid": 324}
        ),
        machines,
    )
    assert (
        found.words == "bytes in flight on a multiprocessor 99.0 KiB -> 396 KiB at most"
    )
    assert found.predicted == 1 / 4


def test_another_gpu_predicts_what_its_copies_take():
    """Beside what ncu counted of both launches."""
    table = {"copy": {"cold": {"1048576": 1000.0, "268435456": 50_000.0}}}
    slow = {"copy": {"cold": {"1048576": 2000.0, "268435456": 150_000.0}}}
    machines = [
        {"gpu": GPU | {"peaks": table}},
        {"gpu": GPU | {"name": "A10", "peaks": slow}},
    ]
    one, two = (
        side(CAPPED_AT_72 | {"ncu": {"eligible_warps": e}}, 1000).row.trials
        for e in (1.29, 0.71)
    )
    found = ranked(differences(one, two, tuple(machines)), 1.0)
    assert found[0].words == "the GPU: name A100 -> A10"
    assert found[0].predicted == pytest.approx(2.9, abs=0.2)
    assert found[1].words == "eligible warps a cycle 1.29 -> 0.71 by ncu"


def test_rows_are_named_by_case_or_by_run_and_case(tmp_path):
    """Of the latest that has the case, or of two; what names none or several is refused."""
    store = tmp_path / "s.db"

    def add(day, *cases):
        ticks = range(1000 * day, 1000 * day + 40)
        made = [trials.trial(case, ticks, block=n) for case in cases for n in range(2)]
        trials.kept(store, made, started=f"2026-01-0{day}T00:00:00", writer={})

    add(1, "a[t=cuda:x]", "b")
    add(2, "b", "bb[n=1]")

    def explain(*words, code=0):
        return shell.command("explain", *words, "--store", store, code=code).output

    slower = "kernel/warm: B takes 1.98 times what A takes"
    assert slower in explain("@-2:b", "b")
    assert explain("@-2:a[t=cuda:x]", "@-2:b")
    assert "no case" in explain("@-1:c[", "b", code=4)
    assert explain("@-1:", "b", code=4)
    assert "in no mode alike" in explain("b", "b", "--mode", "kernel/cold", code=None)
    add(3)  # as a gate of code that is the same leaves it
    assert slower in explain("a[t=cuda:x]", "b")
    assert "no case 'c['" in explain("c[", "b", code=4)

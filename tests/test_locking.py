"""What every kernel's code takes, kept in a file that is reviewed."""

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import shell
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from steelyard.machine import files
from steelyard_device import cpu, llvm
from steelyard_kernels import KernelFunction, library
from steelyard_kernels.artifact import digest
from steelyard_kernels.building import cache
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.building.programs import build
from steelyard_lock import cases, changes, code
from steelyard_lock import lock as run
from steelyard_lock.cases import TARGETS, Case
from steelyard_lock.file import Entry, Foreign, Lock, Unreadable
from steelyard_lock.file import read as read_lock
from steelyard_lock.file import text as text_of

CPU = "cpu:x86-64-v3"
GPU = "cuda:sm_90a"
SMALL = (
    Case("copy", (("n", 1000), ("dtype", "float32"))),
    Case("softmax", (("rows", 64), ("hidden", 4096), ("dtype", "float32"))),
)

ENTRY = Entry(
    case="adam[n=100,dtype=float32]",
    target=GPU,
    text="0" * 32,
    code="a" * 32,
    schedule="v1 u1 b128 r0",
    numbers={
        "launches": 1,
        "blocks": 8,
        "threads": 128,
        "extent": 1000,
        "bytes": 2400,
        "operations": 1302,
        "registers": 40,
    },
    opcodes={"FFMA": 60, "LDG": 20, "NOP": 5, "STG": 20},
)


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """Work in a folder with a cache of its own, and lock two kernels for two targets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    cache.disk.cache_clear()
    monkeypatch.setattr(run, "cases", lambda: SMALL)
    monkeypatch.setattr(run, "TARGETS", (CPU, GPU))
    yield tmp_path
    cache.disk.cache_clear()


def lock_of(*entries, compilers=None):
    """Return a lock of these entries."""
    made = {"cpu": "llvm 20", "cuda": "nvrtc 13"} if compilers is None else compilers
    return Lock(made, {entry.key: entry for entry in entries})


def changed(counts=None, opcodes=None, **fields):
    """Return the words for a change of `ENTRY`."""
    numbers = {**ENTRY.numbers, **(counts or {})}
    mix = {**ENTRY.opcodes, **(opcodes or {})}
    new = replace(
        ENTRY,
        numbers={name: number for name, number in numbers.items() if number},
        opcodes={name: count for name, count in mix.items() if count},
        **fields,
    )
    return list(changes.changes(ENTRY, new))


# What is locked.


def test_every_kernel_of_the_library_is_locked():
    """Under labels as benchmarks have them, each once."""
    labels = [case.label for case in cases.cases()]
    kernels = {k for k, v in vars(library).items() if isinstance(v, KernelFunction)}
    assert {case.kernel for case in cases.cases()} == kernels | {*cases.PROGRAMS}
    assert len(labels) == len(set(labels))
    assert "empty" in labels
    assert "bias_layernorm[rows=8192,hidden=5140,dtype=float16]" in labels


def test_code_for_processors_is_the_same_on_every_machine(monkeypatch):
    """Nobody asks what the processor here is, or how many threads it has."""
    before = code.sources(SMALL, (CPU,))
    monkeypatch.setattr(llvm, "host", None)
    monkeypatch.setattr(cpu, "pool_size", None)
    assert code.sources(SMALL, (CPU,)) == before
    cpus = [target for target in TARGETS if target.startswith("cpu:")]
    assert all(code.sources(SMALL, (target,)) for target in cpus)


def test_an_entry_says_what_a_build_says_of_itself(nvrtc):
    """The facts of `steelyard compile` are the oracle."""
    made = run.made()
    for case in SMALL:
        built = build(case.program(), target=GPU)
        said, entry = facts_of(built), made.entries[case.label, GPU]
        assert entry.code == said["code_hash"]
        assert entry.schedule == said["schedule"]
        assert entry.opcodes == said["opcodes"]
        assert changes.resident(entry) == said["blocks_resident"]
        for ours, theirs in [
            ("registers", "registers"),
            ("spilled bytes", "spill_bytes"),
            ("shared bytes", "shared_bytes"),
            ("wide loads", "loads_128"),
            ("bytes", "bytes"),
            ("operations", "operations"),
        ]:
            assert entry.numbers.get(ours, 0) == said[theirs], ours
        assert entry.numbers["blocks"] == built.blocks
        assert entry.numbers["threads"] == built.threads


@pytest.mark.parametrize("name", cases.PROGRAMS)
def test_a_program_of_several_launches_has_its_partition_and_its_kernels(nvrtc, name):
    """As its build has them."""
    (case,) = (c for c in cases.cases() if c.kernel == name and GPU in c.targets)
    sources = code.sources([case], TARGETS)
    assert {source.target for source in sources} == {GPU}
    found = {entry.case: entry for entry in code.compiled(sources, {})}
    built = build(case.program(), target=GPU)
    assert len(built.parts) > 5
    said, own = facts_of(built), found.pop(case.label)
    assert own.schedule == built.schedule.label
    assert own.numbers["launches"] == len(built.parts)
    for ours, theirs in [("bytes",) * 2, ("workspace", "workspace_bytes")]:
        assert own.numbers[ours] == said[theirs]
    for number, part in enumerate(built.parts):
        entry = found.get(f"{case.label} launch {number}")
        if entry is not None:
            assert entry.code == part.code_hash
            assert entry.numbers["registers"] == facts_of(part)["registers"]
            assert entry.numbers["blocks"] == part.blocks
    assert {e.code for e in found.values()} == {part.code_hash for part in built.parts}


def test_another_partition_is_said_in_words():
    """As another schedule is; other launches of the same values too."""
    whole = replace(
        ENTRY, schedule="launches 1 2 3", numbers={"launches": 3}, opcodes={}
    )
    other = replace(
        whole, schedule="launches 1 2+3", numbers={"launches": 2}, code="b" * 32
    )
    assert list(changes.changes(whole, other)) == [
        "fewer launches: 3 -> 2",
        "other launches",
        "schedule launches 1 2 3 -> launches 1 2+3",
    ]


# The file.

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,6}", fullmatch=True)
COUNTS = st.integers(1, 10**18 - 1)
ENTRIES = st.builds(
    Entry,
    case=st.sampled_from(["copy[n=1,dtype=float16]", "empty", "a_b[x=1.5] launch 3"]),
    target=st.sampled_from([CPU, GPU]),
    text=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    code=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    schedule=st.sampled_from(["v1 u1", "t96 v8 two_pass"]),
    numbers=st.dictionaries(
        st.sampled_from(["launches", "extent", "bytes", "stack bytes"]), COUNTS
    ),
    opcodes=st.dictionaries(NAMES, COUNTS, max_size=4),
)


@settings(max_examples=30)
@given(st.lists(ENTRIES, max_size=4, unique_by=lambda entry: entry.key), st.data())
def test_what_is_written_is_read(entries, data):
    """And a file that is cut off anywhere is never read as a shorter one."""
    lock = lock_of(*entries)
    content = text_of(lock)
    assert read_lock(content, "it") == lock
    end = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(Unreadable):
        read_lock(content[:end], "it")


def test_carriage_returns_change_nothing():
    """Git may give a checkout Windows' ends of lines."""
    lock = lock_of(ENTRY)
    assert read_lock(text_of(lock).replace("\n", "\r\n"), "it") == lock


GOOD = text_of(lock_of(ENTRY))


def signed(content):
    """Return a file with a digest that is right."""
    above, _ = content.rsplit("end ", 1)
    return f"{above}end {digest(above.encode())}\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty"),
        ("# nothing\n\n", "it is empty"),
        ("[tool.steelyard]\nbuild = 1\n", "it is no lock file"),
        ("\x7fELF\x02", "it is no lock file"),
        (GOOD.replace("kernels.lock 2", "kernels.lock 3"), "of version 3.*upgrade it"),
        (GOOD.replace("kernels.lock 2", "kernels.lock 1"), "of the old version 1"),
        (GOOD[: GOOD.index("end ")], "cut off after '  opcodes"),
        (GOOD.replace("registers 40", "registers 99"), "the digest .* differs"),
        (GOOD.replace("# What", "# that"), "the digest .* differs"),
        (GOOD.replace("entries 1", "<<<<<<< HEAD"), "the digest .* differs"),
        (GOOD.replace("  schedule v1 u1 b128 r0\n", ""), "the digest .* differs"),
        (signed(GOOD.replace("  schedule v1", "  plan v1")), "not known here"),
        (signed(GOOD.replace("bytes 2400", "bytes NaN")), "not known here"),
    ],
)
def test_a_bad_file_is_one_sentence(content, said):
    """It says which, why, and what to do."""
    with pytest.raises(Unreadable, match=said) as caught:
        read_lock(content, "it")
    assert str(caught.value).startswith("it")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


# Words.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"counts": {"registers": 43}},
            [
                "fewer blocks on a multiprocessor: 12 -> 10",
                "more registers: 40 -> 43",
            ],
        ),
        ({"counts": {"spilled bytes": 16}}, ["more bytes of spills: 0 -> 16"]),
        ({"counts": {"stack bytes": 1}}, ["more bytes of stack: 0 -> 1"]),
        ({"counts": {"bytes": 2300}}, ["fewer bytes moved: 2400 -> 2300"]),
        ({"counts": {"operations": 1303}}, ["more operations: 1302 -> 1303"]),
        ({"counts": {"blocks": 9}}, ["more blocks: 8 -> 9"]),
        ({"counts": {"launches": 3}}, ["more launches: 1 -> 3"]),
        ({"counts": {"extent": 0}}, ["fewer elements of the extent: 1000 -> 0"]),
        (
            {"counts": {"threads": 256}},
            [
                "fewer blocks on a multiprocessor: 12 -> 6",
                "more threads of a block: 128 -> 256",
            ],
        ),
        (
            {"opcodes": {"LDL": 4}},
            ["more local loads: 0 -> 4", "more instructions: 100 -> 104 (LDL +4)"],
        ),
        (
            {"opcodes": {"FFMA": 50, "HFMA2": 40, "MOV": 1, "SEL": 1}},
            ["more instructions: 100 -> 132 (HFMA2 +40, FFMA -10, MOV +1, ...)"],
        ),
        (
            {"opcodes": {"LDG": 19, "LDS": 1}},
            ["other instructions: 100 -> 100 (LDG -1, LDS +1)"],
        ),
        ({"opcodes": {"STG": 0}}, ["fewer instructions: 100 -> 80 (STG -20)"]),
        ({"code": "b" * 32}, ["other code of as many instructions of each kind"]),
        ({"schedule": "v2"}, ["schedule v1 u1 b128 r0 -> v2"]),
        ({"text": "1" * 32}, []),
        ({}, []),
    ],
)
def test_a_change_is_said_in_words(change, said):
    """Another text that comes to the same code is none."""
    assert changed(**change) == said


def test_the_weightiest_change_comes_first():
    """Spills before registers, and both before the mix that they make."""
    words = changed(
        counts={"spilled bytes": 8, "registers": 41},
        opcodes={"LDL": 1, "STL": 1},
        schedule="v2",
    )
    assert words[:5] == [
        "more bytes of spills: 0 -> 8",
        "more local loads: 0 -> 1",
        "more local stores: 0 -> 1",
        "fewer blocks on a multiprocessor: 12 -> 10",
        "more registers: 40 -> 41",
    ]
    assert words[-1].startswith("schedule")


def test_a_case_may_vanish_or_appear():
    """Both are said."""
    other = replace(ENTRY, case="empty")
    found = changes.differences(lock_of(ENTRY), lock_of(other))
    assert [(each.case, each.changes) for each in found] == [
        ("empty", ("is new",)),
        (ENTRY.case, ("is gone",)),
    ]


def test_targets_that_changed_alike_share_a_line():
    """As `--target` reads them."""
    assert run.joined(["cpu:a", "cuda:sm_80", "cuda:sm_90a"]) == (
        "cpu:a,cuda:sm_80,sm_90a"
    )


# Made and compared.


def test_unchanged_sources_cost_nothing(nvrtc, monkeypatch):
    """The second time nothing is traced, and nothing compiled."""
    first = run.made()
    monkeypatch.setattr(code, "sources", None)
    assert run.made() == first


def test_what_says_which_cases_are_locked_is_one_of_the_sources(nvrtc, monkeypatch):
    """A lock that is kept whole is not that of other cases."""
    seen = set()
    monkeypatch.setattr(run.keys, "sources", lambda *names: seen.add(names))
    run.made()
    assert seen == {("steelyard_lock",)}


def test_a_text_that_is_the_same_is_not_compiled_again(nvrtc, monkeypatch):
    """Neither when other sources changed, nor where the file is all there is."""
    first = run.made()
    monkeypatch.setattr(run.keys, "sources", lambda *_: "others")
    monkeypatch.setattr(code, "_compile", None)
    assert run.made() == first
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    cache.disk.cache_clear()
    assert run.made(before=first) == first
    with pytest.raises(TypeError):
        run.made()


def test_what_a_file_said_is_not_taken_for_made(nvrtc, monkeypatch):
    """A gate believes its file, each time; a lock is what the compilers say."""
    true = run.made()
    lies = Lock(
        true.compilers,
        {key: replace(each, code="f" * 32) for key, each in true.entries.items()},
    )
    monkeypatch.setattr(run.keys, "sources", lambda *_: "others")
    assert run.made(before=lies) == lies
    with monkeypatch.context() as patch:
        patch.setattr(code, "sources", None)
        assert run.made(before=lies) == lies
    assert run.made() == true
    assert run.made(before=lies) == true


def test_what_another_compiler_made_is_not_believed():
    """Even if a text's name were the same."""
    assert code.known(lock_of(ENTRY)) == {}


def test_a_torn_cache_is_a_miss(nvrtc, desk):
    """Whatever lies there."""
    first = run.made()
    for file in (desk / "cache").rglob("*.build"):
        file.write_bytes(file.read_bytes()[:-3])
    assert run.made() == first


def test_a_changed_kernel_is_a_suspect_in_words(nvrtc, monkeypatch):
    """Fewer registers than it needs, as if somebody had limited them."""
    content = text_of(run.made())
    assert run.compare(content, "it") == {
        "same": [(case.label, target) for case in SMALL for target in (CPU, GPU)],
        "changed": [],
        "gone": [],
    }
    chosen = code.heuristic

    def limited(program, where, *, aligned):
        schedule = chosen(program, where, aligned=aligned)
        if isinstance(where, cases.Gpu) and program.name == "softmax":
            return structs.replace(schedule, registers=16)
        return schedule

    monkeypatch.setattr(code, "heuristic", limited)
    monkeypatch.setattr(run.keys, "sources", lambda *_: "changed")
    said = run.compare(content, "it")
    ((case, target, words),) = said["changed"]
    assert (case, target) == (SMALL[1].label, GPU)
    assert re.fullmatch(r"more bytes of spills: 0 -> \d+", words[0])
    assert any(re.match(r"fewer registers: ", each) for each in words)
    assert len(said["same"]) == 3
    json.dumps(said)


def test_a_case_that_is_not_built_any_more_is_gone(nvrtc, monkeypatch):
    """It is never among those that are the same."""
    content = text_of(run.made())
    monkeypatch.setattr(run, "cases", lambda: SMALL[:1])
    monkeypatch.setattr(run.keys, "sources", lambda *_: "changed")
    said = run.compare(content, "it")
    assert said["gone"] == [(SMALL[1].label, CPU), (SMALL[1].label, GPU)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no it"),
        ("", "it is empty"),
        (GOOD, "it is of the cpu compiler llvm 20, here is llvm"),
    ],
)
def test_what_cannot_be_compared_is_a_problem_and_never_a_pass(nvrtc, content, said):
    """Another compiler is said once, not as a change of everything."""
    found = run.compare(content, "it")
    assert said in found["problem"]
    assert found["exit_code"] == 4


def test_a_kernel_that_cannot_be_built_is_named(nvrtc, monkeypatch):
    """With the exit code of a benchmark that failed."""
    content = text_of(run.made())
    monkeypatch.setattr(run.keys, "sources", lambda *_: "changed")
    monkeypatch.setattr(code, "heuristic", lambda *_, **__: 1 // 0)
    found = run.compare(content, "it")
    assert found["exit_code"] == 2
    assert found["problem"].startswith(f"{SMALL[0].label} cannot be built for {CPU}: ")


# The run.


def test_a_lock_is_written_and_checked(nvrtc, desk):
    """The folder need not be there; a check writes nothing."""
    shell.command("lock", "--check", code=4)
    done = shell.command("lock")
    assert done.output == "ci/kernels.lock: 4 entries.\n"
    file = desk / "ci" / "kernels.lock"
    assert read_lock(file.read_text(), "it") == run.made()
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    done = shell.command("lock", "--check")
    assert done.output == "ci/kernels.lock is up to date: 4 entries.\n"


def test_a_file_that_is_out_of_date_says_what_changed(nvrtc, desk):
    """A check exits with 1 and leaves it; writing mends it and says the same."""
    shell.command("lock", "mine")
    file = desk / "mine"
    good = file.read_text()
    old = signed(good.replace("takes registers 10", "takes registers 9", 1))
    assert old != good
    file.write_text(old)
    done = shell.command("lock", "--check", "mine", code=1)
    assert f"{SMALL[0].label} {GPU}: more registers: 9 -> 10\n" in done.output
    assert file.read_text() == old
    done = shell.command("lock", "mine")
    assert file.read_text() == good
    assert f"{SMALL[0].label} {GPU}: more registers: 9 -> 10\n" in done.output


def test_another_compilers_file_is_replaced_and_not_compared(nvrtc, desk):
    """A check has no answer; writing says that all of it is new."""
    (desk / "mine").write_text(GOOD)
    done = shell.command("lock", "--check", "mine", code=4)
    assert "mine is of the cpu compiler llvm 20, here is llvm" in done.output
    done = shell.command("lock", "mine")
    assert "all of it is new" in done.output
    assert read_lock((desk / "mine").read_text(), "it") == run.made()


def test_a_damaged_lock_is_replaced_and_anybody_elses_file_is_not(nvrtc, desk):
    """A file that is not ours is left as it is."""
    (desk / "mine").write_text(GOOD[:100])
    shell.command("lock", "mine")
    for content in ("import this\n", GOOD.replace("kernels.lock 2", "kernels.lock 9")):
        (desk / "mine").write_text(content)
        shell.command("lock", "mine", code=4)
        assert (desk / "mine").read_text() == content
    with pytest.raises(Foreign):
        read_lock(content, "it")
    (desk / "mine").write_bytes(b"\xff\xfe\x00")
    done = shell.command("lock", "mine", code=4)
    assert "it is no text" in done.output


def test_a_file_that_cannot_be_written_is_one_sentence(nvrtc, desk):
    """And nothing is left beside it."""
    (desk / "place").write_text("a file")
    done = shell.command("lock", "place/kernels.lock", code=4)
    assert done.output.startswith("error: place/kernels.lock")
    shell.command("lock", str(desk), code=4)


def test_a_full_disk_leaves_the_file_that_was_there(nvrtc, desk, monkeypatch):
    """It is written aside and renamed; what was begun is removed."""
    (desk / "mine").write_text(GOOD)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    done = shell.command("lock", "mine", code=4)
    assert "mine: No space left on device" in done.output
    assert (desk / "mine").read_text() == GOOD
    assert sorted(each.name for each in desk.iterdir()) == ["cache", "mine"]


def test_the_projects_own_file_is_as_it_was_written():
    """No registers were edited by hand; that it is up to date `.ci/run` checks."""
    file = Path(__file__).parents[1] / run.FILE
    read_lock(file.read_text(), run.FILE)

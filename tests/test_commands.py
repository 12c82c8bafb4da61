import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import shell
from click.testing import CliRunner
from rich.console import Console

from steelyard.commands import main
from steelyard_kernels.artifact import Failure
from steelyard_kernels.building import cache
from steelyard_kernels.group import Batch
from steelyard_kernels.library import examples
from steelyard_kernels.schedule import strategies
from steelyard_kernels.toolchains.codes import nvdisasm
from steelyard_lock import builds, report, spaces
from steelyard_lock.points import Point

CUDA = "cuda:sm_90a"

OWN = '''
import os

import numpy as np

from steelyard import benchmark
from steelyard_kernels import kernel


@kernel
def double(x):
    """Return twice x."""
    if os.environ.get("STEELYARD_CACHE") == "off":
        os.kill(os.getpid(), 9) if len(x.shape) == 2 else os._exit(3)
    return 2 * x


@kernel
def broken(x):
    """Divide by zero before there is anything to build."""
    return x * (1 // 0)


@kernel
def chain(x, w):
    """Two products, of one kernel where all shapes are alike."""
    return x @ w @ w


@benchmark(impl=["ours", "numpy"], n=[32, 48])
def cases(b, impl, n):
    """Two products of several shapes."""
    x = b.input((8, n))
    w = b.input((n, n))
    v = b.input((n, n))
    y = b.output((8, n))
    work = narrowed if impl == "ours" else np.linalg.multi_dot
    return b.launch(work, x, w, v, out=y)


@kernel
def narrowed(x, w, v):
    """Two products, one of which has an epilogue."""
    return (x @ w) @ v + 1
'''


@pytest.fixture
def few(monkeypatch):
    """Have an eighth of all candidates: which there are is no matter of commands."""
    every = strategies.candidates
    monkeypatch.setattr(strategies, "candidates", lambda *a, **k: every(*a, **k)[::8])


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch):
    """Work in a folder with a kernel file and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    cache.disk.cache_clear()
    (tmp_path / "own.py").write_text(OWN)
    yield tmp_path
    cache.disk.cache_clear()


def invoke(*arguments):
    """Run `steelyard compile`."""
    return CliRunner().invoke(main, ["compile", *arguments], env={"COLUMNS": "320"})


def said(*arguments, code=0):
    """Return what it prints."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def refused(*arguments, code=4):
    """Return what it says where it ends with a code."""
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    return result.stderr


def rows_of(*arguments, code=0):
    """Return the rows that it prints as JSON."""
    found = json.loads(said(*arguments, "--json", code=code))
    assert found["schema"] == 1
    return found["rows"]


def scrubbed(text):
    """Replace what the machine and the compiler's version decide."""
    text = re.sub(r"[\d.]+ (ns|us|ms|s)\b", "TIME", text)
    text = re.sub(r"(?<= )\d+(?= )", "N", text)
    text = re.sub("─+", "─", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "HASH", text)
    text = re.sub(r"nvrtc .*", "COMPILER", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines()) + "\n"


def test_a_row_stands_for_each_kernel_target_and_point_of_its_axes():
    """Axes that a kernel has not are no matter of it."""
    rows = rows_of("copy", "empty", "-p", "n=8,1e2", "--repeat", "2")
    assert [(row["kernel"], row["axes"]) for row in rows] == [
        ("copy", {"n": 8, "dtype": "float32"}),
        ("copy", {"n": 100, "dtype": "float32"}),
        ("empty", {}),
    ]
    for row in rows:
        assert row["best"] <= row["median"] <= max(row["times"])
        assert len(row["times"]) == 2
        assert {"trace", "schedule", "lower", "verify", "emit"} <= set(row["phases"])
        assert row["facts"]["compiler"].startswith("llvm")


def test_the_whole_library_is_built_by_one_word():
    """Each at the default point of its axes, and once, however often it is named."""
    rows = rows_of("all", "copy", "--repeat", "1")
    assert [row["kernel"] for row in rows] == list(examples.SHAPES)
    assert not any(row["error"] for row in rows)
    # One build says nothing of the next.
    assert {(row["low"], row["high"]) for row in rows} == {(None, None)}


def test_the_table_has_phases_and_what_the_code_takes(nvrtc, golden):
    """In this order, each table over its own rows."""
    text = said("empty", "--target", CUDA, "--repeat", "1", "--resources")
    golden(scrubbed(text))


def test_a_pipe_is_as_wide_as_it_says():
    """COLUMNS counts where there is no terminal to ask, and is 80 where it is not set."""
    told = ["compile", "empty", "--target", CUDA, "--repeat", "1", "--resources"]
    for columns, width in ((None, 80), ("60", 60)):
        shown = CliRunner().invoke(main, told, env={"COLUMNS": columns}).stdout
        assert "registers were estimated" in " ".join(shown.split())
        assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_gets_more_tables_and_every_figure(width):
    """None is cut: a cut number reads like another."""
    sample = builds.Sample(12.345e6, dict.fromkeys(report.PHASES, 1.234e6), {})
    point = Point("copy", (("n", 1024),), (), "cpu")
    row = builds.Row(point, "cold", (sample,))
    console = Console(width=width, file=io.StringIO())
    for made in report.tables([row]):
        console.print(made)
    text = console.file.getvalue()
    assert text.count("1.23 ms") == len(report.PHASES)
    assert text.count("12.3 ms") == 2
    assert "±" not in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_each_level_of_cache_is_dropped_on_top_of_the_others():
    """What a dropped level saved is built or looked up again."""
    drops = [word for level in cache.LEVELS for word in ("--drop", level)]
    rows = rows_of("copy", "-p", "n=77", "--repeat", "1", *drops)
    assert [row["dropped"] for row in rows] == [
        [],
        ["memory"],
        ["memory", "code"],
        ["memory", "code", "disk"],
    ]
    assert {row["quantity"] for row in rows} == {"warm-memory"}
    none, memory, code, disk = (set(row["phases"]) for row in rows)
    assert none == set()
    assert memory == {"trace", "look up"}
    assert code == {"trace", "look up", "link"}
    assert disk >= {"trace", "emit", "codegen", "link"}
    lines = said("copy", "--drop", "memory", "--repeat", "1").splitlines()
    assert "more" in lines[1]
    assert re.search(r"memory .* [+-][\d.]+ [um]s", lines[4])


@pytest.mark.parametrize(
    ("level", "rows", "saved"),
    [
        ("memory", [[], ["memory"]], {"trace", "look up"}),
        ("code", [["memory"], ["memory", "code"]], {"link"}),
        ("disk", [["memory", "code"], ["memory", "code", "disk"]], {"codegen", "emit"}),
    ],
)
def test_a_level_dropped_alone_is_dropped_without_those_above_it(level, rows, saved):
    """They have the build already: what the level saves is between the two rows."""
    with_, without = rows_of("copy", "-p", "n=79", "--repeat", "1", "--drop", level)
    assert [with_["dropped"], without["dropped"]] == rows
    assert saved <= set(without["phases"]) - set(with_["phases"])
    assert {one["quantity"] for one in (with_, without)} == {"warm-memory"}
    disk = rows_of("copy", "--quantity", "warm-disk", "--drop", "disk")
    assert [row["dropped"] for row in disk] == [[], ["disk"]]


def test_a_build_that_is_on_disk_is_neither_lowered_nor_emitted():
    """The first one, untimed, put it there."""
    (row,) = rows_of("copy", "-p", "n=78", "--quantity", "warm-disk", "--repeat", "1")
    assert set(row["phases"]) == {"trace", "look up", "link"}
    assert not row["error"]


def test_a_fresh_process_tells_import_first_and_second_kernel_apart():
    """The time of the row is all but the second kernel."""
    (row,) = rows_of("copy", "--quantity", "first", "--repeat", "1")
    *parts, second = row["phases"].values()
    assert tuple(row["phases"]) == report.PHASES[-4:]
    assert sum(parts) == pytest.approx(row["median"])
    assert second > 0


def test_a_kernel_of_ones_own_is_named_by_its_file():
    """Its arrays are given."""
    arguments = ("own.py:double", "--arg", "3x5:float16", "--repeat", "1")
    (row,) = rows_of(*arguments)
    assert row["arrays"] == [[[3, 5], "float16"]]
    assert "double   3x5:float16   cpu" in said(*arguments)


def test_a_build_that_fails_leaves_the_others_and_gives_exit_code_2():
    """Its sentence stands on standard error."""
    result = invoke("own.py:broken", "copy", "--arg", "8", "--repeat", "1")
    assert result.exit_code == 2
    assert result.stderr.startswith("failed: broken[8:float32] cpu: trace: ")
    assert "failed" in result.stdout
    assert re.search(r"copy .* [\d.]+ ms", result.stdout)
    broken, copy = rows_of(
        "own.py:broken", "copy", "--arg", "8", "--repeat", "1", code=2
    )
    assert broken["error"]
    assert not copy["error"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], r"the library has no kernel 'nope'.*adam"),
        (["adan"], r"did you mean adam\?"),
        (["no.py:x"], r"there is no file no\.py"),
        (["own.py:dubble"], r"own\.py has no kernel 'dubble'; did you mean double\?"),
        (["bad.py:x"], r"bad\.py could not be imported: ZeroDivisionError.*Mend"),
        (["end.py:x"], r"end\.py could not be imported: SystemExit: 3"),
        (["note.txt:x"], r"note\.txt is not a Python file"),
        (["own.py:double"], r"takes x and is not of the library; give each a --arg"),
        (["copy", "-p", "k=3"], r"-p k: no kernel named here has this axis.*n, dtype"),
        (["copy", "-p", "n"], r"-p 'n' is not of the form axis=1,2"),
        (["copy", "-p", "n=1.5"], r"-p n=1\.5: expected a whole number from 0 up"),
        (["copy", "-p", "n=-1"], r"-p n=-1: expected a whole number"),
        (["copy", "-p", "n=nan"], r"-p n=nan: expected a whole number"),
        (["copy", "-p", "dtype=f31"], r"dtype f31 is not supported"),
        (["copy", "--arg", "3,4"], r"--arg 3,4: expected SHAPE:DTYPE"),
        (["copy", "--target", "tpu"], r"target 'tpu' is not known"),
        (["copy", "--drop", "disk", "--quantity", "cold"], r"--drop disk: a cold"),
        (["copy", "--schedule", "zz"], r"no candidate 'zz'.*nearest is 'i:v"),
        (["copy", "--max-registers", "32"], r"limits a GPU's threads, copy.*cpu"),
        (["copy", "--nvrtc", "/x"], r"--nvrtc chooses the compiler of cuda targets"),
        (
            ["copy", "--target", f"nvptx:sm_90a,{CUDA}", "--nvrtc", "x"],
            r"cuda targets, c",
        ),
        (["copy", "--candidates", "--nvrtc", "/x"], r"--nvrtc chooses the compiler"),
        (
            ["copy", "--candidates", "--trace", "no/x"],
            r"--trace no/x cannot be written: no",
        ),
        (["copy", "--candidates", "--max-registers", "9"], r"limits a GPU's threads"),
        (["copy", "--candidates", "--resources"], r"--resources does nothing with --c"),
        (["copy", "--candidates", "--drop", "disk"], r"--drop does nothing.*once and"),
        (["copy", "--candidates", "--repeat", "5"], r"--repeat does nothing with --ca"),
        (["copy", "--candidates", "--schedule", "v1"], r"--schedule does nothing with"),
        (["copy", "--candidates", "--passes"], r"--passes does nothing with --cand"),
        (["copy", "--threads", "2"], r"--threads does nothing without --candidates"),
        (["copy", "--timings", "--threads", "2"], r"--threads is of kernels.*copy\["),
        (["copy", "--launch", "1"], r"--launch 1: copy\[.* has 1 launches, numbered"),
        (
            ["own.py:chain", *["--arg", "64x64"] * 2, "--schedule", "x"],
            r"chain.* is 2 launches, a schedule .* name it by --launch N",
        ),
        (["own.py:cases", "--arg", "8"], r"own\.py:cases is a benchmark with its own"),
        (
            ["own.py:cases", "-p", "n=4", "-p", "impl=numpy"],
            r"impl=numpy.* launches a .*, expected a kernel",
        ),
        (["own.py:cases", "-p", "impl=none"], r"no benchmark lists this value of axis"),
        (
            ["copy", "--candidates", "--threads", "0,1"],
            r"expected whole numbers from 1",
        ),
        (["copy", "--candidates", "--quantity", "cold"], r"--quantity does nothing wi"),
        (["copy", "--emit", "loops", "--json"], r"--json does nothing with --emit: it"),
        (["copy", "--emit", "loops", "--candidates"], r"--candidates does nothing wit"),
        (["copy", "--emit", "loops", "--timings"], r"--timings does nothing with --em"),
        (["copy", "--print-after-all", "--json"], r"--json does nothing with --print-"),
        (["copy", "--trace", "no/x"], r"--trace no/x cannot be written: no"),
        (["copy", "--timings", "--quantity", "first"], r"first starts a new one"),
        (["copy", "--emit", "cuda"], r"--emit cuda is of cuda targets.*cuda:sm_90a"),
        (["copy", "--emit", "ptx"], r"--emit ptx is of cuda and nvptx targets"),
        (["copy", "--target", CUDA, "--passes"], r"--passes are LLVM's.*nvptx:ARCH"),
        (["copy", "--target", CUDA, "--emit", "llvm"], r"llvm is of cpu and nvptx"),
        (["copy", "adam", "--emit", "loops"], r"shows one build, these are 2"),
        (
            ["own.py:broken", "--arg", "8", "--emit", "loops"],
            r"broken\[8:float32\] cpu cannot be traced: ZeroDivisionError",
        ),
        (
            ["own.py:broken", "--arg", "8", "--candidates"],
            r"cannot be traced: ZeroDivisionError",
        ),
    ],
)
def test_a_users_mistake_is_one_sentence(desk, arguments, sentence):
    """Exit code 4, no traceback, and the next step."""
    (desk / "bad.py").write_text("1 / 0")
    (desk / "note.txt").write_text("")
    (desk / "end.py").write_text("raise SystemExit(3)")
    result = invoke(*arguments)
    assert result.exit_code == 4
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert re.search(sentence, result.stderr)


def test_without_a_disk_there_is_no_build_from_it(monkeypatch):
    """It would be a cold one."""
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    assert "STEELYARD_CACHE=off" in refused("copy", "--quantity", "warm-disk")


def test_a_disk_that_keeps_nothing_gives_no_builds_from_it(desk, monkeypatch):
    """A file where the folder would be: every build was cold."""
    (desk / "file").write_text("")
    monkeypatch.setenv("STEELYARD_CACHE", str(desk / "file"))
    cache.disk.cache_clear()
    told = refused("copy", "--quantity", "warm-disk", "--repeat", "1")
    assert re.search(r"copy.*built anew each time: .*file keeps", told)


def test_a_fresh_process_that_dies_is_named_by_its_exit_code():
    """A kernel may end its process while it is traced."""
    for shape, how in (("8", "exit code 3"), ("8x8", "signal 9 killed it")):
        told = refused("own.py:double", "--arg", shape, "--quantity", "first", code=2)
        assert f"a fresh process failed: {how}" in told


@pytest.mark.parametrize(
    ("target", "what", "mark"),
    [
        ("cpu", "program", "program copy"),
        ("cpu", "schedule", "pointwise i:v"),
        ("cpu", "loops", "kernel kernel("),
        ("cpu", "llvm", "declare"),
        (CUDA, "cuda", "__global__"),
        (CUDA, "ptx", ".target sm_90a"),
        (CUDA, "sass", "EXIT"),
        ("nvptx:sm_90a", "llvm", "ptx_kernel"),
        ("nvptx:sm_90a", "ptx", "LLVM NVPTX"),
        ("nvptx:sm_90a", "sass", "EXIT"),
    ],
)
def test_a_text_of_a_build_is_printed_alone(nvrtc, target, what, mark):
    """It is that phase's own; what is not ours is NVIDIA's compilers', or LLVM's."""
    if what == "sass" and nvdisasm() is None:
        pytest.skip("needs nvdisasm")
    found = said("copy", "--target", target, "--emit", what)
    assert mark in found
    assert found.startswith(mark) or target != "cpu"


def test_a_disassembler_is_given_no_file_that_a_kill_could_leave(nvrtc, monkeypatch):
    """It reads one in memory: there need be no folder for temporary files."""
    if nvdisasm() is None:
        pytest.skip("needs nvdisasm")
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    assert "EXIT" in said("copy", "--target", CUDA, "--emit", "sass")


def test_sass_without_a_disassembler_names_the_package(nvrtc, monkeypatch):
    """The instruction mix needs none."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    told = refused("copy", "--target", CUDA, "--emit", "sass")
    assert "pip install nvidia-cuda-nvdisasm" in told
    assert "--resources" in told


def test_what_each_phase_made_stands_under_its_name(golden):
    """For a GPU, whose schedule is the same on every machine."""
    golden(said("empty", "--target", CUDA, "--print-after-all"))


def test_time_is_told_by_phase_and_by_the_compilers_own():
    """As a table, as JSON, and as a trace with every single span."""
    arguments = ("copy", "--repeat", "2", "--timings", "--trace", "spans.json")
    text = said(*arguments)
    assert "% measured" in text
    assert re.search(r"copy\[n=65536,dtype=float32\] cpu +2 ", text)
    found = json.loads(said(*arguments, "--json"))["timings"]
    paths = {tuple(row["path"][1:]): row["calls"] for row in found["rows"]}
    assert paths["compile", "codegen"] == 2
    events = json.loads(Path("spans.json").read_text())["traceEvents"]
    assert sum(event["name"] == "codegen" for event in events) == 2


def test_memory_of_a_build_is_counted_by_phase_when_asked_for():
    """Tracing holds on to a program; what the compiler timed itself has no memory."""
    arguments = ("copy", "--repeat", "1", "--allocations")
    assert "counting memory" in said(*arguments)
    rows = json.loads(said(*arguments, "--json"))["timings"]["rows"]
    memory = {row["path"][-1]: (row["peak"], row["heap"]) for row in rows}
    assert memory["trace"][0] > 1000
    assert memory["codegen"] == (0, 0)


@pytest.mark.parametrize("target", ["cpu", "nvptx:sm_90a"])
def test_passes_of_llvm_are_told_one_by_one(target):
    """Those of each build alone, the longest first."""
    if target != "cpu":
        pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")
    arguments = ("bias_layernorm", "softmax", "--repeat", "1", "--target", target)
    found = json.loads(said(*arguments, "--passes", "--json"))["passes"]
    assert [label.partition("[")[0] for label in found] == ["bias_layernorm", "softmax"]
    for taken in found.values():
        assert list(taken.values()) == sorted(taken.values(), reverse=True)
        assert "Instruction Selection" in " ".join(taken)
        assert not any("Total" in name or "#" in name for name in taken)
    if target == "cpu":
        assert "passes of LLVM, once: softmax[" in said(*arguments, "--passes")


def test_candidates_are_built_by_so_many_compilers_at_a_time(few):
    """A line each, with the sums of workers beside the wall."""
    text = said("copy", "-p", "n=64", "--candidates", "--threads", "1,2")
    lines = [line.split() for line in text.splitlines() if line.startswith("copy[")]
    assert [line[2] for line in lines[:2]] == ["1", "2"]


def test_each_kernel_of_several_launches_has_a_line_of_a_sheet():
    """Equal launches are one; sums of workers, and the wall with each number of them."""
    arguments = ("own.py:chain", *["--arg", "64x64"] * 2, "--timings", "--repeat", "1")
    text = said(*arguments)
    (kernel,) = [line for line in text.splitlines() if line.startswith("0 and 1 more")]
    assert "product 64x64 of depth 64" in kernel
    assert re.search(r"^all +summed +1 ", text, re.MULTILINE)
    assert re.search(r"^all +wall +1 ", text, re.MULTILINE)
    made = json.loads(said(*arguments, "--threads", "1,2", "--json"))
    assert [sheet["threads"] for sheet in made["kernels"]] == [1, 2]
    for sheet in made["kernels"]:
        (one,) = sheet["results"]
        assert one["launches"] == [0, 1]
        assert sheet["compile_wall_ns"] <= sheet["wall_ns"]
    text = said(*arguments, "--threads", "1,2")
    lines = [line.split() for line in text.splitlines() if " in groups " in line]
    assert [line[2] for line in lines] == ["1", "2"]


def test_candidates_of_several_launches_are_those_of_each_kernel(few):
    """One kernel of them by the number of its launch, whose schedule can be named."""
    arguments = ("own.py:cases", "-p", "n=64", "-p", "impl=ours")
    spaces = json.loads(said(*arguments, "--candidates", "--json"))["spaces"]
    results = spaces[0]["results"]
    assert {*map(str, (each["launches"] for each in results))} == {"[0]", "[1]"}
    (own,) = json.loads(said(*arguments, "--launch", "1", "--candidates", "--json"))[
        "spaces"
    ]
    assert [each["schedule"] for each in own["results"]] == [
        each["schedule"] for each in results if each["launches"] == [1]
    ]
    label = own["results"][-1]["schedule"]
    (row,) = rows_of(*arguments, "--launch", "1", "--schedule", label, "--repeat", "1")
    assert row["facts"]["schedule"] == label
    assert "cases[impl=ours,n=64] launch 1" in said(
        *arguments, "--launch", "1", "--candidates"
    )


def test_registers_are_limited_by_the_schedule(nvrtc):
    """The row says how many there are beside how many were expected."""
    arguments = ("adam", "--target", CUDA, "--repeat", "1")
    (row,) = rows_of(*arguments, "--max-registers", "24")
    assert row["facts"]["registers"] <= 24
    assert row["facts"]["schedule"].endswith("registers24")
    assert "estimated_registers" in row["facts"]
    assert "no resources" in invoke("copy", "--resources", "--repeat", "1").stderr


def test_each_library_builds_in_a_process_of_its_own(nvrtc):
    """Both have their compiler build in the table, and a track in the timings."""
    path = nvrtc.compiler().path
    arguments = ("copy", "--target", CUDA, "--repeat", "1", "--nvrtc", path)
    text = said(*arguments, "--timings")
    version = f"nvrtc {nvrtc.compiler().version} {nvrtc.compiler().build}"
    assert version in text.splitlines()[3]
    assert "wait for a worker" in text
    assert "NVVM Optimizer" in text
    told = refused("copy", "--target", CUDA, "--nvrtc", "/no/lib.so")
    assert "/no/lib.so" in told


def test_all_candidates_are_built_in_groups(nvrtc, few):
    """A row each, then the stages summed over workers and on the wall."""
    arguments = ("copy", "-p", "n=64", "--target", CUDA, "--candidates")
    text = said(*arguments)
    found = json.loads(said(*arguments, "--json"))
    (space,) = found["spaces"]
    results = space["results"]
    assert space["candidates"] == len(results)
    assert space["distinct"] == len({one["code_hash"] for one in results})
    assert space["failed"] == 0
    assert all(one["schedule"] in text for one in results)
    assert "summed over workers" in text


def test_all_candidates_may_be_limited_in_registers(nvrtc):
    """Those that differ in nothing else are one."""
    limits = "-p", "n=64", "--max-registers", "24"
    arguments = ("triad", "--target", CUDA, "--candidates", *limits)
    (space,) = json.loads(said(*arguments, "--json"))["spaces"]
    labels = [one["schedule"] for one in space["results"]]
    assert len(set(labels)) == len(labels) > 1
    assert all(one["registers"] <= 24 for one in space["results"])


def test_a_candidate_that_fails_is_told_beside_the_others(monkeypatch):
    """The exit code is 2."""

    def build_all(candidates, **_):
        made = [
            Failure(c.name, c.schedule, "cpu", "compile", "it broke", ValueError(), ())
            for c in candidates
        ]
        return Batch(tuple(made), {}, (), (), 1_000_000)

    monkeypatch.setattr(spaces, "build_all", build_all)
    text = said("copy", "--candidates", code=2)
    assert "failed: it broke" in text
    assert "0 distinct codes" in text


def test_help_loads_no_kernels():
    """The command is known by name until it is used."""
    script = (
        "import sys\nfrom steelyard.commands import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print('loaded', 'steelyard_kernels' in sys.modules)"
    )
    done = shell.python("-c", script, check=True, COLUMNS="80")
    assert "compile" in done.stdout
    assert done.stdout.endswith("loaded False\n")

"""Builds: phases, hashes, caches, and failures that are data."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import vectors

from steelyard_device.disk import Disk
from steelyard_device.errors import DeviceError, LLVMError
from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.artifact import Artifact, Failure, digest
from steelyard_kernels.building import keys
from steelyard_kernels.building.cache import compiled, disk
from steelyard_kernels.building.keys import key
from steelyard_kernels.building.programs import build
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.reference import evaluate
from steelyard_kernels.targets import machine, parse

SPECS = (((100,), "float32"), ((100,), "float32"))
PHASES = (
    "trace",
    "simplify",
    "schedule",
    "lower",
    "verify",
    "emit",
    "parse",
    "check",
    "codegen",
)


def test_a_cold_build_goes_through_every_phase():
    """Each phase is there once, in order, with the time it took."""
    built = library.triad.build(*SPECS, cache="cold")
    assert tuple(name for name, _ in built.phases) == (*PHASES, "link")
    assert all(nanoseconds >= 0 for _, nanoseconds in built.phases)


def test_the_second_build_is_the_first():
    """The lookup needs no tracing: the function is not called again."""
    calls = []

    @kernel
    def counted(a):
        calls.append(1)
        return a + 1

    first = counted.build(((7,), "float32"))
    assert counted.build(((7,), "float32")) is first
    assert len(calls) == 1
    assert counted.build(((8,), "float32")) is not first
    counted.build(((7,), "float32"), cache="cold")
    assert len(calls) == 3


def test_each_target_has_its_own_build():
    """The lookup before tracing knows for what."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    targets = ["cuda:sm_80", "cuda:sm_90a", "cpu"]
    found = [library.copy.build(SPECS[0], target=target) for target in targets]
    again = [library.copy.build(SPECS[0], target=target) for target in targets]
    assert [built.target for built in again] == targets
    assert all(one is other for one, other in zip(found, again, strict=True))


def test_arrays_and_specs_find_their_own_builds():
    """A build by arrays is found by equal arrays, and has the same code."""
    a = np.ones(100, np.float32)
    built = library.triad.build(a, a)
    assert library.triad.build(a.copy(), a.copy()) is built
    assert library.triad.build(*SPECS).code_hash == built.code_hash


def test_equal_text_is_compiled_once():
    """Another kernel that comes to the same text takes the binary that is there."""

    @kernel
    def one(a, b, *, s=3.0):
        return a + s * b

    @kernel
    def other(a, b, *, s=3.0):
        return a + s * b

    first = one.build(*SPECS)
    count = len(compiled())
    second = other.build(*SPECS)
    assert len(compiled()) == count
    assert second.code.image is first.code.image
    assert "codegen" not in dict(second.phases)


def test_the_code_hash_knows_no_names_but_the_schedule():
    """Names of kernel and parameters do not change it, knobs do."""

    @kernel
    def named(first, second, *, factor=3.0):
        return first + factor * second

    hashes = [
        k.build(*SPECS, schedule=vectors(16, unroll)).code_hash
        for k, unroll in ((named, 1), (library.triad, 1), (library.triad, 2))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_built_is_a_record_of_what_was_done():
    """Program, schedule, text and binary are all there."""
    built = library.softmax.build(((4, 100), "float32"))
    assert isinstance(built, Artifact)
    assert built.strategy == "rows"
    assert built.target == "cpu"
    assert built.code.entry in built.text
    assert [slot.kind for slot in built.slots] == ["input", "output", "extent"]
    assert len(built.code_hash) == 32
    assert repr(built) == (
        f"<artifact softmax for cpu: {built.schedule.label}, chosen by heuristic>"
    )


def test_a_failure_is_data():
    """A program that no schedule takes is Failure, with phase and sentence."""

    @kernel
    def bad(a, b):
        return a + b

    failed = bad.build(((3,), "float32"), ((4,), "float32"))
    assert isinstance(failed, Failure)
    assert failed.phase == "trace"
    assert "cannot broadcast shapes (3,) and (4,)" in failed.error
    with pytest.raises(KernelError, match="cannot broadcast"):
        bad(np.ones(3), np.ones(4))


def test_errors_of_the_users_function_keep_their_type():
    """What the function raises while it is traced is the cause."""

    @kernel
    def broken(a):
        return a + undefined_name  # noqa: F821 - the mistake under test

    failed = broken.build(((3,), "float32"))
    assert isinstance(failed.cause, NameError)
    with pytest.raises(NameError):
        broken(np.ones(3))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ValueError('boom')", "ValueError: boom ("),
        ("KeyError('missing')", "KeyError: 'missing' ("),
        ("ValueError", "ValueError ("),
        ("RuntimeError('two\\nlines')", "RuntimeError: two lines ("),
        ("SystemExit(3)", "SystemExit: 3 ("),
    ],
)
def test_errors_of_the_users_function_have_their_type_and_line(tmp_path, error, said):
    """The last line in the user's file, whatever it was called by."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from steelyard_kernels import kernel\n\n\ndef check(a):\n"
        f"    raise {error}\n\n\n@kernel\ndef mine(a):\n    return check(a) + 1\n"
    )
    names = {"__name__": "mine"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    failed = names["mine"].build(((3,), "float32"))
    assert failed.phase == "trace"
    assert failed.error == f"{said}{file}:5)"


def test_unknown_targets_and_caches_are_refused():
    """Both errors name what there is."""
    program = library.copy.program(((3,), "float32"))
    assert "expected one of cpu, cuda:sm_80" in build(program, target="tpu").error
    with pytest.raises(KernelError, match="cold, warm-disk, warm-memory"):
        library.copy.build(((3,), "float32"), cache="disk")
    with pytest.raises(KernelError, match="memory, code, disk"):
        library.copy.build(((3,), "float32"), drop=frozenset({"paper"}))


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keep builds in a folder of this test's own."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    disk.cache_clear()
    yield tmp_path
    disk.cache_clear()


def test_what_a_process_built_before_needs_no_compiler(kept):
    """A warm disk saves everything between tracing and loading, and runs the same."""
    x = np.random.default_rng(3).normal(size=(4, 100)).astype(np.float32)
    first = library.softmax.build(x)
    expected = library.softmax(x)
    again = library.softmax.build(x, cache="warm-disk")
    assert [name for name, _ in again.phases] == ["trace", "look up", "link"]
    assert again.text == first.text
    assert (again.code.image, again.code_hash) == (first.code.image, first.code_hash)
    assert (again.slots, again.threads) == (first.slots, first.threads)
    assert again.schedule == first.schedule
    work = library.softmax.bind(x)
    assert work.built is not first
    work.launch()
    np.testing.assert_array_equal(work.outputs["out"], expected)


SCALE = 2.0


def layers(x, w):
    """Return what two products and rows between them come to."""
    y = xp.tanh(x @ w) * SCALE
    return (y - xp.max(y, axis=-1, keepdims=True)) @ w


def other_layers(x, w):
    """Return the same of another function."""
    y = xp.sin(x @ w) * SCALE
    return (y - xp.max(y, axis=-1, keepdims=True)) @ w


SQUARE = ((48, 48), "float32")


def phases_of(function, **how):
    """Return what a build in a process that has none did, and the build."""
    made = kernel(function)
    built = made.build(SQUARE, SQUARE, cache="warm-disk", **how)
    assert isinstance(built, Artifact), built.error
    assert len(built.parts) > 1
    return [name for name, _ in built.phases], built


def test_a_plan_that_was_kept_is_not_made_again(kept):
    """Nor are its kernels: what it says, its slots and its results are the same."""
    cold, first = phases_of(layers)
    assert "partition" in cold
    warm, again = phases_of(layers)
    assert warm == ["trace", "look up", "link"]
    assert again.plan.text() == first.plan.text()
    assert again.plan.key == first.plan.key
    for name in ("slots", "code_hash", "text", "strategy", "chosen_by"):
        assert getattr(again, name) == getattr(first, name)
    assert [p.chosen_by for p in again.parts] == [p.chosen_by for p in first.parts]
    x, w = (np.random.default_rng(k).normal(size=(48, 48)) for k in range(2))
    arrays = x.astype("float32"), w.astype("float32")
    (want,) = evaluate(again.program, arrays).values()
    np.testing.assert_allclose(kernel(layers)(*arrays), want, 1e-5, 1e-5)


def test_a_second_process_imports_no_compiler_of_ours(kept):
    """It traces, finds the plan and the code, and launches."""
    code = (
        "import sys, numpy as np, test_build as t; x = np.ones((48, 48), 'f4');"
        "t.kernel(t.layers)(x, x); print(*sys.modules)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            cwd=Path(__file__).parent,
            env={**os.environ, "STEELYARD_CACHE": str(kept)},
        )
    found = set(done.stdout.split())
    ours = ("plan.partition", "nest.lower", "schedule.strategies", "ir.verify")
    more = ("group.build", "emit.llvm", "schedule.search")
    assert not found & {f"steelyard_kernels.{name}" for name in (*ours, *more)}


def test_a_kept_plan_is_of_all_that_it_depends_on(kept, monkeypatch):
    """Another body, global, alignment, target, compiler or version makes its own."""
    phases_of(layers)
    assert "partition" in phases_of(other_layers)[0]
    assert "partition" in phases_of(layers, aligned=False)[0]
    with monkeypatch.context() as changed:
        changed.setitem(globals(), "SCALE", 3.0)
        assert "partition" in phases_of(layers)[0]
    with monkeypatch.context() as changed:
        changed.setattr(keys, "sources", lambda: "another version")
        assert "partition" in phases_of(layers)[0]
    with monkeypatch.context() as changed:
        changed.setattr(keys, "compiled_by", lambda target: f"{target} another LLVM")
        assert "partition" in phases_of(layers)[0]
    assert "partition" not in phases_of(layers)[0]


def test_a_plan_whose_kernels_are_gone_is_made_again(kept):
    """A cache that is full forgets single entries."""
    _, first = phases_of(layers)
    part = first.parts[0].program
    name = key(part, None, parse("cpu"), aligned=True)
    (kept / name[:2] / f"{name}.build").unlink()
    assert "emit" in phases_of(layers)[0]
    assert phases_of(layers)[0] == ["trace", "look up", "link"]


def test_tuned_parts_are_looked_for_each_time(kept, monkeypatch):
    """A file of schedules may have one for a kernel of several launches."""
    phases_of(layers)
    path = kept / "tuned.json"
    path.write_text('{"schema": 1, "entries": {}}')
    monkeypatch.setenv("STEELYARD_TUNED", str(path))
    assert "partition" in phases_of(layers)[0]


def test_an_entry_that_is_not_ours_is_a_miss(kept):
    """Whatever lies under a key, the build goes on and replaces it."""
    program = library.copy.program(((64,), "float32"))
    named = key(program, None, parse("cpu"), aligned=True)
    for junk in (b"", b"{}", b"[1]", b'{"schedule": ["Nobody", {}]}', b"\xff\x00"):
        Disk(kept).put(named, junk)
        assert "codegen" in dict(build(program, levels=frozenset({"disk"})).phases)
        assert "codegen" not in dict(build(program, levels=frozenset({"disk"})).phases)


def test_a_build_whose_code_is_gone_is_built_again(kept):
    """Facts and code are two entries; one may be evicted without the other."""
    program = library.copy.program(((64,), "float32"))
    built = build(program, levels=frozenset({"disk"}))
    (kept / (name := digest(built.code.image))[:2] / f"{name}.build").unlink()
    assert "codegen" in dict(build(program, levels=frozenset({"disk"})).phases)


def test_what_the_compiler_refused_is_remembered(kept, monkeypatch):
    """It would refuse again: the second failure needs no compiler."""
    asked = []

    def refuse(*_):
        asked.append(1)
        raise LLVMError("no")

    monkeypatch.setattr("steelyard_kernels.toolchains.cpu.compile_text", refuse)
    program = library.copy.program(((64,), "float32"))
    only = frozenset({"disk"})
    first = build(program, levels=only)
    again = build(program, levels=only)
    assert (first.phase, first.error) == (again.phase, again.error) == ("compile", "no")
    assert len(asked) == 1


def test_what_the_compiler_lacked_is_not_remembered(kept, monkeypatch):
    """Out of memory once; the next build asks the compiler again, and is well."""

    def lack(*_):
        raise DeviceError("NVRTC failed with NVRTC_ERROR_OUT_OF_MEMORY")

    program = library.copy.program(((64,), "float32"))
    only = frozenset({"disk"})
    with monkeypatch.context() as patched:
        patched.setattr("steelyard_kernels.toolchains.cpu.compile_text", lack)
        assert "OUT_OF_MEMORY" in build(program, levels=only).error
        again = library.copy.build(((65,), "float32"), drop=frozenset({"code"}))
        assert "OUT_OF_MEMORY" in again.error
    assert isinstance(build(program, levels=only), Artifact)
    assert isinstance(library.copy.build(((65,), "float32")), Artifact)


def test_the_machine_has_vectors_and_threads():
    """What schedules know of a machine is read once."""
    assert machine() is machine()
    assert machine().lanes(4) * 4 == machine().vector_bytes
    assert machine().threads >= 1


def test_reserved_names_are_no_trouble():
    """Parameters may be named like the emitter's own values."""

    @kernel
    def names(args, ticket, index, *, count=2.0, rows=1.0, extent=0.5):
        return {"entry": args * count + ticket * rows, "kernel": index * extent}

    arrays = [np.full(20, value, np.float32) for value in (1, 2, 3)]
    outputs = names(*arrays)
    assert (outputs["entry"] == 4).all()
    assert (outputs["kernel"] == 1.5).all()


def test_an_empty_kernel_builds_and_runs():
    """No outputs, no arrays: a launch that does nothing."""
    assert library.empty() is None
    work = library.empty.bind()
    work.launch(3)
    assert work.facts()["bytes"] == 0


def test_deep_expressions_do_not_recurse():
    """A chain of 3000 operations traces, prices and lowers without a stack of calls."""

    @kernel
    def deep(a):
        for _ in range(3000):
            a = xp.maximum(a, 0.5) * 1.0
        return a

    built = deep.build(((16,), "float32"), schedule=vectors(16))
    assert isinstance(built, Artifact), built


def test_a_quicker_way_to_a_gpu_makes_the_same_of_a_broadcast():
    """LLVM's PTX and CUDA C++ come to code of the same resources, by other compilers."""
    pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")
    built = [
        library.triad.build(*SPECS, target=target, cache="cold")
        for target in ("cuda:sm_90a", "nvptx:sm_90a")
    ]
    usual, quick = (one.code.resources for one in built)
    assert (quick.registers, quick.stack, quick.shared) == (usual.registers, 0, 0)
    assert quick.loads_128 == usual.loads_128
    assert built[0].code.compiler != built[1].code.compiler
    assert [name for name, _ in built[1].phases][-3:] == ["check", "codegen", "link"]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_a_disk_that_keeps_nothing_is_no_warm_one(kept, monkeypatch, target):
    """A build from disk that is a cold one is an error where it is weighed."""
    if target != "cpu":
        pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    a = np.ones(64, np.float32)
    weighed = (
        library.copy.bind(a, out=np.empty_like(a))
        if target == "cpu"
        else library.copy.for_target(target, ((64,), "float32"))
    )
    weighed.build("warm-disk")
    monkeypatch.setenv("STEELYARD_CACHE", str(kept / "file"))
    (kept / "file").write_text("in the way")
    disk.cache_clear()
    with pytest.raises(KernelError, match=r"copy was built anew .* keeps nothing"):
        weighed.build("warm-disk")

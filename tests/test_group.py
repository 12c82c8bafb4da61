import os
import signal
import sys
import threading
from collections import Counter

import pytest
from msgspec.structs import replace

from steelyard_device.disk import Disk
from steelyard_device.errors import DeviceError
from steelyard_device.timings import timings
from steelyard_kernels import dtypes, kernel
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building import cache
from steelyard_kernels.building.build import prepare
from steelyard_kernels.emit.cuda import joined
from steelyard_kernels.errors import KernelError
from steelyard_kernels.group import Candidate, Group, Stage, build_all, candidates_of
from steelyard_kernels.group import batch as batching
from steelyard_kernels.group import build as building
from steelyard_kernels.group import worker as workers
from steelyard_kernels.library import copy, softmax, triad
from steelyard_kernels.targets import parse

GPU = "cuda:sm_90a"
ARRAY = ((1 << 20,), "float32")
COLD = frozenset()


@pytest.fixture(autouse=True)
def disk(monkeypatch, tmp_path):
    """Keep builds in a folder of the test's, and this process's of no other test."""
    found, code = Disk(tmp_path), {}
    monkeypatch.setattr(cache, "disk", lambda: found)
    monkeypatch.setattr(cache, "compiled", lambda: code)
    monkeypatch.setattr(batching, "compiled", lambda: code)
    return found


def some(count, target=GPU, kernel=copy):
    """Return so many candidates of a kernel, spread over its schedules."""
    specs = [ARRAY] * len(kernel.signature.arrays)
    every = candidates_of(kernel, *specs, target=target)
    return every[:: max(1, len(every) // count)][:count]


def edit(monkeypatch, change):
    """Have the text of each candidate be what `change` makes of its label and text."""

    def prepared(asked):
        source = prepare(asked)
        return replace(source, text=change(asked.schedule.label, source.text))

    monkeypatch.setattr(batching, "prepare", prepared)


def spoil(monkeypatch, texts):
    """Replace the body of the candidates named in `texts`."""

    def change(label, text):
        if label not in texts:
            return text
        first = text.index("{\n", text.index("__global__")) + 2
        return f"{text[:first]}{texts[label]}\n}}\n"

    edit(monkeypatch, change)


def test_a_batch_is_what_single_builds_are(nvrtc):
    """Same text, instructions, resources and slots; one cubin for a group."""
    candidates = some(6) + some(3, kernel=triad)
    batch = build_all(candidates, target=GPU, levels=COLD, threads=1)
    for candidate, built in zip(candidates, batch.results, strict=True):
        kernel = triad if candidate.program.name == "triad" else copy
        specs = [ARRAY] * len(kernel.signature.arrays)
        alone = kernel.build(
            *specs, schedule=candidate.schedule, target=GPU, cache="cold"
        )
        assert built.text == alone.text
        assert built.code_hash == alone.code_hash
        assert built.code.resources == alone.code.resources
        assert built.slots == alone.slots
        assert (built.threads, built.per_block) == (alone.threads, alone.per_block)
        assert built.schedule == alone.schedule
        assert built.code.nanoseconds > 0
    (together,) = batch.groups
    assert sorted(together.members) == [*range(9)]
    assert len({id(built.code.image) for built in batch.results}) == 1
    assert len({built.code.entry for built in batch.results}) == 9
    total = sum(built.code.nanoseconds for built in batch.results)
    assert 0 < total <= together.wall


def test_a_kernel_takes_what_it_takes_alone_beside_one_of_dynamic_memory(nvrtc):
    """The compiler pads shared memory of all in a program that declares some dynamic."""

    @kernel
    def product(x, w):
        return x @ w

    rows = softmax.program(((64, 4096), dtypes.float32))
    tiles = product.program(*[((256, 256), dtypes.float16)] * 2)
    candidates = [Candidate(each.name, each) for each in (rows, tiles)]
    batch = build_all(candidates, target=GPU, levels=COLD, threads=1)
    for candidate, built in zip(candidates, batch.results, strict=True):
        (alone,) = build_all([candidate], target=GPU, levels=COLD).results
        assert built.code.resources == alone.code.resources
        assert built.code_hash == alone.code_hash
    assert batch.results[0].code.resources.shared < 1024


def test_a_bad_candidate_fails_alone_with_its_own_line(nvrtc, monkeypatch):
    """The compiler's message is the one that it would have got alone."""
    candidates = some(7)
    spoil(monkeypatch, {candidates[3].name: "  int fine;\n  nonsense;"})
    batch = build_all(candidates, target=GPU, levels=COLD, threads=1)
    bad = batch.results[3]
    assert [type(result) for result in batch.results].count(Artifact) == 6
    assert isinstance(bad, Failure)
    assert (bad.name, bad.phase) == (candidates[3].name, "compile")
    assert 'kernel(3): identifier "nonsense" is undefined' in bad.error
    assert [len(group.members) for group in batch.groups] == [7, 6]


def test_what_ptxas_refuses_is_attributed_too(nvrtc, monkeypatch):
    """It names the entry, and no line."""
    candidates = some(5)
    hog = (
        "  __shared__ int hog[100000];\n"
        "  hog[threadIdx.x] = extent; __syncthreads();\n"
        '  asm volatile("" :: "r"(hog[extent]));'
    )
    spoil(monkeypatch, {candidates[2].name: hog})
    batch = build_all(candidates, target=GPU, levels=COLD, threads=1)
    assert isinstance(batch.results[2], Failure)
    assert "too much shared data" in batch.results[2].error
    assert "'kernel'" in batch.results[2].error
    assert sum(isinstance(result, Artifact) for result in batch.results) == 4


@pytest.mark.parametrize("bad", [(0, 2, 4), (0, 1, 2, 3, 4)])
def test_each_of_several_bad_ones_has_its_own_message(nvrtc, monkeypatch, bad):
    """Three of five, and all of them."""
    candidates = some(5)
    spoil(monkeypatch, {candidates[each].name: f"  bad{each};" for each in bad})
    batch = build_all(candidates, target=GPU, levels=COLD, threads=1)
    for index, result in enumerate(batch.results):
        assert isinstance(result, Failure if index in bad else Artifact)
        if index in bad:
            assert f'kernel(2): identifier "bad{index}" is undefined' in result.error


def test_equal_texts_are_compiled_once_and_equal_code_is_found(nvrtc):
    """By candidate the first that has its instructions."""
    one, other = some(2)
    renamed = Candidate("again", one.program, one.schedule)
    batch = build_all([one, other, renamed], target=GPU, levels=COLD)
    assert batch.duplicates == {2: 0}
    assert [built.schedule for built in batch.distinct] == [
        one.schedule,
        other.schedule,
    ]
    assert sum(len(group.members) for group in batch.groups) == 2
    assert batch.results[2].code is batch.results[0].code


def test_no_candidates_make_an_empty_batch():
    """And ask no compiler."""
    batch = build_all([], target=GPU)
    assert (batch.results, batch.groups, batch.duplicates) == ((), (), {})


def test_one_candidate_is_a_group_of_its_own(nvrtc):
    """Under the heuristic's schedule if it has none."""
    program = copy.program(ARRAY)
    batch = build_all([Candidate("copy", program)], target=GPU)
    assert isinstance(batch.results[0], Artifact)
    assert len(batch.groups) == 1


def test_a_target_that_nothing_is_made_for_is_the_callers_mistake():
    """Not a failure of each candidate."""
    with pytest.raises(KernelError, match="target 'cuda:sm_1' is not known"):
        build_all([], target="cuda:sm_1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is 0, expected 1 or more"),
        ({"largest": 0}, "largest is 0, expected 1 or more"),
        ({"seconds": -1.0}, "seconds is -1.0, expected 0 or more"),
        ({"seconds": float("nan")}, "seconds is nan, expected 0 or more"),
    ],
)
def test_a_number_that_cannot_be_is_the_callers_mistake(options, message):
    """In one sentence, before anything is compiled."""
    with pytest.raises(KernelError, match=message):
        build_all([], **options)


def test_a_library_for_a_target_that_it_does_not_compile_is_refused():
    """Rather than forgotten."""
    with pytest.raises(KernelError, match="nvptx:sm_90a is none; leave nvrtc out"):
        build_all([], target="nvptx:sm_90a", nvrtc="/libnvrtc.so")


def test_one_candidate_a_program_is_what_groups_are_compared_with(nvrtc):
    """The same code, in as many programs."""
    candidates = some(4)
    apart = build_all(candidates, target=GPU, levels=COLD, largest=1)
    together = build_all(candidates, target=GPU, levels=COLD)
    assert len(apart.groups) == 4
    assert [each.code_hash for each in apart.results] == [
        each.code_hash for each in together.results
    ]


def test_progress_counts_what_is_built_failed_and_the_same(nvrtc, monkeypatch):
    """On the caller's thread, up to all of them."""
    candidates = [*some(4), some(4)[0]]
    spoil(monkeypatch, {candidates[1].name: "  bad;"})
    seen = []
    build_all(candidates, target=GPU, levels=COLD, progress=seen.append)
    assert {each.total for each in seen} == {5}
    last = seen[-1]
    assert (last.built, last.failed, last.duplicates) == (4, 1, 1)
    finished = [each.built + each.failed for each in seen]
    assert finished == sorted(finished)


def test_candidates_on_disk_are_not_compiled(nvrtc, disk, monkeypatch):
    """The group's cubin is there once, failures too, and a second batch only reads."""
    candidates = some(5)
    spoil(monkeypatch, {candidates[0].name: "  bad;"})
    levels = frozenset({"disk"})
    first = build_all(candidates, target=GPU, levels=levels, threads=1)
    assert disk.size()[0] == 5 + 1
    second = build_all(candidates, target=GPU, levels=levels)
    assert second.groups == ()
    assert second.results[0].error == first.results[0].error
    assert [stage.name for stage in second.stages] == ["look up", "compile"]
    for before, after in zip(first.results[1:], second.results[1:], strict=True):
        assert (after.code.image, after.text) == (before.code.image, before.text)
        assert after.slots == before.slots


def test_what_the_compiler_lacked_is_not_remembered(disk, monkeypatch):
    """Each candidate fails alone; the next batch asks again, and is well."""

    def lack(*_):
        raise DeviceError("no memory")

    candidates, levels = some(3, "cpu"), frozenset({"disk"})
    with monkeypatch.context() as patched:
        patched.setattr("steelyard_kernels.toolchains.cpu.compile_text", lack)
        batch = build_all(candidates, levels=levels, processes=False)
        assert {result.error for result in batch.results} == {"no memory"}
    assert disk.size()[0] == 0
    batch = build_all(candidates, levels=levels, processes=False)
    assert all(isinstance(result, Artifact) for result in batch.results)


def test_another_alignment_is_another_build_on_disk():
    """Code for aligned arrays would fail on others."""
    candidates, levels = some(2, "cpu"), frozenset({"disk"})
    for aligned in (True, False):
        batch = build_all(candidates, levels=levels, aligned=aligned)
        assert batch.groups
        batch = build_all(candidates, levels=levels, aligned=aligned)
        assert not batch.groups


def test_equal_code_of_different_texts_is_a_duplicate(monkeypatch):
    """Texts may differ in what no processor sees."""
    (one,) = some(1, "cpu")
    notes = iter(["; first\n", "; second\n"])
    edit(monkeypatch, lambda _, text: text + next(notes))
    batch = build_all([one, one], levels=COLD, processes=False)
    assert batch.results[0].text != batch.results[1].text
    assert batch.duplicates == {1: 0}


def test_what_another_library_builds_is_not_kept(nvrtc, disk):
    """The key has the build of this process's own."""
    from steelyard_device.nvrtc import compiler

    batch = build_all(some(1), target=GPU, nvrtc=compiler().path)
    assert isinstance(batch.results[0], Artifact)
    assert disk.size()[0] == 0
    assert cache.compiled() == {}


def test_the_wall_of_groups_side_by_side_is_not_their_sum():
    """Two workers of 5 and 7 ns were done after 8."""
    collector = batching.Collector([], parse("cpu"), COLD, None, aligned=True)
    groups = [Group((), worker, wall) for worker, wall in enumerate((5, 7))]
    assert collector.batch(groups, 8, 0).stages == (Stage("compile", 12, 8),)


def test_this_processes_code_is_used_again(nvrtc):
    """The level `code` finds it by its text."""
    candidates = some(3)
    levels = frozenset({"code"})
    assert build_all(candidates, target=GPU, levels=levels).groups
    again = build_all(candidates, target=GPU, levels=levels)
    assert again.groups == ()
    assert all(isinstance(result, Artifact) for result in again.results)


@pytest.mark.parametrize("processes", [False, True])
def test_a_limit_stops_the_compiler_and_fails_the_slow_one_alone(
    nvrtc, monkeypatch, processes
):
    """The rest of its group is built; a limit of 0 would stop them all."""
    candidates = some(4)
    slow = "\n".join(
        f"  volatile double x{i} = sin(extent + {i}.);" for i in range(8000)
    )
    spoil(monkeypatch, {candidates[1].name: slow})
    batch = build_all(
        candidates,
        target=GPU,
        levels=frozenset({"disk"}),
        threads=1,
        seconds=0.5,
        processes=processes,
    )
    kinds = [type(result) for result in batch.results]
    assert kinds == [Artifact, Failure, Artifact, Artifact]
    assert "time limit" in batch.results[1].error
    again = build_all(
        candidates[1:2], target=GPU, levels=frozenset({"disk"}), seconds=0
    )
    assert len(again.groups) == 1, "that time was up is not remembered"


def test_kernels_for_this_machine_are_loaded_and_run():
    """Whether this process compiles them or others do."""
    for processes in (False, True):
        candidates = some(5, "cpu", triad)
        batch = build_all(candidates, levels=COLD, processes=processes)
        assert all(result.code.function is not None for result in batch.results)
        single = [
            triad.build(ARRAY, ARRAY, schedule=each.schedule, cache="cold")
            for each in candidates
        ]
        assert [each.code_hash for each in single] == [
            each.code_hash for each in batch.results
        ]
        assert [name for name, _ in batch.results[0].phases][-4:] == [
            "parse",
            "check",
            "codegen",
            "link",
        ]


def test_a_worker_killed_half_way_costs_no_candidate(monkeypatch):
    """Its group is compiled again by the one that replaces it."""
    killed = []

    class Killed(workers.Process):
        def compile(self, job):
            if not killed:
                process, _ = self._start()
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)
            return super().compile(job)

    monkeypatch.setattr(building, "Process", Killed)
    batch = build_all(some(6, "cpu"), levels=COLD, processes=True, threads=1)
    assert killed
    assert all(isinstance(result, Artifact) for result in batch.results)


def test_two_batches_at_once_do_not_mix(nvrtc):
    """They share the compiler and the caches, nothing else."""
    found = {}
    halves = {"a": some(8)[:4], "b": some(8)[4:]}

    def work(name):
        found[name] = build_all(halves[name], target=GPU)

    threads = [threading.Thread(target=work, args=name) for name in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, candidates in halves.items():
        schedules = [result.schedule for result in found[name].results]
        assert schedules == [candidate.schedule for candidate in candidates]


def test_stages_add_up_over_workers_and_on_the_wall(nvrtc):
    """Both sums, by stage; spans tell the same."""
    with timings() as recorded:
        batch = build_all(some(6), target=GPU, levels=COLD, threads=2)
    stages = {stage.name: stage for stage in batch.stages}
    assert list(stages) == ["simplify", "lower", "verify", "emit", "compile"]
    assert stages["compile"].nanoseconds == sum(group.wall for group in batch.groups)
    assert sum(stage.wall for stage in batch.stages) <= batch.wall
    rows = {row.path: row for row in recorded.rows()}
    calls = Counter(path[-1] for path in rows)
    assert calls["groups"] == 1
    assert rows["lower",].calls == 6
    workers = [row for path, row in rows.items() if path[-1] == "compile"]
    assert sum(row.calls for row in workers) == len(batch.groups)
    each = {path[2] for path in rows if path[1:2] == ("compile",) and len(path) == 3}
    assert each == {
        f"group of {len(one.members)} from {min(one.members)}" for one in batch.groups
    }


def test_spans_of_other_processes_are_told_too():
    """Under the span of the worker that waited for them."""
    with timings() as recorded:
        build_all(some(2, "cpu"), levels=COLD, processes=True, threads=1)
    paths = {row.path for row in recorded.rows()}
    group = "group of 2 from 0"
    assert any(path[1:] == ("compile", group, "process") for path in paths)


def test_shared_functions_stand_once_in_a_program():
    """And each kernel under its own name, from its line 1."""
    helper = "static __device__ __forceinline__ int f() {\n  return 1;\n}\n"
    body = 'extern "C" __global__ void __launch_bounds__(8) kernel(int n) {\n}\n'
    text = f'{helper}#line 1 "kernel"\n{body}'
    program = joined([("k_a", text), ("k_b", text.replace(helper, ""))])
    assert program.count(helper) == 1
    assert '#line 1 "k_a"\nextern "C"' in program
    assert "__launch_bounds__(8) k_b(int n)" in program
    assert "kernel(" not in program


def test_a_builder_that_ignores_its_limit_is_replaced(monkeypatch):
    """Who hangs fails by name; those it was compiled with are built by the next."""
    candidates = some(6, "cpu")
    marks = {candidates[2].name: "; hang\n"}
    edit(monkeypatch, lambda label, text: text + marks.get(label, ""))
    script = (
        "import sys, time\n"
        "from steelyard_kernels.group import serve\n"
        "def answer(job, own=serve._answer):\n"
        "    if any('; hang' in text for _, text in job.parts): time.sleep(20)\n"
        "    return own(job)\n"
        "serve._answer = answer\n"
        "serve.main('cpu', '', int(sys.argv[-1]))\n"
    )
    started = [sys.executable, "-c", script]
    monkeypatch.setattr(building, "command", lambda *_: started)
    monkeypatch.setattr(workers, "GRACE", 0.0)
    batch = build_all(candidates, levels=COLD, threads=1, seconds=0.25)
    kinds = [type(result) for result in batch.results]
    assert kinds == [Artifact, Artifact, Failure, Artifact, Artifact, Artifact]
    assert "did not stop at its time limit of 0.25 s" in batch.results[2].error


def test_the_quick_tier_compiles_each_candidate_alone(nvrtc):
    """It has no fixed cost to share: groups of it are only messages."""
    candidates = some(3, "nvptx:sm_90a")
    batch = build_all(candidates, target="nvptx:sm_90a", levels=COLD)
    alone = [
        copy.build(ARRAY, schedule=each.schedule, target="nvptx:sm_90a", cache="cold")
        for each in candidates
    ]
    assert [each.code_hash for each in batch.results] == [
        each.code_hash for each in alone
    ]

"""One table of programs, run on every target, by the heuristic and by candidates.

Each result is held against intervals that are derived, not guessed. `STEELYARD_CORPUS=7`
draws other candidates than the default 0; `STEELYARD_PROGRAMS=FIRST+COUNT` other random
programs, as `402+1` one again that failed or `5000+20000` many.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from ctypes import c_bool, c_double, c_int32, c_int64
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import corpus_lines as lines
import corpus_loops as loops
import corpus_repeats as repeats
import corpus_rows as rows
import corpus_views as views
import gpu
import numpy as np
import plans
import pytest
import simt
import simt_tiles
from corpus import Placed, compare, poisoned
from random_draws import generated

from steelyard_device import cuda
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.group.batch import Candidate
from steelyard_kernels.group.build import build_all
from steelyard_kernels.ir.printing import text
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan import partition
from steelyard_kernels.schedule import carries, legality, strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.targets import device, machine, parse

SEED = int(os.environ.get("STEELYARD_CORPUS", "0"))
FIRST, COUNT = map(int, os.environ.get("STEELYARD_PROGRAMS", "250+500").split("+"))
ARCH = "sm_90a"
GPU = Path("/dev/nvidiactl").exists()
NUMBERS = {"d": c_double, "q": c_int64, "i": c_int32, "?": c_bool}
NO_ROWS = "of a value that lies in no memory"  # a loop over what is computed

TABLE = [
    *(*rows.ELEMENTS, *rows.ROWS),
    *(*loops.SMALL, *loops.LOOPS, *loops.CHAINS, *loops.GRADIENTS),
    *(*loops.UPDATES, *views.VIEWS, *views.AXES, *views.PRODUCTS, *views.TAKEN),
    *lines.LINES,
]


@dataclass(frozen=True)
class Target:
    """Where programs run: by `name`, by the heuristic's schedule and `candidates`.

    One of `every` random programs is run there, of which a share may be `refused`.
    `lacks` are words of what it has not for some schedules of any program.
    """

    name: str
    candidates: bool
    every: int
    refused: float
    lacks: str = ""

    @property
    def runs(self):
        """Say whether its code runs anywhere."""
        return self.name in {"cpu", "simt"}

    def device(self):
        """Return what schedules are made for."""
        if self.name == "cpu":
            return machine()
        return device(parse(f"{'nvptx' if self.name == 'nvptx' else 'cuda'}:{ARCH}"))

    def schedules(self, program, rng, case=None):
        """Return (schedule, aligned): the heuristic's, and one of the others a turn.

        Every second turn is of arrays that are aligned.
        """
        simple, where = simplify(program), self.device()
        turns = case.turns if case else range(2)
        first = strategies.heuristic(simple, where)
        found = [] if case and case.alternates and turns else [(first, True)]
        for turn in turns if self.candidates else ():
            aligned = turn % 2 == 1
            every = strategies.candidates(simple, where, aligned=aligned)
            others = [each for each in every if each != first] or every
            found.append((rng.choice(others), aligned))
        return list(dict.fromkeys(found))

    def first(self, made, arrays, scalars, rng):
        """Run the heuristic's schedule."""
        ((schedule, aligned), *_) = self.schedules(made.program(*arrays), rng)
        return self.run(made, arrays, scalars, schedule, aligned=aligned)

    def run(self, made, arrays, scalars, schedule, *, aligned):
        """Build and launch; return the outputs by name, None where nothing can run."""
        return RUN[self.name](made, arrays, scalars, schedule, aligned=aligned)


def on_cpu(made, arrays, scalars, schedule, *, aligned):
    """Run machine code on arrays between guards, all outputs poisoned."""
    built = made.build(*arrays, schedule=schedule, aligned=aligned)
    program = taken(built).program
    place = Placed(aligned=aligned)
    given = [place.copy(array) for array in arrays]
    fresh = [
        place.copy(poisoned(output))
        for output in program.outputs
        if output.updates is None and not output.hidden
    ]
    work = made.bind(*given, out=fresh or None, schedule=schedule, **scalars)
    work.launch()
    place.check()
    written = {output.updates for output in program.outputs}
    for number, (array, copy) in enumerate(zip(arrays, given, strict=True)):
        if number not in written:
            assert array.tobytes() == copy.tobytes(), f"input {number} was overwritten"
    return work.outputs


def on_threads(made, arrays, scalars, schedule, *, aligned):
    """Run the loop kernel of a GPU in `simt`, which finds races; or all of a plan's."""
    program = simplify(made.program(*arrays))
    if schedule is None:
        plan = partition.partition(program, GPUS[ARCH])
        return plans.launched(program, plan, arrays, scalars, of_plan)
    return by_threads(program, arrays, scalars, schedule, aligned=aligned)


def of_plan(program, aligned, arrays, scalars):
    """Run one launch of a plan."""
    program = simplify(program)
    schedule = strategies.heuristic(program, GPUS[ARCH], aligned=aligned)
    return by_threads(program, arrays, scalars, schedule, aligned=aligned)


def by_threads(program, arrays, scalars, schedule, *, aligned):
    """Run one kernel under a schedule."""
    lowered = strategies.lower(program, schedule, GPUS[ARCH], aligned=aligned)
    verify(lowered.kernel, "cuda")
    if lowered.kernel.shared or lowered.kernel.cluster > 1:
        return simt_tiles.launch(program, lowered, arrays, scalars, aligned=aligned)
    return simt.launch(program, lowered, arrays, scalars, aligned=aligned)


def compiled(target):
    """Return a run that compiles, and launches where there is a GPU."""

    def run(made, arrays, scalars, schedule, *, aligned):
        arch = gpu.context().device.arch if GPU else ARCH
        specs, where = [(a.shape, a.dtype) for a in arrays], f"{target}:{arch}"
        built = taken(
            made.build(*specs, schedule=schedule, target=where, aligned=aligned)
        )
        if not GPU:
            return None
        if built.shared or built.parts:  # bulk copies take tensors, which binding makes
            there = [cuda.copy_of(gpu.context(), array) for array in arrays]
            work = made.bind(*there, schedule=schedule, **scalars)
            work.launch()
            work.wait()
            return {name: array.read() for name, array in work.outputs.items()}
        program = simplify(built.program)
        values, outputs = simt.arguments(program, built.slots, arrays, scalars)
        given = [
            value.reshape(-1)
            if isinstance(value, np.ndarray)
            else NUMBERS[slot.code](value)
            for value, slot in zip(values, built.slots, strict=True)
        ]
        gpu.launch(
            built.code.image, built.code.entry, built.blocks, built.threads, given
        )
        return outputs

    return run


def taken(built):
    """Return a build, or raise what it failed with."""
    if isinstance(built, Artifact):
        return built
    raise built.raised()


RUN = {
    "cpu": on_cpu,
    "simt": on_threads,
    "cuda": compiled("cuda"),
    "nvptx": compiled("nvptx"),
}
TARGETS = {
    target.name: target
    for target in (
        Target("cpu", candidates=True, every=1, refused=0.15),
        Target("simt", candidates=True, every=8, refused=0.3),
        Target(
            "nvptx", True, every=60, refused=0.5, lacks="build this kernel with NVRTC"
        ),
        Target("cuda", candidates=GPU, every=60, refused=0.3),
    )
}
RUNS = [
    pytest.param(case, target, id=f"{target.name}-{case.name}")
    for row in TABLE
    for target in TARGETS.values()
    if GPU or target.runs
    for case in row.cases
]


# Where nothing can run, numbers that a call gives differ in no build.
BUILDS = {(row.function, row.shapes, row.dtypes): row for row in repeats.REPEATS}


@pytest.mark.parametrize(
    ("case", "target"),
    [
        pytest.param(case, target, id=f"{target.name}-{case.name}")
        for target in TARGETS.values()
        if target.runs or target.name == "cuda"
        for row in (repeats.REPEATS if GPU or target.runs else BUILDS.values())
        for case in row.cases[: None if GPU or target.runs else 1]
    ],
)
def test_a_loop_of_launches_is_right(case, target):
    """As the heuristic has it, of any number of turns."""
    made, arrays = case.made, case.arrays()
    built = made.build(*[(a.shape, a.dtype) for a in arrays])
    assert taken(built).plan
    seen = target.run(made, arrays, case.scalars, None, aligned=True)
    compare_all(expected(case), seen)


def compare_all(expected, seen):
    """Hold outputs against what they may be; None: nothing ran."""
    for name, near in expected.items() if seen is not None else ():
        compare(name, near, seen[name])


@cache
def expected(case):
    """Return what a case may give; all targets are held to it."""
    return case.expected()


@pytest.fixture(autouse=True)
def tools(request):
    """Need the compilers of a target's code."""
    target = request.node.callspec.params.get("target")
    if target and not target.runs:
        pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")


def schedules(case, target):
    """Return a case's, as `Target.schedules` does: none of one that is refused as stated."""
    refused = case.row.refused.get(target.name, case.row.refused.get("*"))
    made, arrays = case.made, case.arrays()
    rng = random.Random(f"{SEED} {case.name}")
    if not refused:
        return target.schedules(made.program(*arrays), rng, case)
    with pytest.raises(case.row.error, match=re.escape(refused)):
        target.first(made, arrays, case.scalars, rng)
    return []


@pytest.mark.skipif(GPU, reason="the GPU runs them")
@pytest.mark.parametrize(
    "target", [TARGETS["cuda"], TARGETS["nvptx"]], ids=["cuda", "nvptx"]
)
@pytest.mark.parametrize("part", range(4))
def test_programs_compile_together_or_are_refused_as_stated(part, target):
    """A case of each row by one schedule, the heuristic's or a candidate's.

    Together they take a third of the time.
    """
    found = {True: [], False: []}
    for case in [row.cases[0] for row in TABLE[part::4]]:
        for schedule, aligned in schedules(case, target)[-(part % 2) :][:1]:
            program = simplify(case.program())
            found[aligned].append(Candidate(case.name, program, schedule))
    for aligned, every in found.items():
        built = build_all(every, target=f"{target.name}:{ARCH}", aligned=aligned)
        failed = [each for each in built.results if not isinstance(each, Artifact)]
        missed = [f"{each.name}: {each.error}" for each in failed]
        lacked = [each for each in missed if target.lacks and target.lacks in each]
        assert missed == lacked
        assert len(lacked) <= target.refused * len(every)


@pytest.mark.parametrize(("case", "target"), RUNS)
def test_a_program_is_right_or_refused_as_stated(case, target):
    """By the heuristic and by candidates, aligned and not."""
    made, arrays = case.made, case.arrays()
    for schedule, aligned in schedules(case, target):
        shown = f"{schedule.label}, aligned: {aligned}; STEELYARD_CORPUS={SEED}"
        try:
            seen = target.run(made, arrays, case.scalars, schedule, aligned=aligned)
            compare_all(expected(case), seen)
        except Exception as error:
            if target.lacks and target.lacks in str(error):
                continue
            raise AssertionError(f"{shown}: {type(error).__name__}: {error}") from error


def check_legal(program, schedule, where, *, aligned):
    """Raise KernelError for a schedule that does not fit."""
    kind = "cpu" if where is machine() else "cuda"
    if strategies.strategy(program) == "carries":
        carries.check(program, schedule, kind)
        return
    nest = nest_of(program)
    if schedule.multiplies_tiles:
        legality.tiling_for(nest, schedule, where, aligned=aligned)
    elif schedule.multiplies_blocks:
        legality.blocking_for(nest, schedule, where)
    else:
        legality.check(nest, schedule, kind, aligned=aligned)


@pytest.mark.parametrize("name", ["cpu", "simt"])
def test_every_recipe_offers_legal_schedules_alone_and_at_least_one(name):
    """Of every program of the table, aligned and not."""
    where, checked = TARGETS[name].device(), 0
    cases = [c for row in TABLE for c in row.cases if not {name, "*"} & {*row.refused}]
    alone = {case for case in cases if len(case.row.cases) == 1}
    for case, turn in (
        (c, n) for c in cases for n in ([0, 1] if c in alone else [c.number])
    ):
        program, aligned = simplify(case.program()), turn % 2 == 1
        every = strategies.candidates(program, where, aligned=aligned)
        assert every, case.name
        if strategies.is_nothing(program):
            continue
        for schedule in {*every, strategies.heuristic(program, where, aligned=aligned)}:
            check_legal(program, schedule, where, aligned=aligned)
            checked += 1
    assert checked > 1000


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.together], ids=lambda r: r.name
)
def test_one_code_serves_all_sizes(row, target):
    """A schedule that fits them all gives one text, in which extents are parameters."""
    programs = [simplify(case.program()) for case in row.cases]
    every = [strategies.candidates(each, target.device()) for each in programs]
    common = [each for each in every[0] if all(each in more for more in every)]
    schedule = random.Random(SEED).choice(common)
    texts = set()
    for case, program in zip(row.cases, programs, strict=True):
        lowered = strategies.lower(program, schedule, target.device())
        texts.add(text(lowered.kernel).partition("\n")[2])
        seen = target.run(
            case.made, case.arrays(), case.scalars, schedule, aligned=True
        )
        compare_all(expected(case), seen)
    assert len(texts) == 1


def drawn(seed, target):
    """Run one random program by the heuristic or a candidate; say what came of it."""
    program = generated(seed)
    arrays, rng = program.arrays(), random.Random(seed)
    made = kernel(program.function())
    try:
        schedules = target.schedules(made.program(*arrays), rng)
        schedule, aligned = rng.choice(schedules)
        seen = target.run(made, arrays, {}, schedule, aligned=aligned)
    except KernelError as error:
        if not isinstance(error, Unsupported) and NO_ROWS not in str(error):
            raise
        return "refused"
    compare_all(program.expected(arrays), seen)
    return "right"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_right_or_refused(part, target):
    """Held against intervals that share no code with the compiler; few are refused."""
    seen = Counter()
    step = min(target.every, COUNT)
    for seed in range(FIRST + part * step, FIRST + COUNT, 4 * step):
        try:
            seen[drawn(seed, target)] += 1
        except Exception as error:
            shown = f"STEELYARD_PROGRAMS={seed}+1\n{generated(seed)}\n"
            raise AssertionError(shown + f"{type(error).__name__}: {error}") from error
    assert seen["refused"] <= 2 + target.refused * seen.total()

"""Random programs on random schedules, held against intervals that share no code with us.

STEELYARD_PROGRAMS=FIRST+COUNT runs others, as `402+1` one again that failed or `5000+20000`
many.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import intervals
import numpy as np
import pytest
import simt
from random_draws import generated

from steelyard_device import memory
from steelyard_kernels.binary import Built
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS

FIRST, COUNT = map(int, os.environ.get("STEELYARD_PROGRAMS", "0+2000").split("+"))
H200 = GPUS["sm_90a"]
PARTS = 20
NO_ROWS = "of a value that lies in no memory"  # a loop over what is computed


def refused(error):
    """Return a refusal, which is the only thing that may go wrong."""
    if not isinstance(error, Unsupported) and NO_ROWS not in str(error):
        raise error
    return "refused", str(error)


def check(seed):
    """Build and run one program; say whether it was right, or why it was refused."""
    program = generated(seed)
    arrays = program.arrays()
    expected = program.expected(arrays)
    rng = random.Random(seed)
    made = kernel(program.function())
    schedule = None
    if rng.random() < 0.5:
        try:
            schedule = rng.choice(made.candidates(*arrays))
        except KernelError as error:
            return refused(error)
    built = made.build(*arrays, schedule=schedule)
    if not isinstance(built, Built):
        assert isinstance(built.cause, Unsupported) or NO_ROWS in built.error, (
            built.error
        )
        return "refused", built.error
    given = []
    for array in arrays:
        given.append(memory.empty(array.shape, array.dtype))
        given[-1][...] = array
    work = made.bind(*given, schedule=schedule)
    work.launch()
    for name, array in zip(program.names, given, strict=True):
        if name not in program.outputs:
            place = program.names.index(name)
            assert array.tobytes() == arrays[place].tobytes(), f"{name} was overwritten"
    for name, near in expected.items():
        compare(name, near, work.outputs[name])
    return "right", ""


def compare(name, near, seen):
    """Assert that an output lies within what it may be."""
    if near.dtype == "bfloat16":
        seen = intervals.floats(seen)
    assert seen.shape == near.shape, (name, seen.shape, near.shape)
    off = ~near.holds(seen)
    if off.any():
        first = np.argwhere(off)[0]
        at = tuple(map(int, first))
        raise AssertionError(
            f"{name}{list(at)} is {seen[at]!r}, expected {near.lo[at]!r} to "
            f"{near.hi[at]!r}; {off.sum()} of {off.size} are off"
        )


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_are_right_or_refused(part):
    """On a schedule by the heuristic or by chance; few are refused."""
    seen = Counter()
    for seed in range(FIRST + part, FIRST + COUNT, PARTS):
        try:
            seen[check(seed)[0]] += 1
        except Exception as error:
            shown = f"STEELYARD_PROGRAMS={seed}+1\n{generated(seed)}\n"
            raise AssertionError(shown + f"{type(error).__name__}: {error}") from error
    assert seen["refused"] <= 2 + 0.15 * seen.total()


def on_a_gpu(seed):
    """Lower one program for a GPU and run it in `simt`; say what `check` says."""
    program = generated(seed)
    arrays = program.arrays()
    made = kernel(program.function())
    rng = random.Random(seed)
    try:
        traced = simplify(made.program(*arrays))
        schedule = rng.choice(strategies.candidates(traced, H200))
        lowered = strategies.lower(traced, schedule, H200)
    except KernelError as error:
        return refused(error)
    verify(lowered.kernel, "cuda")
    seen = simt.launch(traced, lowered, arrays)
    for name, near in program.expected(arrays).items():
        compare(name, near, seen[name])
    return "right", ""


@pytest.mark.parametrize("part", range(4))
def test_random_programs_are_right_on_the_threads_of_a_gpu(part):
    """A tenth of them, simulated: their threads race for nothing."""
    seen = Counter()
    for seed in range(FIRST + part, FIRST + COUNT // 10, 4):
        try:
            seen[on_a_gpu(seed)[0]] += 1
        except Exception as error:
            shown = f"STEELYARD_PROGRAMS={seed}+10\n{generated(seed)}\n"
            raise AssertionError(shown + f"{type(error).__name__}: {error}") from error
    assert seen["refused"] <= 2 + 0.3 * seen.total()


def test_random_programs_are_compiled_for_gpus():
    """NVRTC takes what is emitted: a hundredth of them."""
    for seed in range(FIRST, FIRST + COUNT, 100):
        program = generated(seed)
        specs = list(zip(program.shapes, program.dtypes, strict=True))
        built = kernel(program.function()).build(*specs, target="cuda:sm_90a")
        refused = not isinstance(built, Built)
        if refused:
            assert isinstance(built.cause, KernelError), (str(program), built.error)

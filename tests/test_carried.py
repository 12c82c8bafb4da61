"""Schedules of loops: which are chosen, refused, and what they leave the compiler.

That what they compute is right is `test_corpus`'s to say.
"""

import corpus
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import decode, encode
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.dtypes import float64
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.builder import Builder
from steelyard_kernels.ir.loops import INDEX, Var
from steelyard_kernels.nest.carried.gpu_lanes import GpuLanes
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.carries import (
    Knobs,
    check,
    knobs_of,
    on_cpu,
    on_gpu,
    problem,
)
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import machine
from steelyard_kernels.vmap import vmap


def normal(*shape, dtype=dtypes.float32, seed=0):
    """Return random numbers of a shape."""
    return corpus.normal(np.random.default_rng(seed), shape, dtype)


def mlp(x, w1, w2, noise):
    """Return the last state of two layers with noise, and all states."""

    def step(x, n):
        x = xp.tanh(xp.tanh(x @ w1) @ w2) + n
        return x, x

    return xp.scan(step, x, noise)


def test_rows_in_registers_vary_as_accurately_as_numpys():
    """Far from zero as well, and constant rows not at all."""
    far = normal(37, 4) + np.array([0, 4, 1e3, 1e5])
    x = np.concatenate([far, np.full((37, 2), [0.1, -1e5 / 3])], axis=1)

    @kernel
    def columns(x):
        var = xp.var(x.T, axis=-1, keepdims=True)
        return {"var": var, "out": (x.T - xp.mean(x.T, axis=-1, keepdims=True)) * var}

    x = x.astype(np.float32)
    seen = columns(x)
    exact = x.astype(np.longdouble).var(0)
    numpys = np.maximum(abs(x.var(0) - exact), 2.0**-23 * exact)
    assert (abs(seen["var"][:, 0] - exact) <= 4 * numpys).all()
    assert not seen["var"][4:].any()
    assert not seen["out"][4:].any()


def test_many_chains_fill_vectors_with_chains():
    """What is left over of vectors by small shapes is not, by many chains."""
    shapes = [((4096, 1), "float32"), ((1, 12), "float32"), ((12, 1), "float32")]

    def one(x, w1, w2):
        return xp.scan(lambda x, _: (xp.tanh(x @ w1) @ w2, None), x, length=500)[0]

    made = kernel(vmap(one, (0, None, None)))
    chosen = strategies.heuristic(made.program(*shapes), machine())
    assert knobs_of(chosen).across > 1


@pytest.mark.parametrize(
    ("knobs", "what"),
    [
        (Knobs(3), "lanes 3"),
        (Knobs(4, unroll=0), "0 iterations"),
        (Knobs(4, ahead=5), "ahead 5"),
        (Knobs(4, across=4), "vectors of chains and of others"),
        (Knobs(1, across=4), "gives each lane a chain, but there are none"),
    ],
)
def test_knobs_without_a_meaning_are_refused(knobs, what):
    """A vector has a power of two of lanes, a turn at least one iteration."""
    schedule = on_cpu(knobs, Place.SERIAL)
    with pytest.raises(KernelError, match=what):
        kernel(mlp).bind(
            normal(1), normal(1, 2), normal(2, 1), normal(3, 1), schedule=schedule
        )


def test_schedules_of_loops_are_cut_by_chains_iterations_and_elements():
    """Nothing else is, and nowhere else; what is written down is read again."""
    schedule = on_gpu(Knobs(16, chains=2, ahead=16, unroll=4))
    assert schedule.label == "i:thread2.grid j:v16.r4.serial k:thread16.r1"
    assert decode(encode(schedule), type=Schedule) == schedule
    assert not problem(NOTHING, schedule, "cuda")
    assert "puts i:thread2.grid elsewhere" in problem(NOTHING, schedule, "cpu")
    for cuts in ((), schedule.cuts[:2], (*schedule.cuts, Cut("l", ()))):
        assert "in this order" in problem(NOTHING, Schedule(cuts), "cuda")
    emptied = (Cut("i", ()), *schedule.cuts[1:])
    assert "puts i: elsewhere" in problem(NOTHING, Schedule(emptied), "cuda")


@pytest.mark.parametrize(
    ("chains", "each", "told"),
    [
        *((0, 1, 1), (1, 1, 1), (132, 1, 1), (133, 1, 2), (1056, 1, 8), (1057, 1, 0)),
        *((264, 2, 1), (265, 2, 2), (1056, 8, 1), (8448, 8, 8), (8449, 8, 0)),
    ],
)
def test_blocks_that_fit_with_all_registers_need_no_room_for_more(chains, each, told):
    """A multiprocessor of 132 holds 8 warps of 256 registers a thread; 0: not said."""

    def run(x):
        return xp.fori_loop(0, 8, lambda i, x: x * x, x)

    row = np.zeros((chains, 3) if chains else 3, "float32")
    program = kernel(vmap(run) if chains else run).program(row)
    schedule = on_gpu(Knobs(16 if each < 8 else 4, chains=each))
    lowered = strategies.lower(program, schedule, GPUS["sm_90a"])
    assert lowered.threads == 32
    assert lowered.kernel.resident == told


NOTHING = Program("nothing", (), (), (), (), chains=9)


def test_a_block_has_so_much_memory_of_its_own():
    """48 KiB of a block: what is asked for beyond is one sentence."""
    lanes = GpuLanes(Builder(), Knobs(8, chains=4), Var("extent", INDEX))
    lanes.scratch(float64, (1000,))
    with pytest.raises(Unsupported, match="rows take 32000 bytes of a block's 17152"):
        lanes.scratch(float64, (10, 100))


@given(
    st.builds(
        Knobs,
        st.integers(-1, 300) | st.sampled_from([1, 4, 32, 256]),
        chains=st.integers(-1, 300),
        ahead=st.sampled_from([0, 1, 4, 16, 32, 64]),
        unroll=st.integers(-1, 20),
    ),
    st.integers(0, 300),
)
@settings(max_examples=300)
def test_a_schedule_fits_or_says_why_not(knobs, registers):
    """Legal knobs make blocks of whole warps up to 256 threads; others one sentence."""
    cuts = on_gpu(replace(knobs, ahead=2)).cuts
    turns = replace(
        cuts[1], factors=((knobs.ahead, Place.VECTOR), *cuts[1].factors[1:])
    )
    schedule = Schedule((cuts[0], turns, cuts[2]), registers=registers)
    assert knobs_of(schedule) == knobs
    why = problem(NOTHING, schedule, "cuda")
    if why:
        assert "; choose" in why
        with pytest.raises(KernelError, match="nothing: schedule i:thread"):
            check(NOTHING, schedule, "cuda")
        return
    check(NOTHING, schedule, "cuda")
    assert knobs.threads % 32 == 0
    assert 32 <= knobs.threads <= 256
    assert knobs.threads - knobs.width * knobs.chains < 32
    assert knobs.width <= 32 or knobs.chains == 1
    assert knobs.ahead in {1, knobs.span}


def test_a_program_of_one_chain_has_no_second_in_a_block():
    """It is said in a sentence."""
    with pytest.raises(KernelError, match="3 chains a block of a program of one"):
        check(replace(NOTHING, chains=0), on_gpu(Knobs(4, chains=3)), "cuda")

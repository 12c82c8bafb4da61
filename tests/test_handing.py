"""Running totals that a GPU's blocks hand over, from the first to the last."""

import numpy as np
import pytest
import simt

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Handed
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad
from steelyard_kernels.plan import chunks, partition
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Cut, Place, Schedule
from steelyard_kernels.targets import device, parse

GPU = device(parse("cuda:sm_90a"))


def total(x):
    """Return a running total."""
    return xp.cumulative_sum(x, axis=-1)


def product(x):
    """Return a running product near one."""
    return xp.cumulative_prod(1.0 + 0.001 * x, axis=-1)


def backwards(x):
    """Return one that runs from the end on."""
    return grad(lambda y: xp.sum(xp.cumulative_sum(y) * x))(x)


def both(x):
    """Return two, which hand over in memory of their own, and zeros like that."""
    words = (16 + 8,)
    return total(x), total(x * x), xp.zeros(words, dtype="int64")


def updated(x):
    """Return one in place."""
    return {"x": total(x)}


def launches(function, x):
    """Return a program and its launches on a GPU."""
    program = simplify(kernel(function).program(x))
    plan = partition.partition(program, GPU)
    return program, plan.launches if plan else ()


def handed(launch):
    """Say whether a launch's blocks hand totals over."""
    return any(isinstance(node, Handed) for node in launch.program.nodes)


def ran(program, steps, x, schedule=None):
    """Run launches on a simulated GPU; return the outputs by name."""
    values = {program.inputs[0].name: x}
    for launch in steps:
        part = launch.program
        found = schedule if schedule and handed(launch) else None
        found = found or strategies.heuristic(part, GPU)
        made = strategies.lower(part, found, GPU)
        given = zip(part.inputs, launch.reads, strict=True)
        arrays = [values[home].reshape(each.shape) for each, home in given]
        outputs = simt.launch(part, made, arrays)
        values |= zip(launch.writes, outputs.values(), strict=True)
    return values


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "least"),
    [
        (total, (8 * 1500,), "float32", 64),
        (total, (8 * 1500,), "float32", 3000),
        (total, (3, 12 * 1100), "float16", 1000),
        (total, (2, 7 * 1024), "int8", 3000),
        (product, (6 * 2048,), "float64", 64),
        (product, (6 * 2048,), "float64", 1000),
        (backwards, (9 * 1024,), "float32", 1000),
        (backwards, (9 * 1024,), "float32", 3000),
        (both, (8 * 1500,), "float32", 64),
        (updated, (8 * 1500,), "float32", 1000),
    ],
)
def test_blocks_hand_totals_over(function, shape, dtype, least, monkeypatch):
    """In one launch behind that which clears their memory, which nothing else reads."""
    monkeypatch.setattr(chunks, "LEAST", least)
    monkeypatch.setattr(chunks, "HANDED", least)
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, shape).astype(dtype)
    program, steps = launches(function, x)
    assert sum(map(handed, steps)) == (2 if function is both else 1)
    assert not any(node.number for step in steps for node in step.program.scalars)
    found = ran(program, steps, x)
    within = 2.0**-9 if dtype == "float16" else 1e-6
    for name, want in evaluate(program, [x]).items():
        seen = np.asarray(found[name], np.float64).reshape(want.shape)
        np.testing.assert_allclose(seen, want, within, 1e-6)


def test_every_order_of_blocks_gives_the_same_bits(monkeypatch):
    """Sums of floats, whose order says how they are rounded."""
    monkeypatch.setattr(chunks, "LEAST", 256)
    monkeypatch.setattr(chunks, "HANDED", 256)
    x = np.random.default_rng(1).standard_normal(16 * 256).astype("float32")
    program, steps = launches(total, x)
    first = ran(program, steps, x)["out"]
    run = simt.run
    for seed in range(1, 4):
        monkeypatch.setattr(simt, "run", lambda *args, seed=seed: run(*args, seed=seed))
        assert (ran(program, steps, x)["out"] == first).all()


def test_too_many_chunks_and_other_axes_are_three_launches(monkeypatch):
    """Where each block would take in too much, or elements lie apart."""
    x = np.zeros((1 << 16, 2), np.float32)
    _, steps = launches(lambda x: xp.cumulative_sum(x, axis=0), x)
    assert len(steps) == 3
    monkeypatch.setattr(chunks, "MOST_HANDED", 1)
    _, steps = launches(total, np.zeros(1 << 16, np.float32))
    assert len(steps) == 3
    assert not any(map(handed, steps))


def test_llvm_hands_nothing_over():
    """Its emitter has no words for that."""
    program = simplify(kernel(total).program(np.zeros(1 << 16, np.float32)))
    plan = partition.partition(program, device(parse("nvptx:sm_90a")))
    assert not any(map(handed, plan.launches))


def test_a_block_of_two_rows_hands_nothing_over():
    """The schedule says what to choose."""
    _, steps = launches(total, np.zeros(1 << 16, np.float32))
    threads = (1, Place.REGISTER), (256, Place.THREAD), (1, Place.SERIAL)
    rows = (2, Place.REGISTER), (1, Place.THREAD), (1, Place.GRID)
    schedule = Schedule((Cut("i", rows), Cut("j", threads)))
    with pytest.raises(KernelError, match="takes 2 of i a block, which hands over"):
        strategies.lower(steps[1].program, schedule, GPU)

"""Equal launches side by side: which ones may be, and what they compute."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels import kernel
from steelyard_kernels.building.programs import build
from steelyard_kernels.dtypes import float32
from steelyard_kernels.expression.expr import Output, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.plan.homes import MOST, abreast
from steelyard_kernels.plan.launches import Launch

HOMES = ["a", "b", "c", 0, 1, 2, 3]
ALIAS = {"new a": "a"}


def program(op):
    """Return a program of two arrays."""
    graph = Graph("piece")
    x, y = (graph.input(f"x{k}", k, (4,), float32) for k in range(2))
    value = graph.apply(op, x, y)
    return Program("piece", (x, y), (), (Output("y0", value, None),), (x, y, value))


PROGRAMS = {op: program(op) for op in ("add", "multiply")}


@st.composite
def sequences(draw):
    """Draw launches that read and write a few arrays, in place too."""
    home = st.sampled_from(HOMES)
    written = st.sampled_from([*HOMES[3:], "new a", "out"])
    ops = st.sampled_from(sorted(PROGRAMS))
    drawn = draw(st.lists(st.tuples(ops, home, home, written), max_size=24))
    return [Launch(PROGRAMS[op], (x, y), (z,), op) for op, x, y, z in drawn]


def run(launches):
    """Return what arrays hold at the end: which launch made them of what."""
    held = {home: str(home) for home in HOMES}
    for launch in launches:
        count, made, writers = launch.program.copies, {}, {}
        for copy, into in enumerate(launch.writes):
            of = [held[ALIAS.get(h, h)] for h in launch.reads[2 * copy :][:2]]
            made[ALIAS.get(into, into)] = (
                f"{launch.reason.split()[-1]}({', '.join(of)})"
            )
            writers[ALIAS.get(into, into)] = copy
        assert len(made) == count, "two copies write one array"
        for number, read in enumerate(launch.reads):
            writer = writers.get(ALIAS.get(read, read), number // 2)
            assert writer == number // 2, "a copy reads what another writes"
        held |= made
    return held


@given(sequences())
def test_arrays_end_as_they_do_in_order(launches):
    """Whatever is read, written and updated in place."""
    together = abreast(launches, ALIAS)
    assert run(together) == run(launches)
    assert sum(each.program.copies for each in together) == len(launches)


@pytest.mark.parametrize("count", [1, 2, MOST, MOST + 1, 2 * MOST + 1])
def test_as_many_as_arguments_allow_are_together(count):
    """The others are launches of their own."""
    launches = [Launch(PROGRAMS["add"], ("a", "b"), (k,), "add") for k in range(count)]
    found = [each.program.copies for each in abreast(launches, {})]
    assert sum(found) == count
    assert len(found) == -(-count // MOST)


@kernel
def heads(x, a, b, c):
    """Multiply by three weights, and add up columns."""
    found = [xp.matmul(x, w) for w in (a, b, c)]
    return {
        **{f"y{k}": y for k, y in enumerate(found)},
        **{f"s{k}": xp.sum(y, axis=0) for k, y in enumerate(found)},
    }


SPECS = [((256, 128), "float16"), *[((128, 192), "float16")] * 3]


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_three_products_and_their_sums_are_two_launches(target):
    """Each is compiled with a row of blocks for each set of arrays."""
    built = heads.build(*SPECS, target=target)
    assert [part.grid[1] for part in built.parts] == [3, 3]
    names = [slot.name for slot in built.slots if slot.kind == "output"]
    assert names == [f"{kind}{k}" for kind in "ys" for k in range(3)]


@kernel
def scaled(x, y, *, a=2.0, flag=True):
    """Return a * x + y, or x."""
    return xp.where(flag, a * x + y, x)


@pytest.mark.parametrize("target", ["cuda:sm_90a", "nvptx:sm_90a"])
@pytest.mark.parametrize("copies", [2, 3, MOST])
def test_every_copy_has_arrays_and_all_have_the_numbers(target, copies):
    """Scalars and extents are passed once."""
    program = scaled.program(((1000,), "float32"), ((1000,), "float16"))
    built = build(replace(program, copies=copies), target=target)
    kinds = [slot.kind for slot in built.slots]
    arrays = ["input", "input", "output"] * copies
    assert kinds[: len(arrays)] == arrays
    assert sorted(kinds[len(arrays) :]) == ["extent", "scalar", "scalar"]
    assert built.grid == (built.blocks, copies)


@kernel
def scaled_heads(x, a, b, c, *, scale=2.0):
    """Multiply by three weights and a number, and add up columns."""
    found = [scale * xp.matmul(x, w) for w in (a, b, c)]
    return {
        **{f"y{k}": y for k, y in enumerate(found)},
        **{f"s{k}": xp.sum(y, axis=0) for k, y in enumerate(found)},
    }


@pytest.mark.parametrize("rows", [3, 300])
def test_a_cpus_threads_go_from_one_copy_to_the_next(rows):
    """Each copy has chunks to claim, arrays of its own, and the numbers of all."""
    draw = np.random.default_rng(rows).standard_normal
    x, *weights = (draw(s, "float32") for s in ((rows, 128), *[(128, 192)] * 3))
    built = scaled_heads.build(x, *weights)
    assert [part.program.copies for part in built.parts] == [3, 3]
    for scale in (0.5, 3.0):
        found = scaled_heads(x, *weights, scale=scale)
        for k, w in enumerate(weights):
            exact = scale * (x.astype("float64") @ w)
            assert np.allclose(found[f"y{k}"], exact, atol=1e-3)
            assert np.allclose(found[f"s{k}"], exact.sum(0), atol=1e-2)

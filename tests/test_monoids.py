"""The table of reductions: a row is all that a reduction of one number needs."""

import numpy as np
import pytest
import simt
from gradients import check

from steelyard_kernels import array as xp
from steelyard_kernels import cost, kernel, reference
from steelyard_kernels.emit import cuda, nvptx
from steelyard_kernels.expression import printing
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.monoids import MONOIDS, Monoid
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import device, parse

PARITY = Monoid(
    "parity",
    "Return the bits that an odd number of integers has.",
    np.bitwise_xor.reduce,
    "bitwise_xor",
    0,
    lambda xp, g, y, x, axes, count: g,
    frozenset({"int"}),
    nothing=0,
)
SHAPES = [(3, 7), (5, 300), (40, 1024)]


@pytest.fixture
def parity(monkeypatch):
    """Give a kernel of a reduction that only this file knows."""
    monkeypatch.setitem(MONOIDS, PARITY.name, PARITY)

    @kernel
    def of_rows(x):
        return xp.parity(x, axis=-1, keepdims=True)

    return of_rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_row_is_all_that_a_reduction_needs(parity, shape, dtype):
    """It is called, computed on a CPU and by a GPU's threads, printed and counted."""
    x = np.random.default_rng(2).integers(-9, 99, shape, dtype)
    program = parity.program(x)
    want = np.bitwise_xor.reduce(x, axis=-1, keepdims=True)
    (said,) = reference.evaluate(program, [x]).values()
    assert parity(x).tolist() == want.tolist() == said.tolist()
    assert "= parity[keepdims](" in printing.text(program)
    assert cost.operations(program) == x.size
    gpu = device(parse("cuda:sm_90a"))
    lowered = strategies.lower(program, strategies.heuristic(program, gpu), gpu)
    verify(lowered.kernel, "cuda")
    (seen,) = simt.launch(program, lowered, [x]).values()
    assert seen.tolist() == want.tolist()
    assert "^" in cuda.emit(lowered.kernel)
    assert "xor" in nvptx.emit(lowered.kernel)


def _over(name, axis):
    return lambda x: getattr(xp, name)(x, axis=axis)


@pytest.mark.parametrize("name", ["any", "all", "count_nonzero"])
def test_of_no_elements_all_hold_and_none_does(name):
    """As NumPy says, of lines without elements and where there are no lines."""
    x = np.ones((2, 0))
    for axis in (None, 0, 1):
        seen = kernel(_over(name, axis))(x)
        np.testing.assert_array_equal(seen, getattr(np, name)(x, axis=axis))


def test_a_product_passes_back_the_product_of_the_others():
    """Also where one of them is zero, and nothing where two are."""
    x = np.array([[1.5, -2.0, 3.0], [0.0, 2.0, 5.0], [0.0, 1.0, 0.0]])
    check(lambda x: xp.sum(xp.prod(x, axis=-1)), x)


def test_products_of_integers_are_wide():
    """As NumPy's: int64, and of none 1."""

    @kernel
    def of_rows(x):
        return xp.prod(x, axis=-1)

    x = np.full((2, 20), 7, np.int32)
    assert of_rows(x).tolist() == np.prod(x, axis=-1).tolist()
    assert of_rows(x[:, :0].copy()).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "oracle"),
    [("max", np.maximum), ("min", np.minimum), ("logsumexp", np.logaddexp)],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_all_that_a_running_total_needs(name, oracle, shape):
    """Of any reduction whose state is one number; none of whose parts overflow."""
    x = np.random.default_rng(3).normal(0, 1000, shape)
    x[0, 0] = -np.inf

    @kernel
    def so_far(x):
        total = getattr(xp, f"cumulative_{name}")(x, axis=1, include_initial=True)
        return total, getattr(xp, name)(x, axis=1), getattr(xp, name)(x, axis=0)

    program = so_far.program(x)
    want = oracle.accumulate(x, axis=1), oracle.reduce(x, axis=1), oracle.reduce(x)
    for found in (so_far(x), tuple(reference.evaluate(program, [x]).values())):
        for seen, wanted in zip((found[0][:, 1:], *found[1:]), want, strict=True):
            np.testing.assert_allclose(seen, wanted, rtol=1e-14)
    assert f"= cumulative_{name} along 1(" in printing.text(program)
    check(
        lambda x: xp.sum(so_far(x)[0][:, 1:] * x[:, :1]) + xp.sum(so_far(x)[1]),
        x[:, 1:] / 1000,
    )


@pytest.mark.parametrize("name", ["max", "min", "logsumexp"])
def test_running_totals_of_other_reductions_run_on_gpus(name):
    """By threads side by side, and in the lanes of each."""
    x = np.random.default_rng(3).normal(0, 9, (5, 1024)).astype(np.float32)

    @kernel
    def so_far(x):
        return getattr(xp, f"cumulative_{name}")(x, axis=1), getattr(xp, name)(
            x, axis=1
        )

    program, gpu = so_far.program(x), device(parse("cuda:sm_90a"))
    lowered = strategies.lower(program, strategies.heuristic(program, gpu), gpu)
    verify(lowered.kernel, "cuda")
    seen = simt.launch(program, lowered, [x])
    for place, wanted in reference.evaluate(program, [x]).items():
        np.testing.assert_allclose(seen[place], wanted, rtol=2e-6)

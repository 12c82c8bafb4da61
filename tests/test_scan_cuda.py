"""Chains on a GPU, run by the interpreter: every place of a chain, every kind of loop."""

import numpy as np
import pytest
import simt
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, reference
from steelyard_kernels.errors import KernelError
from steelyard_kernels.grad import value_and_grad
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.scan import cuda_lowering, cuda_model
from steelyard_kernels.schedule.scan.cuda import CudaScan
from steelyard_kernels.trace import signature, trace
from steelyard_kernels.vmap import vmap

H200 = GPUS["sm_90a"]
PLACES = [(1, 1), (2, 3), (4, 1), (8, 4), (16, 2), (32, 1), (32, 4), (64, 1)]


def program_of(function, arrays):
    """Trace a function over arrays like these."""
    specs = [(array.shape, dtypes.of(array.dtype.name)) for array in arrays]
    return trace(function, signature(function), specs)


def agree(function, arrays, schedule, scalars=None, rtol=1e-5):
    """Lower, verify, run and compare every output that is not hidden with the oracle."""
    program = program_of(function, arrays)
    lowered = cuda_lowering.lower(program, schedule)
    verify(lowered.kernel, "cuda")
    seen = simt.launch(program, lowered, arrays, scalars)
    wanted = reference.evaluate(program, arrays, scalars or {})
    for output in program.outputs:
        if not output.hidden:
            name = output.name
            np.testing.assert_allclose(
                seen[name].astype(np.float64), wanted[name], rtol, rtol
            )


def layer(x, w):
    """Return a layer as the seed has it."""
    return xp.tanh(x @ w)


def network(x, noise, w1, w2):
    """Iterate a small network with noise that is read, and keep every state."""

    def step(x, noise):
        x = layer(layer(x, w1), w2) + noise
        return x, x

    return xp.scan(step, x, noise)


def network_arrays(rng, width, length, *, chains=0, inner=1):
    """Return a network's state, noise and weights."""
    first = (chains,) if chains else ()
    shapes = [
        (*first, inner),
        (*first, length, inner),
        (inner, width),
        (width, inner),
    ]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("group", [1, 2, 8, 32, 128])
@pytest.mark.parametrize("width", [1, 12, 40, 67])
@pytest.mark.parametrize("inner", [1, 3])
def test_a_network_of_one_chain_agrees(group, width, inner):
    """The state and all of its past; a prime of iterations that no turn divides."""
    arrays = network_arrays(np.random.default_rng(width), width, 7, inner=inner)
    agree(network, arrays, CudaScan(group, 1, 2, ahead=False))


@pytest.mark.parametrize(("group", "chains"), PLACES)
@pytest.mark.parametrize("count", [1, 5])
def test_chains_agree_one_by_one(group, chains, count):
    """Each has its own state and noise, all have the same weights."""
    arrays = network_arrays(np.random.default_rng(count), 12, 5, chains=count)
    mapped = vmap(network, (0, 0, None, None))
    agree(mapped, arrays, CudaScan(group, chains, 1, ahead=False))


def drawn(x, key):
    """Iterate with something that only the index decides: it can go ahead."""

    def step(x, i):
        noise = xp.cospi(i.astype("float64") * key)
        far = noise * noise - noise * key + xp.sinpi(noise * 0.25) + xp.exp(noise)
        return x * 0.5 + far.astype(x.dtype), x

    return xp.scan(step, x, xp.arange(70))


@pytest.mark.parametrize(("group", "chains"), PLACES)
@pytest.mark.parametrize("unroll", [1, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_what_goes_ahead_changes_nothing(group, chains, unroll, ahead):
    """70 iterations: two blocks of 32 and six, or turns of four and two."""
    arrays = [np.array([0.5, 2.0, -1.0]), np.array([0.3, 0.7, 1.1])]
    schedule = CudaScan(group, chains, unroll, ahead)
    agree(vmap(drawn, (0, 0)), arrays, schedule)


def halving(x, y, *, most=1000):
    """Halve until all is small, at most so often: every chain its own number."""

    def go_on(carry):
        return xp.max(xp.abs(carry[0])) > 1.0

    def step(carry):
        x, count = carry
        return x * 0.5 + y * 0.25, count + 1

    x, count = xp.while_loop(
        go_on, step, (x, xp.zeros_like(xp.sum(x)).astype("int64")), most
    )
    return x, count


@pytest.mark.parametrize(("group", "chains"), PLACES)
@pytest.mark.parametrize("unroll", [1, 3])
@pytest.mark.parametrize("most", [0, 1, 6, 1000])
def test_a_loop_with_a_condition_ends_when_each_chain_is_done(
    group, chains, unroll, most
):
    """Never begun, in the middle of a turn, at the most; NaN is no reason to go on."""
    x = np.array([[0.5, 0.1, 0], [7, -900, 3], [np.nan, 1, 1], [33, 0, 0], [2, 2, -3]])
    arrays = [x, np.full_like(x, 0.125)]
    schedule = CudaScan(group, chains, unroll, ahead=False)
    agree(vmap(halving, (0, 0)), arrays, schedule, {"most": most})


def counting_each(x, most, w):
    """Turn each chain its own number of times, given in memory."""
    return xp.fori_loop(0, most, lambda i, x: xp.tanh(x @ w) + 1.0, x)


def test_chains_of_different_lengths_have_warps_of_their_own():
    """One that has ended earlier would be missed where lanes exchange values."""
    rng = np.random.default_rng(2)
    counts = np.array([0, 3, 1, 7, 2] * 20)
    arrays = [rng.normal(size=(100, 3)), counts, rng.normal(size=(3, 3))]
    function = vmap(counting_each, (0, 0, None))
    program = program_of(function, arrays)
    with pytest.raises(KernelError, match="whose loops differ in length; choose 1"):
        cuda_lowering.lower(program, CudaScan(4, 8, 1, ahead=False))
    every = cuda_model.candidates(program, H200)
    assert {schedule.chains for schedule in every} == {1}
    agree(function, arrays, cuda_model.heuristic(program, H200))


def product(a, b):
    """Multiply small matrices both ways, reshape and reduce: no loop at all."""
    c = a @ b
    m, n = c.shape
    d = xp.sum(xp.exp(-xp.abs(c)), axis=-1) + xp.max(a, axis=-1)
    return c.T @ a, d, xp.reshape(c, (m * n,))


@pytest.mark.parametrize("group", [1, 2, 8, 32, 64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 2), (7, 33, 4), (2, 3, 40)])
def test_small_products_agree(group, shape):
    """Any axis may be the longest."""
    rng = np.random.default_rng(1)
    m, k, n = shape
    arrays = [rng.normal(size=(m, k)), rng.normal(size=(k, n))]
    agree(product, arrays, CudaScan(group, 1, 1, ahead=False))


def nested(x, w):
    """Have a loop in a loop, whose rows stay inside and are read again, reversed."""

    def outer(x, row):
        def inner(carry, i):
            carry = carry * 0.5 + xp.sum(row) * 0.1
            return carry, carry + i.astype(carry.dtype)

        x, rows = xp.scan(inner, x, xp.arange(5))

        def back(total, row):
            return total * 0.9 + row, None

        total, _ = xp.scan(back, xp.zeros_like(x), rows, reverse=True)
        return x + total * 0.01, total

    return xp.scan(outer, x, w)


@pytest.mark.parametrize(("group", "chains"), PLACES)
@pytest.mark.parametrize("extent", [1, 3, 40])
def test_rows_that_an_inner_loop_keeps_are_read_by_the_next(group, chains, extent):
    """They lie in the block's own memory, a part for each chain."""
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(3, extent)), rng.normal(size=(3, 4, extent))]
    agree(vmap(nested, (0, 0)), arrays, CudaScan(group, chains, 2, ahead=False))


def again(x, w):
    """Keep every state, then walk back over all of them: memory of the kernel's own."""

    def step(x, w):
        return xp.tanh(x * w), x

    last, past = xp.scan(step, x, w)

    def back(total, both):
        w, x = both
        return total * w + x, None

    return xp.scan(back, last, (w, past), reverse=True)[0]


@pytest.mark.parametrize(("group", "chains"), PLACES)
@pytest.mark.parametrize("extent", [1, 3, 40])
def test_what_a_loop_keeps_is_read_backwards(group, chains, extent):
    """Written by one thread and read by all, or by the thread that wrote it."""
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=(3, extent)), rng.normal(size=(3, 9, extent))]
    agree(vmap(again, (0, 0)), arrays, CudaScan(group, chains, 2, ahead=False))


def backward(x, w1, w2):
    """Return a network's result and its gradients: a loop there, and one back."""

    def forward(x, w1, w2):
        def step(x, i):
            return layer(layer(x, w1), w2) + xp.cospi(i.astype("float64") * 0.3), None

        return xp.sum(xp.scan(step, x, xp.arange(9))[0])

    value, gradients = value_and_grad(forward, (0, 1, 2))(x, w1, w2)
    return (value, *gradients)


@pytest.mark.parametrize("group", [1, 4, 16, 32, 64])
@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("inner", [1, 3])
def test_gradients_agree_in_any_order_of_their_statements(group, unroll, inner):
    """What the way back computes again comes early, for all iterations of a turn."""
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=s) for s in ((inner,), (inner, 12), (12, inner))]
    agree(backward, arrays, CudaScan(group, 1, unroll, True), rtol=1e-9)


@given(
    st.sampled_from([1, 4, 32, 64]),
    st.integers(0, 40),
    st.integers(0, 9),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=40)
def test_every_loop_runs_exactly_as_often_as_it_says(
    group, length, unroll, ahead, more
):
    """Counted by the loop itself, whatever a turn holds."""

    def counting(x):
        def step(carry, i):
            count, total = carry
            return (
                count + 1,
                total + (i * i * 3 + i * 5 + more) * (i + 7) * (i - 2),
            ), None

        zero = xp.zeros_like(x)
        (count, total), _ = xp.scan(step, (zero, zero), xp.arange(length))
        return count, total

    arrays = [np.zeros(2, np.int64)]
    agree(counting, arrays, CudaScan(group, 1, unroll, ahead))


def stepping(x, count, w):
    """Replace a state by its next one, and count."""
    return {"x": xp.tanh(x @ w) + xp.sum(x), "count": count + 1}


@pytest.mark.parametrize(("group", "chains"), [*PLACES, (8, 16)])
@pytest.mark.parametrize("total", [1, 5, 33])
def test_what_is_overwritten_was_read_by_all(group, chains, total):
    """Also by the threads that repeat the last chain, in other warps of its block."""
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(total, 5)), np.arange(total), rng.normal(size=(5, 5))]
    schedule = CudaScan(group, chains, 1, False)
    agree(vmap(stepping, (0, 0, None)), arrays, schedule)


def overwriting(x, xs):
    """Replace the rows of xs by what was before each."""
    last, rows = xp.scan(lambda x, row: (x + row, x), x, xs)
    return {"last": last, "xs": rows}


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
    program = program_of(vmap(run) if chains else run, [row])
    schedule = CudaScan(16 if each < 8 else 4, each, 1, ahead=False)
    lowered = cuda_lowering.lower(program, schedule)
    assert schedule.threads == 32
    assert lowered.kernel.resident == told


@pytest.mark.parametrize("count", [0, 1, 300])
def test_every_candidate_agrees(count):
    """As many as are worth trying, none twice."""
    arrays = network_arrays(np.random.default_rng(3), 12, 3, chains=count)
    function = vmap(network, (0, 0, None, None)) if count else network
    program = program_of(function, arrays)
    every = cuda_model.candidates(program, H200)
    assert 6 <= len(set(every)) == len(every) <= 96
    assert cuda_model.heuristic(program, H200) in every
    for schedule in every[:: 1 if count < 2 else 7]:
        agree(function, arrays, schedule)

"""Parameters that are constant: what these alone decide is stored when a kernel is bound."""

import pickle

import ml_dtypes
import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Cast, View
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.plan.constants import split
from steelyard_kernels.reference import evaluate
from steelyard_kernels.targets import device, machine, parse

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7}


def drawn(shape, dtype="float32", seed=0):
    """Return random values."""
    rng = np.random.default_rng([seed, *shape])
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(DTYPES.get(dtype, dtype))


def launched(work):
    """Launch once; return the one output."""
    work.launch()
    work.wait()
    (found,) = work.outputs.values()
    return found


def agrees(made, *arrays, constant):
    """Compare a bound kernel with constants with float64; return what it has bound."""
    work = made.bind(*arrays, constant=constant)
    found = launched(work)
    program = made.program(*arrays)
    (wanted,) = evaluate(program, [np.asarray(x, np.float64) for x in arrays]).values()
    near = EPSILON.get(str(found.dtype), 1e-5) * max(1, np.abs(wanted).max(initial=0))
    assert np.abs(found.astype(np.float64) - wanted).max(initial=0) <= near
    return work


@kernel
def plain(x, w):
    """Multiply."""
    return x @ w


@kernel
def layer(x, w, b, s):
    """Multiply by scaled weights that lie across, and add a bias."""
    return xp.tanh(x @ (w * s).T + b)


@kernel
def whole(x, w):
    """Multiply integers."""
    return x.astype("int32") @ w.astype("int32").T


@pytest.mark.parametrize("m", [0, 1, 2, 5, 33, 64])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (97, 51), (1, 40), (300, 257), (0, 8)])
def test_products_are_those_of_float64(m, n, k):
    """Rows, columns and depth that blocks do not divide, of one and of none."""
    agrees(plain, drawn((m, k)), drawn((k, n)), constant=("w",))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [4, 33])
def test_weights_of_fewer_bytes_are_those_of_float64(dtype, m):
    """Few rows widen panels as they read them, others read what lies there."""
    made = whole if dtype == "int8" else plain
    w = drawn((70, 70), dtype)
    work = agrees(made, drawn((m, 70), dtype), w, constant=("w",))
    panels = "packed" in work.kept.text
    assert panels == (m <= 32)
    lanes = machine().lanes(4)
    columns = -(-70 // lanes) * lanes if panels else 70
    assert work.facts()["constant_bytes"] == w.itemsize * 70 * columns


def test_what_constants_alone_decide_is_stored():
    """The product's factor is packed once; the rest has neither its scale nor its turn."""
    arrays = drawn((16, 96)), drawn((64, 96)), drawn((64,)), drawn((64, 1))
    names = ("w", "b", "s")
    work = agrees(layer, *arrays, constant=names)
    assert work.kept.text in layer.explain(*arrays, constant=names)
    packed = 2 * machine().lanes(4)
    assert f"w_once: 24576 bytes, packed by {packed} columns once" in work.kept.text
    assert [x.shape for x in work.kept.arrays] == [(64,), (64 // packed, 96, packed)]
    agrees(layer, *arrays, constant=("s", "w"))
    agrees(layer, *arrays, constant=("s",))


@pytest.mark.parametrize("constant", [("a",), ("a", "b"), ("a", "b", "x"), ("x",)])
def test_sums_joins_and_outputs_of_constants_are_those_of_float64(constant):
    """Also where an output is a constant, or all parameters are."""

    @kernel
    def mixed(a, b, x):
        joined = xp.concat([a, b * 2.0, xp.cumulative_sum(a, axis=0)])
        return xp.stack([xp.sum(joined), xp.sum(a) * 2, xp.sum(joined @ x), x[0, 0]])

    a, b, x = drawn((5, 7)), drawn((3, 7), seed=1), drawn((7, 4))
    agrees(mixed, a, b, x, constant=constant)


def test_what_is_larger_than_its_constants_is_not_stored():
    """An outer product would be memory that launches had to read."""

    @kernel
    def outer(x, a, b):
        return x + a[:, None] * b

    work = agrees(
        outer, drawn((30, 40)), drawn((30,)), drawn((40,)), constant=("a", "b")
    )
    assert work.kept.nbytes == 4 * 70


def test_what_is_written_to_a_constant_counts_from_refresh_on():
    """Each of two bound kernels has what its own constants were."""
    x, w = drawn((4, 40)), drawn((40, 50))
    old = w.copy()
    works = [plain.bind(x, w, constant=["w"]) for _ in range(2)]
    w[:] = drawn((40, 50), seed=1)
    for work in works:
        assert np.allclose(launched(work), x @ old, atol=1e-4)
    works[0].refresh()
    assert np.allclose(launched(works[0]), x @ w, atol=1e-4)
    assert np.allclose(launched(works[1]), x @ old, atol=1e-4)


def test_equal_weights_are_packed_once():
    """One array for two parameters, of each of two products."""

    @kernel
    def tied(x, w, v):
        return xp.tanh(x @ w) @ v

    x, w = drawn((8, 64)), drawn((64, 64))
    assert agrees(tied, x, w, w, constant=("w", "v")).kept.nbytes == w.nbytes
    twice = agrees(tied, x, w, w.copy(), constant=("w", "v"))
    assert twice.kept.nbytes == 2 * w.nbytes


def test_strided_weights_are_constants_as_well():
    """Read through their strides, when they are bound and again."""
    w = drawn((60, 80))
    work = agrees(plain, drawn((6, 40)), w[::2, ::2].T, constant=("w",))
    w += 1
    work.refresh()
    assert np.allclose(launched(work), drawn((6, 40)) @ w[::2, ::2].T, atol=1e-4)


def test_scalars_are_no_constants():
    """A product with a scalar is of each call, as are chains and loops."""

    @kernel
    def scaled(x, w, *, s=2.0, t=0.5):
        power = xp.fori_loop(0, 2, lambda i, c: xp.tanh(c @ w) * t, x)
        return power + xp.sum(w) * s

    x, w = drawn((4, 4)), drawn((4, 4))
    work = scaled.bind(x, w, constant=("w",), t=0.25)
    wanted = launched(scaled.bind(x, w, t=0.25))
    assert np.allclose(launched(work), wanted, atol=1e-6)
    with pytest.raises(KernelError, match="unknown scalar u"):
        scaled.bind(x, w, constant=("w",), u=1.0)


@kernel
def update(x, w):
    """Update one in place."""
    return {"w": w + x, "y": x * 2}


def test_mistakes_are_told_in_one_sentence():
    """Names that are none, constants that are written, and memory in common."""
    x, w = drawn((8, 8)), drawn((8, 8), seed=1)
    with pytest.raises(KernelError, match=r"constant 'v' is no array of it.*x, w"):
        plain.bind(x, w, constant=("v",))
    with pytest.raises(KernelError, match="w is constant, and updated in place"):
        update.bind(x, w, constant=("w",))
    with pytest.raises(KernelError, match="output w shares memory with x, which is"):
        update.bind(x, x, constant=("x",))
    with pytest.raises(KernelError, match="output out shares memory with w, which is"):
        plain.bind(x, w, constant=("w",), out=w)
    with pytest.raises(KernelError, match="got 1 arrays, expected 2"):
        plain.bind(x, constant=("w",))
    with pytest.raises(KernelError, match="named like an argument"):
        kernel(lambda x, *, constant=1.0: x * constant)
    with pytest.raises(KernelError, match="a part of it cannot be pickled"):
        pickle.dumps(plain.part(plain.program(x, w)))


def test_a_binary_is_launched_with_what_is_stored():
    """Another process, or build, gets the packed array as an argument."""
    x, w = drawn((8, 70)), drawn((70, 90))
    work = plain.bind(x, w, constant=("w",))
    work.of_binary(work.binary()).launch()
    work.wait()
    assert np.allclose(work.outputs["out"], x @ w, atol=1e-4)


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_a_gpu_gets_bytes_along_the_depth(across, dtype):
    """8 bits that lie across are transposed once; all else is read as it lies."""

    def multiplied(x, w):
        w = w if across else w.T
        if dtype == "int8":
            return x.astype("int32") @ w.astype("int32")
        return x @ w

    specs = ((64, 128), dtype), ((128, 256) if across else (256, 128), dtype)
    program = kernel(multiplied).program(*specs)
    found = split(program, {"w": "w"}, device(parse("cuda:sm_90a")))
    (stored,) = found.once.outputs
    assert stored.value.shape == ((256, 128) if dtype == "int8" else specs[1][0])
    assert ("transposed" in found.text()) == (across and dtype == "int8")
    read = [n for n in simplify(found.rest).nodes if isinstance(n, View | Cast)]
    assert all(n.dtype.bytes != 8 or isinstance(n, Cast) for n in read)

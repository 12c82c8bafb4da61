"""What a GPU's threads compute of rows by fewer instructions is as right as before."""

import numpy as np
import simt
from labels import schedule_of

from steelyard_kernels import array as xp
from steelyard_kernels.emit import cuda, nvptx
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir.printing import statement_text
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reads import reads_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS

H200 = GPUS["sm_90a"]
ROWS = "i:grid j:v4.r2.thread32.serial"


def lowered(program):
    """Return a program's kernel in which a warp has a row."""
    made = strategies.lower(program, schedule_of(ROWS), H200)
    verify(made.kernel, "cuda")
    return made


def on_threads(made, *arrays):
    """Return the outputs of a kernel, run by threads."""
    program = simplify(made.program(*arrays))
    found = tuple(simt.launch(program, lowered(program), arrays).values())
    return found[0] if len(found) == 1 else found


@kernel
def below(x):
    """Return e to the power of what is below each row's largest value."""
    return xp.exp(x - xp.max(x, axis=-1, keepdims=True))


@kernel
def summed(x):
    """Add up such powers."""
    return xp.sum(xp.exp(x - xp.max(x, axis=-1, keepdims=True)), axis=-1)


@kernel
def shared(x, y):
    """Divide rows by their largest y, which all of a row share."""
    return x / xp.max(y, axis=-1, keepdims=True)


@kernel
def most(x):
    """Return where the largest and the smallest of each row are."""
    return xp.argmax(x, axis=-1), xp.argmin(x, axis=-1)


@kernel
def chosen(x, place):
    """Return how far one element of each row is below the sum of all."""
    total = xp.sum(x, axis=-1, keepdims=True)
    return total - xp.take_along_axis(x, place, axis=-1)


def test_powers_below_the_largest_are_within_units_of_the_last_place():
    """Of infinities and of NaN too; what would be denormal is 0."""
    x = np.linspace(-86, 0, 4 * 256).astype(np.float32).reshape(4, 256)
    x[:, -1], x[1, 0], x[2, 0] = 0, -np.inf, -1e30
    x[3] = -np.inf
    x[3, 7] = -5
    found = on_threads(below, x).astype(np.float64)
    with np.errstate(under="ignore"):
        want = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(found, want, rtol=4 * 2.0**-23)
    x[0, 5] = np.nan
    assert np.isnan(on_threads(below, x)[0]).all()


def test_powers_that_are_only_added_up_are_as_right_as_their_sum():
    """One instruction each; those that are used besides, or of other lines, are whole."""
    x = 12 * np.random.default_rng(9).standard_normal((4, 256)).astype(np.float32)
    x[1], x[2, 5:] = -3, -np.inf
    want = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True)).sum(-1)
    np.testing.assert_allclose(on_threads(summed, x), want, rtol=7 * 2.0**-23)

    @kernel
    def columns(x):
        return xp.sum(xp.exp(x - xp.max(x, axis=-1, keepdims=True)), axis=0)

    @kernel
    def both(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return xp.sum(e, axis=-1), e

    for made, count in ((summed, 1), (columns, 0), (both, 0)):
        nest = nest_of(simplify(made.program(((4, 256), "float32"))))
        assert len(reads_of(nest, narrow=True).summed) == count


def test_what_a_row_shares_divides_as_a_division_does():
    """Among zeros, infinities, NaN, denormals and the largest numbers."""
    rng = np.random.default_rng(6)
    divisors = [3.0, -0.7, 1e-30, 7e37, 3e38, 1e-38, 2e-39, 1e-45, 0.0, -np.inf]
    divisors += [np.inf, np.nan, -1e-40, 2.0**-100, 2.0**-99.5]
    y = np.full((len(divisors), 256), -np.inf, np.float32)
    y[:, 3] = divisors
    x = rng.standard_normal(y.shape).astype(np.float32)
    x *= np.float32(2) ** rng.integers(-60, 60, y.shape).astype(np.float32)
    x[:, :8] = 0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45, 1e-38
    if np.isnan(y).any():
        y[np.isnan(y[:, 3])] = np.nan
    found = on_threads(shared, x, y)
    with np.errstate(all="ignore"):
        want = x / y.max(-1, keepdims=True)
    normal = (np.abs(y[:, 3:4]) >= 2.0**-99) & np.isfinite(want)
    normal &= np.abs(want) >= 2.0**-126
    np.testing.assert_array_equal(found[normal], want[normal])
    np.testing.assert_allclose(found, want, rtol=2.0**-22, atol=2.0**-149)
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(want[zero]))


def test_extrema_of_halves_stay_halves_until_they_are_used():
    """Two are compared by one instruction, and no walk widens what it only compares."""

    @kernel
    def largest(x):
        return xp.max(x.astype("float32"), axis=-1)

    program = simplify(largest.program(((4, 256), "float16")))
    text = cuda.emit(lowered(program).kernel)
    assert "max_f16x2(" in text
    assert "f16_low" not in text.split("max_f16x2(")[-1].split("__shfl")[0]
    x = np.random.default_rng(8).standard_normal((4, 256)).astype(np.float16)
    np.testing.assert_array_equal(on_threads(largest, x), x.max(-1))


def test_elements_at_places_that_were_loaded_wait_for_no_reduction():
    """They are on their way before threads meet."""
    specs = ((4, 256), "float32"), ((4, 1), "int32")
    program = simplify(chosen.program(*specs))
    lines = [statement_text(each) for each in lowered(program).kernel.body]
    loads = [k for k, line in enumerate(lines) if " = x[" in line]
    assert len(loads) == 3
    assert max(loads) < next(k for k, x in enumerate(lines) if "shuffle" in x)


def test_powers_and_quotients_are_built_by_llvm_too():
    """It has the instruction."""

    @kernel
    def softmax(x):
        e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
        return e / xp.sum(e, axis=-1, keepdims=True)

    program = simplify(softmax.program(((4, 256), "float32")))
    text = nvptx.emit(lowered(program).kernel)
    assert "llvm.nvvm.ex2.approx.ftz.f" in text
    assert text.count("fdiv") == 1

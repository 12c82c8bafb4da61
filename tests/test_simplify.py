import ml_dtypes
import numpy as np
import pytest
from corpus import normal
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_device import llvm
from steelyard_kernels import array as xp
from steelyard_kernels import library, reference
from steelyard_kernels.dtypes import bfloat16, float16, float32, float64
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.expression.expr import Apply, Cast
from steelyard_kernels.expression.printing import text
from steelyard_kernels.expression.simplify import in_halves, simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.model import Machine
from steelyard_kernels.schedule.strategies import heuristic, lower

ROW = np.zeros(128, np.float16)
ROWS = np.zeros((64, 128), np.float16)


def rounded(x):
    """Round to halves and widen again, as frameworks do between their operations."""
    return x.astype("float16").astype("float32")


@kernel
def fused_layernorm(x, bias1, bias2, weight, shift, *, epsilon=1e-5):
    """Chain what nvFuser's FusionLayerNormFusedOpsRedundantCast_CUDA does, and a ReLU.

    Casts stand where a framework's operations begin and end; three round something.
    """
    t = rounded(x.astype("float32") + xp.broadcast_to(bias1, x.shape).astype("float32"))
    t = rounded(t + xp.broadcast_to(bias2, x.shape).astype("float32"))
    t = rounded(rounded(xp.maximum(t, 0.0)))
    scale = xp.rsqrt(xp.var(rounded(t), axis=-1, keepdims=True) + epsilon)
    y = rounded((t - xp.mean(t, axis=-1, keepdims=True)) * scale)
    return rounded(y * weight.astype("float32") + shift.astype("float32")).astype(
        "float16"
    )


@kernel
def bias_relu(x, bias):
    """Add, clamp, negate: one sum to round, and nothing after it."""
    t = rounded(x.astype("float32") + bias.astype("float32"))
    t = rounded(rounded(xp.maximum(t, 0.0)))
    return rounded(-rounded(xp.where(t > 4.0, 4.0, t))).astype("float16")


def casts(program):
    """Count a program's casts."""
    return sum(isinstance(node, Cast) for node in program.nodes)


def test_the_casts_of_a_fused_layernorm_are_golden(golden):
    """Before and after: the roundings of two sums and a quotient stay, no other."""
    program = fused_layernorm.program(ROWS, *[ROW] * 4)
    golden(text(program), "fused_layernorm_before")
    golden(text(simplify(program)), "fused_layernorm_after")


def test_a_rounding_that_changes_values_stays():
    """The one between the two biases of the library's kernel: it comes back itself."""
    program = library.bias_layernorm.program(ROWS, *[ROW] * 4)
    assert simplify(program) is program


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_rounded_sum_of_halves_is_theirs_on_a_gpu(dtype):
    """A product may round twice, and what is read in float32 besides is kept so."""
    row, rows = ROW.astype(dtype), ROWS.astype(dtype)
    program = library.bias_layernorm.program(rows, *[row] * 4)
    made = in_halves(program)
    assert next(n.op for n in made.nodes if isinstance(n, Apply)) == "add"
    assert casts(program) - casts(made) == 3
    x = np.random.default_rng(3).standard_normal((5, *ROWS.shape)).astype(dtype)
    given = [rows, *[each[0] for each in x[:4]]]
    for one, other in zip(
        evaluate(program, given, {"epsilon": 1e-5}).values(),
        evaluate(made, given, {"epsilon": 1e-5}).values(),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)

    @kernel
    def others(x, y):
        wide = x.astype("float32") - y.astype("float32")
        product = x.astype("float32") * y.astype("float32")
        return wide.astype(x.dtype), xp.exp(wide), product.astype(x.dtype)

    program = others.program(row, row)
    assert in_halves(program) is program


def test_a_program_without_redundant_casts_comes_back_itself():
    """Adam has casts of scalars alone; what is simple stays the same object."""
    state = np.zeros(100, np.float32)
    program = library.adam.program(state, state, state)
    assert casts(program) > 0
    assert simplify(program) is program
    simple = simplify(fused_layernorm.program(ROWS, *[ROW] * 4))
    assert simplify(simple) is simple


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_gpu_converts_less(arch):
    """Of four roundings that of what is stored is left: the sum is one of halves."""
    program, gpu = bias_relu.program(ROWS, ROW), GPUS[arch]
    schedule = heuristic(program, gpu)
    counts = []
    for made in (program, simplify(program)):
        text_ = emit(lower(made, schedule, gpu).kernel).partition("#line")[2]
        counts.append(text_.count("f16_pack(") + text_.count("f16_round("))
    assert counts[0] == 3 * counts[1] > 0


A = np.zeros(8, np.float32)
H = np.zeros(8, np.float16)
B = np.zeros(8, ml_dtypes.bfloat16)
SEEN_THROUGH = {
    "half_there_and_back": (lambda x: x.astype("float32").astype("float16"), H, 0),
    "exact_in_between": (
        lambda x: xp.abs(-x.astype("float32")).astype("float16").astype("float32"),
        H,
        1,
    ),
    "twice_to_one_type": (
        lambda x: xp.exp(
            x.astype("float16").astype("float32").astype("float16").astype("float32")
        ),
        A,
        2,
    ),
    "a_choice_of_halves": (
        lambda x: rounded(xp.where(x > 0.0, x.astype("float32"), 0.5)),
        H,
        1,
    ),
    "a_constant_that_is_no_half": (
        lambda x: rounded(xp.where(x > 0.0, x.astype("float32"), 0.1)),
        H,
        3,
    ),
    "the_largest_of_halves": (
        lambda x: rounded(xp.max(x.astype("float32"), axis=-1)),
        H,
        1,
    ),
    "a_sum_of_halves": (lambda x: rounded(xp.sum(x.astype("float32"), axis=-1)), H, 3),
    "a_broadcast_between": (
        lambda x: xp.broadcast_to(x.astype("float32").astype("float16"), (3, 8)).astype(
            "float32"
        ),
        A,
        2,
    ),
    "integers_that_fit": (lambda x: x.astype("int64").astype("int32"), B, 0),
    "integers_that_do_not": (lambda x: x.astype("float32").astype("int32"), B, 2),
    "through_float64": (lambda x: x.astype("float64").astype("int32"), B, 0),
    "bool_through_anything": (
        lambda x: (x > 0.0).astype("bfloat16").astype("int64").astype("bool"),
        A,
        0,
    ),
    "negated_integers_wrap": (
        lambda x: (-x.astype("int64")).astype("int32").astype("int64"),
        B,
        3,
    ),
}


@pytest.mark.parametrize("name", SEEN_THROUGH)
def test_a_cast_goes_where_every_value_is_held_exactly(name):
    """Each program keeps as many casts as its values need, and keeps its values."""
    body, array, left = SEEN_THROUGH[name]
    array = array.astype(np.int32) if array is B else array
    program = kernel(body).program(array)
    simple = simplify(program)
    assert casts(simple) == left
    assert simple.outputs[0].value.dtype is program.outputs[0].value.dtype
    values = np.array([1.5, -2.0, 0.0, -0.0, 3e-5, 7e4, np.inf, np.nan])
    with np.errstate(all="ignore"):
        given = values.astype(array.dtype)
    before, after = (reference.evaluate(p, [given])["out"] for p in (program, simple))
    assert before.tobytes() == after.tobytes()


STEPS = ("maximum", "minimum", "where", "negative", "abs", "add", "multiply", "cast")
TYPES = (float16, bfloat16, float32, float64)


@st.composite
def chains(draw):
    """Draw (kernel, arrays): operations and casts, most of which change nothing."""
    kinds = [draw(st.sampled_from(TYPES)) for _ in range(2)]
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(STEPS),
                st.integers(0, 9),
                st.integers(0, 9),
                st.sampled_from(TYPES),
            ),
            min_size=2,
            max_size=12,
        )
    )

    def chain(a, b):
        made = [a, b]
        for op, i, j, dtype in steps:
            x, y = made[-1 - i % len(made)], made[-1 - j % len(made)]
            if op == "cast":
                made.append(x.astype(dtype.name))
            elif op == "where":
                made.append(xp.where(x < y, x, y))
            elif op in {"negative", "abs"}:
                made.append(getattr(xp, op)(x))
            else:
                made.append(getattr(xp, op)(x, y))
        return made[-1], made[-1].astype("float32")

    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = [normal(rng, (37,), dtype, special=True) for dtype in kinds]
    return kernel(chain), arrays


@given(chains())
@settings(max_examples=60)
def test_the_emitted_code_gives_the_same_bits(run_kernel, case):
    """NaN, infinities, denormals and both zeros among them; the oracle agrees."""
    made, arrays = case
    program = made.program(*arrays)
    simple = simplify(program)
    assert casts(simple) <= casts(program)
    before, after = (launched(run_kernel, p, arrays) for p in (program, simple))
    for old, new in zip(before, after, strict=True):
        assert old.tobytes() == new.tobytes()


def launched(run_kernel, program, arrays):
    """Return a program's outputs as the CPU computes them."""
    machine = Machine(llvm.host().vector_bytes, 1)
    lowered = lower(program, heuristic(program, machine, aligned=False), machine,
                    aligned=False)  # fmt: skip
    outputs = [np.zeros(o.value.shape, o.value.dtype.numpy) for o in program.outputs]
    values = []
    for slot in lowered.slots:
        by_kind = {"input": arrays, "output": outputs}.get(slot.kind)
        values.append(slot.index if by_kind is None else by_kind[slot.index])
    run_kernel(lowered.kernel, *values)
    return outputs

"""Every operation of the loop IR as CUDA C++: run on the host, compiled for GPUs."""

import re
import shutil

import gpu_cases
import gpu_host
import numpy as np
import pytest
from gpu_cases import COUNT, THREADS

from steelyard_device import cubin, nvrtc
from steelyard_kernels.dtypes import (
    HALVES,
    float32,
    float64,
    int32,
    int64,
)
from steelyard_kernels.emit.cuda import emit, joined
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import Buffer
from steelyard_kernels.ir.verify import verify

CASES = gpu_cases.everything(1)  # vectors are those of `test_ops`


@pytest.fixture(scope="module")
def program():
    """Emit all cases as one group."""
    for case in CASES:
        verify(case.kernel, "cuda")
    return joined((case.name, emit(case.kernel)) for case in CASES)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_operations_give_what_numpy_says(program, tmp_path):
    """On the host, with the helpers' PTX replaced; special values."""
    run = gpu_host.load(program, tmp_path)
    wrong = {}
    for case in CASES:
        seen = np.full(len(case.expected), 7, case.dtype.numpy)
        blocks = -(-COUNT // case.per_thread // THREADS)
        run(case.name, blocks, THREADS, *case.arrays, seen, COUNT)
        if missed := gpu_cases.misses(case, seen):
            wrong[case.name] = missed
    assert wrong == {}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("quarters", [0, 1], ids=["sinpi", "cospi"])
def test_float64_of_half_turns_are_within_four_fifths_of_an_ulp(quarters, tmp_path):
    """What normals need to stay within two; infinity has no sine.

    Zeros have the sign of x in a sine, and are positive in a cosine (IEEE 754-2019).
    """
    rng = np.random.default_rng(5)
    near = rng.integers(-9, 10, 6000) / 4 + np.ldexp(1.0, -rng.integers(1, 60, 6000))
    far = np.ldexp(rng.uniform(-2, 2, 6000), rng.integers(-1000, 60, 6000))
    whole = np.arange(-9, 10) + quarters / 2
    edges = [
        -0.0,
        0.0,
        *whole,
        2.0**52,
        -(2.0**60),
        np.inf,
        -np.inf,
        np.nan,
        5e-324,
        2.0**53 - 1,
        1e308,
    ]
    x = np.concatenate([edges, rng.uniform(0, 2, 12000), near, far])
    seen, op = np.full_like(x, 7), ("sinpi", "cospi")[quarters]
    kernel = gpu_cases.elementwise(lambda b, x: b.let(op, x), [float64], float64, 1)
    run = gpu_host.load(joined([(op, emit(kernel))]), tmp_path)
    run(op, -(-x.size // THREADS), THREADS, x, seen, x.size)
    with np.errstate(invalid="ignore"):
        want = gpu_cases.turned(x.astype(np.longdouble), quarters)
    ok = np.isfinite(x)
    assert np.isnan(seen[~ok]).all()
    size = np.abs(want[ok].astype(np.float64))
    assert (np.abs(seen[ok] - want[ok]) / np.spacing(size)).max() < 0.8
    zeros = x[seen == 0]
    assert {*whole[whole != 0]} <= {*zeros}
    signs = np.signbit(zeros) if quarters == 0 else np.zeros(zeros.size, bool)
    np.testing.assert_array_equal(np.signbit(seen[seen == 0]), signs)


def test_operations_compile_without_local_memory(program):
    """For the oldest architecture; `test_ops` compiles for the one we have."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    made = cubin.read(nvrtc.compile(program, "sm_80").cubin)
    assert set(made) == {case.name for case in CASES}
    local = {name: r for name, r in made.items() if r.local_loads or r.local_stores}
    large = {f"{op}_float64_float64_1" for op in ("sin", "cos")}
    assert set(local) == large  # the library reduces large angles in 40 bytes
    assert {r.stack for r in local.values()} == {40}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_packed_halves_stay_packed(dtype):
    """16 bytes a load, two sums an instruction, and no lane goes to float32."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    kernel = gpu_cases.elementwise(
        lambda b, x, y: b.let("add", x, y), [dtype] * 2, dtype, 8
    )
    made = cubin.read(nvrtc.compile(emit(kernel), "sm_90a").cubin)["kernel"]
    assert (made.loads_128, made.count("LDG"), made.count("STG")) == (2, 2, 1)
    assert made.count("HADD2") + made.count("HFMA2") == 4
    assert made.count("F2FP") == made.count("FADD") == made.count("PRMT") == 0


def test_the_line_of_every_operation_is_golden(golden):
    """As scalars and as pairs, in every type: what stands before the store."""
    lines = []
    for lanes in (1, 2):
        for family in ("arithmetic", "functions", "bits", "choices", "casts"):
            for case in getattr(gpu_cases, family)(lanes):
                text = emit(case.kernel).partition("#line")[2]
                before = re.search(r"  (.*);\n  if \(\w+\)(?: \{\n)? .*y.*=", text)
                lines.append(f"{case.name}: {before[1]}")
    golden("\n".join(lines) + "\n")


def test_integers_wrap_and_indices_do_not():
    """What is loaded may exceed its type; an index may not, so that C++ may assume it."""
    for dtype in (int32, int64):
        x = Buffer("x", dtype, gpu_cases.N, access="inout")
        b = Builder(gpu_cases.INT)
        place = b.at("add", b.at("multiply", b.block(), 32), b.thread())
        value = b.load(x, place)
        b.store(x, place, b.let("add", value, value))
        text = emit(b.kernel("twice", [x, gpu_cases.N], threads=32))
        name = "int" if dtype is int32 else "long long"
        assert f"({name})((unsigned {name})x5 + (unsigned {name})x5)" in text
        assert "int i4 = i2 + v3;" in text


@pytest.mark.parametrize("op", ["bitwise_left_shift", "shift_right_logical"])
@pytest.mark.parametrize("by", [-1, 0, 31, 32])
def test_only_shifts_that_may_leave_nothing_compare_with_the_width(op, by):
    """A compiler reads less where the amount is a constant that leaves bits."""
    kernel = gpu_cases.elementwise(
        lambda b, x: b.let(op, x, const(by, int32)), [int32], int32, 1
    )
    assert ("sizeof" in emit(kernel)) == (not 0 <= by < 32)


def test_functions_of_float64_come_with_kernels_that_have_any():
    """Of one name they are many; those that none can call take longest to read."""

    def text(dtype):
        return emit(
            gpu_cases.elementwise(lambda b, x: b.let("sigmoid", x), [dtype], dtype, 1)
        )

    assert "double" not in text(float32)
    assert "double sigmoid(double x)" in text(float64)

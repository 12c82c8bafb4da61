import shutil

import gpu_cases
import gpu_host
import numpy as np
import pytest
from gpu_cases import INT, N
from msgspec.structs import replace

from steelyard_device import cubin, nvrtc
from steelyard_kernels.dtypes import (
    ALL,
    HALVES,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
)
from steelyard_kernels.emit.cuda import emit, joined
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import Buffer, Const, Var, typed
from steelyard_kernels.ir.printing import text
from steelyard_kernels.ir.verify import verify

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def on_host(tmp_path):
    """Verify, emit and load a kernel; `on_host(kernel)(*args, blocks=1)` runs it."""

    def load(kernel):
        verify(kernel, "cuda")
        run = gpu_host.load(emit(kernel), tmp_path)

        def launch(*args, blocks=1):
            run("kernel", blocks, kernel.threads, *args)

        return launch

    return load


def row_norms():
    """Scale rows of 1024 halves by their largest: every memory space, a carried loop.

    A warp a row, 8 elements a lane at a time, kept packed in registers; a bias of
    another half type; the block's first thread tells all which row failed.
    """
    x, bias = Buffer("x", float16, N), Buffer("bias1", bfloat16, N)
    y = Buffer("λ", float16, N, access="out")
    bad = Buffer("float", bool_, N, access="out")
    floor, verbose = Var("threadIdx", typed(float64)), Var("verbose", typed(bool_))
    b = Builder(INT)
    lane, row = b.thread(), b.block()
    start = b.at("multiply", row, 1024)
    inside = b.let("less", row, N)
    mask = b.splat(inside, 8)
    kept = b.alloc("kept", float16, 32, "register")
    with b.loop(0, 4, 1, const(0.0, float32, 8), unroll=4) as loop:
        column = b.at("multiply", b.at("add", b.at("multiply", loop.var, 32), lane), 8)
        value = b.load(x, b.at("add", start, column), 8, mask, 16)
        shift = b.load(bias, column, 8, alignment=16)
        moved = b.let("add", b.cast(value, float32), b.cast(shift, float32))
        b.store(
            kept, b.at("multiply", loop.var, 8), b.cast(moved, float16), alignment=16
        )
        size = b.let("abs", moved)
        loop.yields(b.let("maximum", loop.carried[0], size))
    largest = b.let("reduce_maximum", loop.results[0])
    for step in (16, 8, 4, 2, 1):
        other = b.let("shuffle_xor", largest, const(step, int32))
        largest = b.let("maximum", largest, other)
    shared = b.alloc("shared", float32, 1, "shared")
    with b.branch(b.let("equal", lane, const(0, int32))):
        b.store(shared, 0, largest)
    b.effect("barrier")
    scale = b.let("maximum", b.load(shared, 0), b.cast(floor, float32))
    with b.branch(b.let("bitwise_and", verbose, inside)) as branch:
        b.store(bad, row, b.let("not_equal", scale, scale))
        branch.gives(scale)
        branch.otherwise()
        branch.gives(const(1.0, float32))
    factor = b.splat(b.let("divide", const(1.0, float32), branch.results[0]), 8)
    with b.loop(0, 4, 1, unroll=4) as loop:
        column = b.at("multiply", b.at("add", b.at("multiply", loop.var, 32), lane), 8)
        value = b.load(kept, b.at("multiply", loop.var, 8), 8, alignment=16)
        out = b.cast(b.let("multiply", b.cast(value, float32), factor), float16)
        with b.branch(inside):
            b.store(y, b.at("add", start, column), out, alignment=16)
    parameters = [x, bias, y, bad, floor, verbose, N]
    return b.kernel("row_norms", parameters, threads=32)


def test_the_text_of_a_kernel_is_golden(golden):
    """Parameters that are keywords, builtins, digits' bait or Greek are respelled."""
    verify(row_norms(), "cuda")
    golden(emit(row_norms(), entry="row_norms"))


def together(kernels):
    """Return one program of kernels by their entries."""
    return joined((entry, emit(kernel)) for entry, kernel in kernels.items())


def test_memory_that_threads_share_is_golden(golden):
    """Shuffles, a barrier, shared memory; asynchronous copies."""
    kernels = {
        "block_sums": gpu_cases.block_sums(),
        "staged": gpu_cases.staged(),
    }
    for kernel in kernels.values():
        verify(kernel, "cuda")
    golden(together(kernels))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_registers_are_no_local_memory(arch):
    """A buffer of registers, indexed by unrolled loops, becomes registers."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    group = {
        "row_norms": row_norms(),
        "block_sums": gpu_cases.block_sums(),
        "staged": gpu_cases.staged(),
    }
    made = cubin.read(nvrtc.compile(together(group), arch).cubin)
    assert [made[name].stack for name in group] == [0] * 3
    assert [made[name].local_loads for name in group] == [0] * 3
    assert made["row_norms"].loads_128 == made["row_norms"].count("LDG") >= 8
    assert made["row_norms"].stores_128 == 4


def test_a_kernel_reads_the_same_alone_and_in_a_group():
    """Its text depends on nothing but the kernel and its entry."""
    alone = emit(row_norms(), entry="mine")
    group = together({"a": gpu_cases.block_sums(), "mine": row_norms()})
    body = alone[alone.index("#line") :]
    assert body.startswith('#line 1 "mine"\nextern "C" __global__ void')
    assert group.endswith(body)
    assert group.count("float f16_low(") == 1


def test_what_a_cpu_does_is_refused():
    """A loop that threads share, an unknown count of copied bytes."""
    b = Builder()
    with b.parallel(N, 4):
        pass
    with pytest.raises(Unsupported, match="choose a schedule made for cuda"):
        emit(b.kernel("rows", [N], threads=32))
    x = Buffer("x", float32, N)
    for count, seen in ((Const(3, INT), "12"), (N, "unknown")):
        b = Builder(INT)
        room = b.alloc("room", float32, 64, "shared")
        b.effect("copy_async", room, Const(0, INT), x, Const(0, INT), count, count)
        with pytest.raises(Unsupported, match=f"copy of {seen} bytes"):
            emit(b.kernel("staged", [x, N], threads=32))
    b = Builder(INT)
    b.effect("copy_wait", N)
    with pytest.raises(Unsupported, match="give copy_wait a constant"):
        emit(b.kernel("waits", [N], threads=32))


def test_a_bound_of_registers_replaces_that_of_threads():
    """C++ takes one of the two; without either the compiler would choose."""
    b = Builder(INT)
    kernels = [b.kernel("k", [N], threads=96, registers=r) for r in (0, 255, 40)]
    for kernel in kernels[:2]:  # no thread has more than 255
        assert "void __launch_bounds__(96) kernel(int n)" in emit(kernel)
    assert "void __maxnreg__(40) kernel(int n)" in emit(kernels[2])


def test_blocks_that_a_multiprocessor_holds_are_told_where_registers_are_free():
    """Behind the threads, and in the loops' text; a bound of registers says it alone."""
    held = [
        replace(Builder(INT).kernel("k", [N], threads=64, registers=r), resident=2)
        for r in (0, 255, 40)
    ]
    for kernel in held[:2]:
        assert "void __launch_bounds__(64, 2) kernel(int n)" in emit(kernel)
    assert "void __maxnreg__(40) kernel(int n)" in emit(held[2])
    assert " by 64 threads, 2 resident:\n" in text(held[0])


NAMES = [
    *("n", "x1", "x1_", "x2", "v1", "v2_0", "i3", "int", "double", "threadIdx", "exp"),
    *("f16_pack", "min_nan", "uint4", "float4", "__shfl_xor_sync", "_", "_x", "a__b"),
    *(
        "λ",
        "U03BB",
        "U03BB_",
        "asm",
        "kernel",
        "NULL",
        "template",
        "NDEBUG",
        "blockDim",
    ),
]


@needs_gxx
def test_no_name_of_a_user_breaks_or_captures_anything(on_host):
    """Each parameter is read and written under a name that C++ or we have taken."""
    buffers = [Buffer(name, float16, N, access="inout") for name in NAMES[1:]]
    b = Builder(INT)
    for buffer in buffers:
        value = b.let(
            "maximum", b.load(buffer, 0, 4, alignment=8), const(1.0, float16, 4)
        )
        b.store(buffer, 0, value, alignment=8)
    kernel = b.kernel("named", [*buffers, N], threads=1)
    arrays = [np.arange(4).astype(np.float16) + k for k, _ in enumerate(buffers)]
    on_host(kernel)(*arrays, 4)
    for k, array in enumerate(arrays):
        assert array.tolist() == np.maximum(np.arange(4) + k, 1).tolist()
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    assert nvrtc.compile(emit(kernel), "sm_90a").cubin


@needs_gxx
@pytest.mark.parametrize("bounds", [(0, 0), (0, 1), (3, 3), (5, 2), (-7, 11), (2, 9)])
def test_a_loop_is_a_range_whose_state_changes_all_at_once(on_host, bounds):
    """Two values change places and a third takes a lane of one: none too early."""
    low, high = Var("low", INT), Var("high", INT)
    y = Buffer("y", float32, Const(12, INT), access="out")
    b = Builder(INT)
    first = [b.iota(4, int32), const(7, int32, 4), const(-1, int32)]
    with b.loop(low, high, 3, *first) as loop:
        p, q, r = loop.carried
        lane = b.let("extract", p, const(2, int32))
        loop.yields(q, b.let("add", p, b.splat(loop.var, 4)), lane)
        b.let("add", r, lane)
    for k, value in enumerate(loop.results):
        vector = b.splat(value, 4) if k == 2 else value
        b.store(y, 4 * k, b.cast(vector, float32), alignment=16)
    seen = np.empty(12, np.float32)
    on_host(b.kernel("ranged", [y, low, high], threads=1))(seen, *bounds)
    p, q, r = np.arange(4), np.full(4, 7), -1
    for i in range(*bounds, 3):
        p, q, r = q, p + i, p[2]
    assert seen.tolist() == [*p, *q, *[r] * 4]


@needs_gxx
def test_lanes_that_are_masked_off_are_neither_read_nor_written(on_host):
    """They read as zero and what they would overwrite is kept; for every alignment."""
    buffers, b = [], Builder(INT)
    for dtype in ALL:
        for lanes in (1, 2, 8, 16):
            name = f"{dtype.name}_{lanes}_"
            x = Buffer(f"x_{name}", dtype, N)
            y = Buffer(f"y_{name}", dtype, N, access="out")
            z = Buffer(f"z_{name}", dtype, N, access="out")
            buffers += [(dtype, lanes, x, y, z)]
            for which, alignment in enumerate((0, 4, 8, 16)):
                for flag in range(2):
                    at = (2 * which + flag) * lanes
                    mask = b.mask_below(N, lanes)
                    if flag:
                        mask = b.splat(b.let("less", const(3, int32), N), lanes)
                    value = b.load(x, at, lanes, mask, alignment)
                    b.store(y, at, value, None, alignment=alignment)
                    b.store(z, at, value, mask, alignment=alignment)
    kernel = b.kernel("masked", [q for p in buffers for q in p[2:]] + [N], threads=1)
    run = on_host(kernel)
    for live in (0, 1, 3, 4, 5, 16):
        arrays = []
        for dtype, lanes, *_ in buffers:
            ones = np.ones(8 * lanes, dtype.numpy)
            arrays += [ones, ones.copy(), np.zeros_like(ones)]
        run(*arrays, live)
        for k, (_, lanes, *_) in enumerate(buffers):
            below = np.arange(lanes) < live
            want = np.tile([below, np.full(lanes, live > 3)], (4, 1)).ravel()
            assert np.array_equal(arrays[3 * k + 1] != 0, want)
            assert np.array_equal(arrays[3 * k + 2] != 0, want)


@needs_gxx
@pytest.mark.parametrize("space", ["register", "stack", "shared"])
def test_scratch_memory_holds_every_type_in_scalars_and_vectors(tmp_path, space):
    """Halves in registers are packed: one is put beside the other, and cut out."""
    kernels = {}
    for dtype in ALL:
        x = Buffer("x", dtype, N)
        y = Buffer("y", dtype, N, access="out")
        b = Builder(INT)
        with b.loop(0, 2, 1, unroll=2) as loop:  # the same memory in both turns
            room = b.alloc("room", dtype, 9, space)
            with b.branch(b.let("equal", loop.var, const(0, int32))):
                for k in range(9):
                    b.store(room, k, b.load(x, k))
                vector = b.load(room, 4, 4, alignment=8)
                b.store(room, 0, vector, alignment=8)
                b.store(room, 5, b.load(room, 2, 2))
            with b.loop(0, 9, 1, unroll=9) as inner:
                b.store(y, inner.var, b.load(room, inner.var))
        kernels[f"scratch_{dtype.name}"] = b.kernel("scratch", [x, y, N], threads=1)
        verify(kernels[f"scratch_{dtype.name}"], "cuda")
    run = gpu_host.load(together(kernels), tmp_path)
    for dtype in ALL:
        array = (np.arange(9) * 37 % 5).astype(dtype.numpy)
        seen = np.empty_like(array)
        run(f"scratch_{dtype.name}", 1, 1, array, seen, 9)
        want = array.copy()
        want[:4] = want[4:8]
        want[5:7] = want[2:4]
        assert seen.tolist() == want.tolist()


UGLY = [0.0, -0.0, 1 / 3, 5e-324, 1e-45, 6e-8, 3.4e38, 1e300, np.inf, -np.inf, np.nan]


def constants_of(dtype):
    """Return bounds, denormals, both zeros, infinities, NaN, where a type has them."""
    if dtype.kind == "float":
        return UGLY
    ends = [-1, 7] if dtype.signed else [7]
    return [0, *ends, dtype.smallest, dtype.largest] if dtype.kind == "int" else [0, 1]


@needs_gxx
def test_constants_are_exact(tmp_path):
    """Of every type, as scalars and in pairs."""
    kernels = {}
    for dtype in ALL:
        y = Buffer("y", dtype, N, access="out")
        b = Builder(INT)
        for k, value in enumerate(constants_of(dtype)):
            b.store(y, 3 * k, const(value, dtype))
            b.store(y, 3 * k + 1, const(value, dtype, 2))
        kernels[f"constants_{dtype.name}"] = b.kernel("k", [y, N], threads=1)
    run = gpu_host.load(together(kernels), tmp_path)
    for dtype in ALL:
        values = constants_of(dtype)
        seen = np.empty(3 * len(values), dtype.numpy)
        run(f"constants_{dtype.name}", 1, 1, seen, 1)
        want = np.repeat(gpu_cases.rounded(values, dtype), 3)
        kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.bytes]
        nan = np.repeat([value != value for value in values], 3)  # noqa: PLR0124
        assert np.array_equal(seen.view(kind)[~nan], want.view(kind)[~nan])
        assert np.isnan(gpu_cases.valued(seen, dtype)[nan]).all()


@needs_gxx
def test_indices_of_64_bits_and_scalars_by_value(on_host):
    """An int64 builder, and a runtime scalar of each type."""
    scalars = [Var("a", typed(float64)), Var("b", typed(int64)), Var("c", typed(bool_))]
    y, n = Buffer("y", float64, Var("n", typed(int64)), access="out"), index(3)
    b = Builder()
    at = b.at("multiply", b.at("add", b.at("multiply", b.block(), 1), b.thread()), 1)
    with b.branch(b.let("less", at, n)):
        sum_ = b.let("add", scalars[0], b.cast(scalars[1], float64))
        b.store(y, at, b.let("where", scalars[2], sum_, const(0.0, float64)))
    kernel = b.kernel("scaled", [y, *scalars, y.extent], threads=1)
    assert "double a, long long b, bool c, long long n" in emit(kernel)
    import ctypes

    seen = np.full(4, 9.0)
    given = ctypes.c_double(0.5), ctypes.c_longlong(2**40), ctypes.c_bool(True)
    on_host(kernel)(seen, *given, ctypes.c_longlong(3), blocks=4)
    assert seen.tolist() == [2**40 + 0.5] * 3 + [9.0]


def test_halves_widen_once_however_often_they_are_used():
    """Also where a cast and an operation want the same lanes."""
    for dtype in HALVES:
        kernel = gpu_cases.elementwise(
            lambda b, x: b.let(
                "add", b.cast(x, float32), b.cast(b.let("multiply", x, x), float32)
            ),
            [dtype],
            float32,
            2,
        )
        name = "f16" if dtype is float16 else "bf16"
        text = emit(kernel)
        assert text[text.index("#line") :].count(f" {name}_low(") == 2
        assert (" f16_low(" in text) == (dtype is float16)  # no helper it does not call


def test_a_loop_ends_by_what_it_carries_itself(on_host):
    """The flag of the turn that ends, not of the one that would follow."""
    x, y = Buffer("x", float32, N), Buffer("y", float32, N, access="out")
    b = Builder(INT)
    thread = b.thread()
    last = b.load(x, thread)
    start = (const(0, float32), const(False, bool_))
    with b.loop(0, 100, 1, *start) as loop:
        held, done = loop.carried
        more = b.let("add", held, const(1, float32))
        loop.yields(more, b.let("greater_equal", more, last), until=done)
    b.store(y, thread, loop.results[0])
    run = on_host(b.kernel("ending", (x, y, N), threads=4))
    x = np.array([-3, 1, 7, 1000], np.float32)
    y = np.zeros(4, np.float32)
    run(x, y, 4)
    assert y.tolist() == [2, 2, 8, 100]

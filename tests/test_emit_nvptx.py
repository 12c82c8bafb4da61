"""Loop kernels as LLVM IR for a GPU: run on the host, compiled for GPUs."""

import gpu_cases
import numpy as np
import nvptx_host
import pytest
from gpu_cases import COUNT, THREADS
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from programs import blocks

import steelyard_kernels.array as xp
from steelyard_device import cubin, nvptx, nvrtc
from steelyard_kernels import kernel, library
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.dtypes import (
    ALL,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
)
from steelyard_kernels.emit.nvptx import emit
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import INDEX, Buffer, Var, typed
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.strategies import lower

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")

ARCH = "sm_90a"
INT = typed(int32)
N = Var("n", INT)
CASES = gpu_cases.everything(1)  # vectors are those of `test_ops`
NAMES = [case.name for case in CASES]


@pytest.fixture(scope="module")
def texts():
    """Emit every case."""
    return [emit(case.kernel, entry=case.name) for case in CASES]


def resources(kernel, arch=ARCH):
    """Verify, emit and compile a kernel; return what its cubin says of it."""
    verify(kernel, "cuda")
    return cubin.read(nvptx.compile(emit(kernel), arch).cubin)["kernel"]


def pointwise(function, *specs, lanes=4, unroll=1, registers=0):
    """Lower a library kernel under these knobs."""
    program = function.program(*specs)
    axes = nest_of(program).axes
    schedule = blocks(lanes, unroll, 128, axes, registers=registers)
    return lower(program, schedule, GPUS[ARCH]).kernel


LINE = ((1 << 20,), "float32")


def test_the_text_of_copy_and_adam_is_golden(golden):
    """One guarded vector; what is left; runtime scalars by value."""
    golden(emit(pointwise(library.copy, LINE), entry="copy"), "copy")
    adam = pointwise(library.adam, *[LINE] * 3)
    golden(emit(adam, entry="adam"), "adam")


def test_operations_give_what_numpy_says(texts):
    """The same text, on this machine; special values."""
    run = nvptx_host.load(texts, NAMES)
    wrong = {}
    for case in CASES:
        seen = np.full(len(case.expected), 7, case.dtype.numpy)
        blocks = -(-COUNT // case.per_thread // THREADS)
        run(case.name, blocks, THREADS, *case.arrays, seen, COUNT)
        if missed := gpu_cases.misses(case, seen):
            wrong[case.name] = missed
    assert wrong == {}


def test_operations_compile_without_local_memory(texts):
    """No frame, no spills, nothing that LLVM's PTX cannot select.

    But for angles that are large: a function of their own takes a lane after another.
    """
    made = cubin.read(nvptx.compile(nvptx_host.joined(texts), ARCH).cubin)
    assert set(made) == set(NAMES)
    framed = {name for name, r in made.items() if r.stack or r.local_loads}
    assert {name for name in framed if not name.startswith(("sin_", "cos_"))} == set()


@pytest.mark.parametrize("arch", sorted({*nvrtc.ARCHITECTURES} - {ARCH}))
def test_operations_become_ptx_of_every_architecture(texts, arch):
    """LLVM ends the process over what it cannot select: this one goes on."""
    ptx = nvptx.assembly(nvptx_host.joined(texts), arch)
    assert ptx.count(".entry") == len(CASES)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_sixteen_bytes_are_one_instruction(dtype, masked):
    """Of every type, with and without one condition for the whole vector."""
    lanes = 16 // dtype.bytes
    x, y = Buffer("x", dtype, N), Buffer("y", dtype, N, access="out")
    b = Builder(INT)
    at = b.at("multiply", b.thread(), lanes)
    mask = b.splat(b.let("less", at, N), lanes) if masked else None
    b.store(y, at, b.load(x, at, lanes, mask, 16), mask, alignment=16)
    seen = resources(b.kernel("kernel", [x, y, N], threads=32))
    assert (seen.loads_128, seen.stores_128) == (1, 1)
    assert (seen.count("LDG"), seen.count("STG")) == (1, 1)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_halves_round_two_at_a_time(dtype):
    """`cvt.rn.f16x2.f32` and its like for bfloat16."""
    kernel = gpu_cases.elementwise(lambda b, x: b.let("add", x, x), [dtype], dtype, 8)
    name = {float16: "f16x2", bfloat16: "bf16x2"}[dtype]
    assert nvptx.assembly(emit(kernel), ARCH).count(f"cvt.rn.{name}.f32") == 4


def turns(count, unroll, dtype=float16):
    """Make y = 3 x kept in registers in between, and the sum of all of y behind it."""
    x, y = Buffer("x", dtype, N), Buffer("y", dtype, N, access="out")
    total = Buffer("total", float32, N, access="out")
    b = Builder(INT)
    kept = b.alloc("kept", dtype, 8 * count, "register")
    base = b.at("multiply", b.thread(), 8 * count)
    with b.loop(0, count, 1, unroll=unroll) as loop:
        at = b.at("multiply", loop.var, 8)
        value = b.load(x, b.at("add", base, at), 8, alignment=16)
        b.store(kept, at, value, alignment=16)
    with b.loop(0, count, 1, const(0.0, float32), unroll=unroll) as loop:
        (carried,) = loop.carried
        at = b.at("multiply", loop.var, 8)
        value = b.load(kept, at, 8, alignment=16)
        value = b.let("multiply", value, const(3.0, dtype, 8))
        b.store(y, b.at("add", base, at), value, alignment=16)
        with b.loop(0, 2, 1, carried, unroll=unroll and 2) as inner:
            part = b.let("reduce_add", b.cast(value, float32))
            inner.yields(b.let("add", inner.carried[0], part))
        loop.yields(inner.results[0])
    b.store(total, b.thread(), loop.results[0])
    return b.kernel("kernel", [x, y, total, N], threads=32)


@pytest.mark.parametrize("dtype", ALL[:4], ids=str)
def test_register_buffers_become_registers(dtype):
    """Loops over them are spelled out; what lay in the buffer is read only once."""
    seen = resources(turns(5, 5, dtype))
    assert (seen.stack, seen.local_loads) == (0, 0)
    assert seen.loads_128 == seen.stores_128 == 5 * dtype.bytes // 2


def branches(count, unroll):
    """Make y = x where it is below zero, else 2 x + i: all that a turn may hold."""
    x, y = Buffer("x", int32, N), Buffer("y", int32, N, access="inout")
    b = Builder(INT)
    base = b.at("multiply", b.thread(), count)
    with b.loop(0, count, 1, b.number(0), unroll=unroll) as loop:
        kept = b.alloc("kept", int32, 1, "register")
        at = b.at("add", base, loop.var)
        inside = b.let("less", at, N)
        b.store(kept, 0, b.load(x, at, 1, inside))
        value = b.load(kept, 0)
        with b.branch(b.let("greater_equal", value, b.number(0))) as side:
            twice = b.let("add", value, value)
            side.gives(b.let("add", twice, loop.var))
            side.otherwise()
            side.gives(value)
        b.store(y, at, side.results[0], inside)
        loop.yields(b.let("add", loop.carried[0], side.results[0]))
    last = b.let("equal", b.thread(), b.number(31))
    b.store(y, 0, loop.results[0], last)
    return b.kernel("kernel", [x, y, N], threads=32)


@given(st.integers(0, 4), st.integers(0, 128))
def test_all_that_a_turn_may_hold_is_spelled_out(count, extent):
    """Branches with results, masks, buffers of the loop's own: as if it were rolled."""
    x = np.random.default_rng(extent).integers(-99, 99, extent).astype(np.int32)
    results = []
    for unroll in (4, 0):
        kernel, y = branches(count, unroll), np.zeros(max(extent, 1), np.int32)
        verify(kernel, "cuda")
        run = nvptx_host.load([emit(kernel)], ["kernel"])
        run("kernel", 1, 32, x, y, extent)
        results.append(y)
    assert np.array_equal(*results)
    shown = slice(1, min(extent, 32 * count))
    turn = np.arange(extent) % max(count, 1)
    assert np.array_equal(y[shown], np.where(x < 0, x, 2 * x + turn)[shown])


def test_a_loop_that_shall_stay_rolled_does():
    """`#pragma unroll 1` of the last block's vectors, as PTX says it."""
    kernel = pointwise(library.copy, LINE, unroll=4)
    assert '.pragma "nounroll"' in nvptx.assembly(emit(kernel), ARCH)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_values_of_every_type_change_lanes(dtype):
    """By words of 32 bits: two for the wide ones."""
    x, y = Buffer("x", dtype, N), Buffer("y", dtype, N, access="out")
    for index in (INT, INDEX):
        b = Builder(index)
        value = b.load(x, b.thread())
        for op in ("shuffle_xor", "shuffle_down"):
            value = b.let(op, value, b.number(16))
        b.store(y, b.thread(), value)
        seen = resources(b.kernel("kernel", [x, y, N], threads=32))
        assert seen.count("SHFL") == (4 if dtype.bytes == 8 else 2)


def test_a_block_adds_up_by_shuffles_a_barrier_and_shared_memory():
    """One barrier; 16 bytes of shared memory are read at once."""
    seen = resources(gpu_cases.block_sums(), "sm_80")
    assert (seen.count("SHFL"), seen.count("BAR"), seen.shared) == (5, 1, 16)
    assert seen.count("LDS") == 1


def test_a_schedule_bounds_threads_and_registers():
    """As __launch_bounds__ and __maxnreg__ do."""
    free = resources(pointwise(library.adam, *[LINE] * 3))
    few = resources(pointwise(library.adam, *[LINE] * 3, registers=24))
    assert (free.max_threads, few.max_threads) == (128, 128)
    assert few.registers <= 24 < free.registers


def test_blocks_that_a_multiprocessor_holds_are_told():
    """In PTX, for ptxas; none are where the schedule leaves them to it."""
    kernel = pointwise(library.copy, LINE)
    told = nvptx.assembly(emit(replace(kernel, resident=3)), ARCH)
    assert ".minnctapersm 3" in told
    assert ".minnctapersm" not in nvptx.assembly(emit(kernel), ARCH)


def test_scalars_come_by_value_and_a_bool_as_a_byte():
    """Every type that a runtime scalar can have, and names that are not ASCII."""
    flag, number = Var("λ", typed(bool_)), Var("s", typed(float64))
    whole, y = Var("k", typed(int64)), Buffer("y", float64, N, access="out")
    b = Builder(INT)
    chosen = b.let("where", flag, number, b.cast(whole, float64))
    b.store(y, b.thread(), chosen)
    kernel = b.kernel("kernel", [y, flag, number, whole, N], threads=32)
    assert resources(kernel).count("STG") == 1
    seen = np.zeros(32)
    run = nvptx_host.load([emit(kernel)], ["kernel"])
    for choice in (True, False):
        run("kernel", 1, 32, seen, choice, 2.5, np.int64(7), 32)
        assert np.all(seen == (2.5 if choice else 7))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_kernels_of_functions_build(dtype):
    """A row's softmax, and a sum of what is made of exp, log, sines and erf."""

    def functions(x):
        return xp.tanh(x) + xp.softplus(x) * xp.erf_inv(x) + xp.sin(x) * xp.expm1(x)

    for one, shape in ((library.softmax, (64, 1000)), (kernel(functions), (999,))):
        made = one.build((shape, dtype), target=f"nvptx:{ARCH}")
        assert isinstance(made, Artifact), made


def test_what_only_nvrtc_builds_is_refused():
    """The sentence says who builds it."""
    with pytest.raises(Unsupported, match="build this kernel with NVRTC"):
        emit(gpu_cases.staged())
    b = Builder()
    with b.parallel(4, 1):
        pass
    with pytest.raises(Unsupported, match="a schedule made for cuda"):
        emit(b.kernel("kernel", [], threads=32))

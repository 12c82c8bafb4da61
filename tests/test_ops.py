"""The table of elementwise operations: a row is all that an operation needs."""

import shutil
from functools import cache
from itertools import product

import gpu_cases
import gpu_host
import numpy as np
import nvptx_host
import pytest
import simt
from gpu_cases import COUNT, THREADS, Case, numbers
from gradients import check

from steelyard_device import cubin, nvrtc
from steelyard_device import nvptx as from_ir
from steelyard_kernels import array as xp
from steelyard_kernels import cost, kernel, reference
from steelyard_kernels.dtypes import (
    ALL,
    HALVES,
    INTEGERS,
    STORED,
    bool_,
    float16,
    float32,
    float64,
    rounded,
)
from steelyard_kernels.emit import cuda, nvptx
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import printing
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import Cost, Op
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.targets import device, parse

ROW = Op(
    "roots",
    2,
    "Return the sum of two roots.",
    lambda a, b: np.sqrt(abs(a)) + np.sqrt(abs(b)),
    gradient=(
        lambda xp, g, y, a, b: g * (0.5 / xp.sqrt(a)),
        lambda xp, g, y, a, b: g * (0.5 / xp.sqrt(b)),
    ),
    cost=Cost(10, 6, (50.0, 30.0), (160.0, 80.0)),
    decompose=lambda a, b: abs(a).let("sqrt") + abs(b).let("sqrt"),
)


@pytest.fixture
def roots(monkeypatch):
    """Give a kernel of an operation that only this file knows."""
    monkeypatch.setitem(OPERATIONS, ROW.name, ROW)

    @kernel
    def sum_of_roots(x, y):
        return xp.roots(x, y)

    return sum_of_roots


def test_a_row_is_all_that_an_operation_needs(roots):
    """It is called, computed, printed, differentiated and counted."""
    x, y = np.random.default_rng(1).normal(0, 1, (2, 3000)).astype(np.float32)
    program = roots.program(x, y)
    (want,) = reference.evaluate(program, [x, y]).values()
    np.testing.assert_allclose(roots(x, y), want, rtol=1e-6)
    assert "= roots(" in printing.text(program)
    assert cost.operations(program) == x.size
    check(lambda a, b: xp.sum(xp.roots(a, b)), *np.ones((2, 4)) / 3)
    assert xp.roots.__doc__ == ROW.doc
    assert "roots" in dir(xp)


def test_its_cost_is_what_schedules_are_ranked_by(roots, monkeypatch):
    """A row that costs more makes a loop of it predicted to be slower."""

    @kernel
    def looped(x):
        return xp.fori_loop(0, 100, lambda _, y: xp.roots(y, x), x)

    def predicted(target):
        program = looped.program(np.ones(64, np.float32))
        return min(
            each[1].total for each in strategies.rank(program, device(parse(target)))
        )

    del roots
    before = [predicted(target) for target in ("cpu", "cuda:sm_90a")]
    slow = Op(**{name: getattr(ROW, name) for name in Op.__slots__} | {"cost": SLOW})
    monkeypatch.setitem(OPERATIONS, "roots", slow)
    after = [predicted(target) for target in ("cpu", "cuda:sm_90a")]
    assert all(b > 1.5 * a for a, b in zip(before, after, strict=True))


SLOW = Cost(220, 140, (480.0, 120.0), (1560.0, 540.0))


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
def test_every_emitter_spells_what_it_is_made_of(roots, dtype, tmp_path):
    """As loop IR, as CUDA C++ and as LLVM IR for GPUs, all run on the host."""
    del roots
    case = gpu_cases.op_case("roots", 4, dtype, ROW.oracle, [dtype] * 2, ulps=2)
    seen = np.full((3, COUNT), 7, dtype.numpy)
    blocks = -(-COUNT // case.per_thread // THREADS)
    given = {f"x{k}": array for k, array in enumerate(case.arrays)}
    simt.run(case.kernel, {**given, "y": seen[0], "n": COUNT}, blocks)
    run = nvptx_host.load([nvptx.emit(case.kernel, entry="roots")], ["roots"])
    run("roots", blocks, THREADS, *case.arrays, seen[1], COUNT)
    rows = seen[:2]
    if shutil.which("g++"):
        text = cuda.joined([("roots", cuda.emit(case.kernel))])
        run = gpu_host.load(text, tmp_path)
        run("roots", blocks, THREADS, *case.arrays, seen[2], COUNT)
        rows = seen
    assert [gpu_cases.misses(case, row) for row in rows] == [0] * len(rows)


def test_a_name_without_a_row_is_no_function():
    """Neither are operations that only the loop IR has."""
    for name in ("roots", "fma", "cast"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(xp, name)


def test_as_many_operands_as_the_row_has():
    """In one sentence."""

    @kernel
    def three(x):
        return xp.maximum(x, x, x)

    with pytest.raises(KernelError, match="maximum got 3 operands, expected 2; "):
        three.program(np.ones(3, np.float32))


LOOSE = {  # oracles are no wider, or it is near zero
    *("erf", "erf_inv", "erfc", "lgamma", "digamma", "logaddexp"),
}
WORDS = (*INTEGERS, float32, float64)  # whose bits are each other's
ROWS = [
    row
    for row in OPERATIONS.values()
    if not row.hidden and row.name not in LOOSE | {"bitcast"}
]


def operands(dtype):
    """Return two arrays of a dtype: every pair of edges, then random numbers."""
    a, b = (numbers(dtype, seed) for seed in (0, 1))
    edges = [dtype.smallest, dtype.largest, 0, 1]
    if dtype.kind == "float":
        edges += [np.nan, np.inf, -np.inf, -0.0, 0.5, 2.0**dtype.least, -1.5]
    if dtype.kind != "bool":
        edges += [2, 3, 7, 8 * dtype.bytes - 1, 8 * dtype.bytes]
        edges += [-1, -2, -7] if dtype.signed else []
    sides = zip(*product(edges, edges), strict=True)
    for array, side in zip((a, b), sides, strict=True):
        array[: len(side)] = [dtype.numpy.type(x) for x in side]
    return a, b


def expected(row, dtype, a, b):
    """Return what NumPy says of a row's operands; functions are rounded once."""
    target = bool_ if row.result == "bool" else dtype
    carried = np.longdouble if row.ulps[0] else np.float64
    if dtype in {float32, float64} and not row.ulps[0]:
        carried = dtype.numpy
    given = [a, b, b][: row.arity]
    if dtype.kind == "float":
        given = [x.astype(carried) for x in given]
    if row.name == "where":
        given = [given[0] != given[1], *given[:2]]
    with np.errstate(all="ignore"):
        found = np.asarray(row.evaluate(dtype, *given))
        if found.dtype == np.longdouble:
            found = found.astype(np.float64)
        ulps = 2 + int(max(row.ulps)) if max(row.ulps) else 0
        ulps = min(ulps, 1) if dtype in HALVES else ulps
        return Case(row.name, None, (a, b), target, rounded(found, target), ulps)


@cache
def table(dtype):
    """Return a kernel of all rows of a dtype and of casts to all, and what each gives."""
    a, b = operands(dtype)
    rows = [
        row
        for row in ROWS
        if dtype not in STORED
        and dtype.kind in row.kinds
        and (not row.only or dtype in row.only)
    ]
    cases = {row.name: expected(row, dtype, a, b) for row in rows}
    for to in ALL:
        cases[f"cast_{to}"] = Case(to.name, None, (a,), to, rounded(a, to))
    words = [to for to in WORDS if dtype in WORDS and to.bytes == dtype.bytes]
    for to in words:
        cases[f"bits_{to}"] = Case(to.name, None, (a,), to, a.view(to.numpy))

    def every(a, b):
        found = {f"cast_{to}": a.astype(to) for to in ALL}
        found |= {f"bits_{to}": xp.bitcast(a, to) for to in words}
        for row in rows:
            given = (a != b, a, b) if row.name == "where" else (a, b)[: row.arity]
            found[row.name] = getattr(xp, row.name)(*given)
        return found

    every.__name__ = f"every_{dtype}"
    return kernel(every), (a, b), cases


def lowered(dtype):
    """Return the table of a dtype for a GPU, and its simplified program."""
    made, arrays, _ = table(dtype)
    program, gpu = simplify(made.program(*arrays)), GPUS["sm_90a"]
    return program, strategies.lower(program, strategies.heuristic(program, gpu), gpu)


def on_cpu(dtype, _folder):
    """Run machine code."""
    made, arrays, _ = table(dtype)
    return made(*arrays)


def on_threads(dtype, _folder):
    """Run the loop kernel of a GPU."""
    program, made = lowered(dtype)
    return simt.launch(program, made, table(dtype)[1])


def on_host(load):
    """Return a run of a GPU's text on this machine, thread after thread."""

    def run(dtype, folder):
        program, made = lowered(dtype)
        values, outputs = simt.arguments(program, made.slots, table(dtype)[1])
        entry = load(made.kernel, folder)
        blocks = -(-values[-1] // made.per_block)
        entry("every", blocks, made.kernel.threads, *values)
        return outputs

    return run


def cuda_host(made, folder):
    """Load CUDA C++ as what it is to a compiler for CPUs."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    return gpu_host.load(cuda.joined([("every", cuda.emit(made))]), folder)


def nvptx_text(made, _folder):
    """Load LLVM IR for GPUs on this machine."""
    return nvptx_host.load([nvptx.emit(made, entry="every")], ["every"])


RUNS = {
    "cpu": on_cpu,
    "simt": on_threads,
    "cuda": on_host(cuda_host),
    "nvptx": on_host(nvptx_text),
}


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_row_is_what_numpy_says_in_every_dtype(run, dtype, tmp_path):
    """At all pairs of edges: zeros, ends, widths, NaN; the texts of GPUs on the host."""
    seen = run(dtype, tmp_path)
    cases = table(dtype)[2]
    assert {name: gpu_cases.misses(cases[name], seen[name]) for name in cases} == (
        dict.fromkeys(cases, 0)
    )


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_row_compiles_for_gpus_in_every_dtype(dtype):
    """By NVRTC and by LLVM, without local memory.

    But for large angles of float64, which NVRTC's library reduces in 40 bytes.
    """
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    kernel = lowered(dtype)[1].kernel
    text = nvptx_host.joined([nvptx.emit(kernel, entry="kernel")])
    for made, stack in (
        (nvrtc.compile(cuda.emit(kernel), "sm_90a"), 40 * (dtype is float64)),
        (from_ir.compile(text, "sm_90a"), 0),
    ):
        (seen,) = cubin.read(made.cubin).values()
        assert seen.stack == stack

"""The table of elementwise operations: a row is all that an operation needs."""

import shutil

import gpu_cases
import gpu_host
import numpy as np
import nvptx_host
import pytest
import simt
from gpu_cases import COUNT, THREADS
from gradients import check

from steelyard_kernels import array as xp
from steelyard_kernels import cost, kernel, reference
from steelyard_kernels.dtypes import bool_, float16, float32, float64, int32, int64
from steelyard_kernels.emit import cuda, nvptx
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import printing
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.ops.row import Cost, Op
from steelyard_kernels.schedule import strategies
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
    decompose=lambda b, *xs: b.let(
        "add", *(b.let("sqrt", b.let("abs", x)) for x in xs)
    ),
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
    seen = np.full((3, COUNT), 7, dtype.numpy_name)
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


LOOSE = {"erf", "erf_inv", "logaddexp"}  # oracles are no wider, or it is near zero
HELD = [row for row in OPERATIONS.values() if row.decompose and row.name not in LOOSE]
TYPES = {"float": (float32, float64), "int": (int32, int64), "bool": (bool_,)}


def held(row):
    """Give a case of a row for each of its dtypes; functions are rounded once."""
    for kind in sorted(row.kinds):
        for dtype in set(TYPES[kind]) & (row.only or set(TYPES[kind])):
            target = bool_ if row.result == "bool" else dtype
            wide = (
                np.longdouble if row.ulps[0] and kind == "float" else dtype.numpy_name
            )

            def expected(*xs, dtype=dtype, wide=wide):
                found = row.evaluate(dtype, *(x.astype(wide) for x in xs))
                return np.asarray(found, np.float64 if dtype.kind == "float" else None)

            ulps = 0 if row.ulps == (0.0, 0.0) else 2 + int(max(row.ulps))
            yield gpu_cases.op_case(
                row.name,
                2,
                dtype,
                expected,
                [dtype] * row.arity,
                target=target,
                ulps=ulps,
            )


CASES = [case for row in HELD for case in held(row)]


@pytest.mark.parametrize("emitter", [cuda, nvptx], ids=["cuda", "nvptx"])
def test_what_rows_are_made_of_is_what_numpy_says_on_gpus(emitter, tmp_path):
    """Every row, in all of its types, on special values; the text is run on the host."""
    names = [case.name for case in CASES]
    if emitter is cuda:
        if not shutil.which("g++"):
            pytest.skip("needs g++")
        text = cuda.joined((case.name, cuda.emit(case.kernel)) for case in CASES)
        run = gpu_host.load(text, tmp_path)
    else:
        texts = [nvptx.emit(case.kernel, entry=case.name) for case in CASES]
        run = nvptx_host.load(texts, names)
    wrong = {}
    for case in CASES:
        seen = np.full(len(case.expected), 7, case.dtype.numpy_name)
        blocks = -(-COUNT // case.per_thread // THREADS)
        run(case.name, blocks, THREADS, *case.arrays, seen, COUNT)
        if missed := gpu_cases.misses(case, seen):
            wrong[case.name] = missed
    assert wrong == {}

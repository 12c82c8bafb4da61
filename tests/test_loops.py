import pickle

from steelyard_kernels.dtypes import bool_, float32, int64
from steelyard_kernels.ir.builder import Builder, const
from steelyard_kernels.ir.loops import INDEX, Buffer, Const, Var, typed
from steelyard_kernels.ir.printing import statement_text, text
from steelyard_kernels.ir.verify import verify

N = Var("n", INDEX)


def row_sums(lanes=16):
    """Sum rows of 37 with a masked tail, and mark the large ones."""
    x = Buffer("x", float32, N, alignment=64)
    y = Buffer("y", float32, N, access="out")
    b = Builder()
    keep = b.alloc("keep", float32, 64)
    with b.parallel(N, chunk=4) as (low, high), b.loop(low, high, 1) as row:
        start = b.at("multiply", row.var, 37)
        with b.loop(0, 32, lanes, const(0.0, float32, lanes)) as loop:
            at = b.at("add", start, loop.var)
            b.prefetch(x, b.at("add", at, 64), locality=2)
            value = b.load(x, at, lanes)
            b.store(keep, loop.var, value)
            loop.yields(b.let("add", loop.carried[0], value))
        mask = b.mask_below(5, lanes)
        tail = b.load(x, b.at("add", start, 32), lanes, mask)
        total = b.let("reduce_add", b.let("add", loop.results[0], tail))
        with b.branch(b.let("greater", total, const(100.0, float32))) as branch:
            branch.gives(const(1.0, float32))
            branch.otherwise()
            branch.gives(b.let("negative", total))
        b.store(y, row.var, branch.results[0])
    return b.kernel("row_sums", [x, y, N])


def test_a_kernel_prints_as_pseudo_code(golden):
    """Every kind of statement reads as one line."""
    kernel = row_sums()
    verify(kernel)
    golden(text(kernel))


def test_effects_and_streaming_stores_print():
    """What only some kernels have prints too."""
    b = Builder()
    y = Buffer("y", float32, Const(64, INDEX), access="out", alignment=64)
    with b.parallel(64, chunk=64, threads=1):
        pass
    b.effect("barrier")
    b.store(y, 0, const(1.5, float32, 16), streaming=True, alignment=64)
    b.store(y, 0, const(1.5, float32, 16), const(value=True, dtype=bool_, lanes=16))
    b.fence()
    assert text(b.kernel("k", [y])).splitlines()[1:] == [
        "    parallel low.1:high.2 in range(0, 64, 64) by 1 threads:",
        "        pass",
        "    barrier()",
        "    y[0] = float32x16(1.5) align 64 streaming",
        "    y[0] = float32x16(1.5) where boolx16(True)",
        "    fence",
    ]


def test_a_type_is_one_object_however_it_is_asked_for():
    """Types compare by identity, after a pickle too."""
    assert typed(float32) is typed(float32, 1)
    assert typed(float32, 16) is pickle.loads(pickle.dumps(typed(float32, 16)))
    assert str(typed(float32, 16)) == "float32x16"


def test_index_arithmetic_folds_what_is_known():
    """Constants fold; adding nothing and multiplying by one are free."""
    b = Builder()
    i = Var("i", INDEX)
    assert b.at("add", 3, 4) == Const(7, INDEX)
    assert b.at("minimum", 3, 4) == Const(3, INDEX)
    assert b.at("add", i, 0) is i
    assert b.at("add", 0, i) is i
    assert b.at("multiply", 1, i) is i
    assert b.at("subtract", i, 0) is i
    assert b.body == []
    assert b.at("subtract", 0, i) is b.body[0].var
    assert statement_text(b.body[0]) == "i.1: int64 = subtract(0, i)"


def test_a_builder_repeats_nothing_that_changes_nothing():
    """A cast to its own dtype and a splat to its own lanes are the value."""
    b = Builder()
    x = Var("x", typed(float32))
    assert b.cast(x, float32) is x
    assert b.splat(x, 1) is x
    assert b.splat(const(2, int64), 8) == const(2, int64, 8)
    assert b.body == []

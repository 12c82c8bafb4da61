"""Each rule has a kernel that breaks it and nothing else."""

import pytest

from steelyard_kernels.dtypes import bool_, float16, float32, float64, int8, int32
from steelyard_kernels.errors import CompilerBug, Unsupported
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import (
    CONDITION,
    INDEX,
    Alloc,
    Buffer,
    Const,
    Effect,
    For,
    If,
    Kernel,
    Let,
    Load,
    Multiply,
    Parallel,
    Prefetch,
    Store,
    Tensor,
    Tile,
    Type,
    Var,
    typed,
)
from steelyard_kernels.ir.printing import text
from steelyard_kernels.ir.verify import RULES, verify

N = Var("n", INDEX)
F = typed(float32)
INT32 = typed(int32)
F16 = typed(float32, 16)
X = Buffer("x", float32, N)
Y = Buffer("y", float32, N, access="out", alignment=64)
ONE = const(1.0, float32)
ONES = const(1.0, float32, 16)
ZERO = index(0)
A = Var("a", F)
ROW = Var("i", INDEX)
TRUE = Const(1, CONDITION)


def loop(*body, carried=(), yields=(), results=(), stop=N, step=1):
    """Make a loop over rows."""
    return For(ROW, ZERO, stop, step, carried, body, yields, results)


def parallel(*body, extent=N, chunk=1, threads=0):
    """Make the outermost loop."""
    low, high = Var("low", INDEX), Var("high", INDEX)
    return Parallel(low, high, extent, chunk, threads, body)


def alloc(space="stack", extent=ZERO):
    """Make scratch memory."""
    return Alloc(Buffer("s", float32, extent, space, access="inout"))


MASK8 = Const(1, typed(bool_, 8))
BROKEN = [
    ("once", [Let(A, "negative", (ONE,)), Let(A, "negative", (ONE,))]),
    ("once", [loop(), loop()]),
    ("once", [Let(Var("x", F), "negative", (ONE,))]),
    ("scope", [Let(A, "negative", (Var("b", F),))]),
    ("scope", [loop(Let(A, "negative", (ONE,))), Store(Y, ZERO, A)]),
    ("scope", [loop(), Store(Y, ROW, ONE)]),
    ("scope", [Let(A, "cast", (Var("n", F),))]),
    ("buffer", [Store(Buffer("z", float32, N, access="out"), ZERO, ONE)]),
    ("buffer", [loop(alloc()), Store(alloc().buffer, ZERO, ONE)]),
    ("known", [Let(A, "cubed", (ONE,))]),
    ("known", [Effect("nap")]),
    ("arity", [Let(A, "negative", (ONE, ONE))]),
    ("arity", [Effect("barrier", (ONE,))]),
    ("index", [Load(A, X, ONE)]),
    ("index", [loop(stop=ONE)]),
    ("index", [Prefetch(X, ONE)]),
    ("index", [parallel(extent=ONE)]),
    ("index", [alloc(extent=ONE)]),
    ("element", [Store(Y, ZERO, const(1.0, float64))]),
    ("element", [Load(Var("a", typed(float64)), X, ZERO)]),
    ("mask", [Store(Y, ZERO, ONES, mask=MASK8)]),
    ("mask", [Load(Var("a", F16), X, ZERO, mask=ONES)]),
    ("type", [Let(Var("a", typed(float32, 3)), "splat", (ONE,))]),
    ("type", [loop(carried=((Var("a", Type(float32)), ONE),))]),
    ("type", [Store(Y, ZERO, const(1.0, float32, 128))]),
    ("written", [Store(X, ZERO, ONE)]),
    ("read", [Load(A, Y, ZERO)]),
    ("streaming", [Store(Y, ZERO, ONES, streaming=True)]),
    ("streaming", [Store(Y, ZERO, ONES, streaming=True, alignment=8)]),
    ("fenced", [Store(Y, ZERO, ONES, streaming=True, alignment=16)]),
    ("alignment", [Store(Y, ZERO, ONES, alignment=24)]),
    ("step", [loop(step=0)]),
    ("step", [parallel(chunk=0)]),
    ("step", [parallel(threads=-1)]),
    ("carried", [loop(carried=((A, ONE),), yields=(), results=(Var("r", F),))]),
    ("carried", [loop(carried=((A, ONE),), yields=(ONE,))]),
    ("carried", [loop(carried=((A, ONES),), yields=(A,), results=(Var("r", F),))]),
    ("branches", [If(TRUE, (), (ONE,), (), (ONES,), (Var("r", F),))]),
    ("branches", [If(TRUE, (), (ONE,))]),
    ("condition", [If(ONE, ())]),
    ("parallel", [loop(parallel())]),
    ("parallel", [parallel(), parallel()]),
    ("space", [alloc("global")]),
    ("space", [alloc("shared")]),
    ("space", [alloc("cellar")]),
    ("stack", [alloc(extent=N)]),
    ("lane", [Let(A, "extract", (ONES, index(16)))]),
    ("lane", [Let(A, "extract", (ONES, N))]),
]


@pytest.mark.parametrize(
    ("rule", "body"), BROKEN, ids=[f"{k}-{rule}" for k, (rule, _) in enumerate(BROKEN)]
)
def test_a_broken_rule_is_said_with_its_node(rule, body):
    """The message is the rule's sentence."""
    with pytest.raises(CompilerBug) as caught:
        verify(Kernel("k", (X, Y, N), tuple(body)))
    assert RULES[rule] in str(caught.value)


def test_every_rule_is_broken_by_some_test():
    """No rule is without its example (a name's and a GPU's are below)."""
    below = {"name", "block", "uniform", *BROKEN_TILES}
    assert {rule for rule, _ in BROKEN} | below == set(RULES)


def held(dtype=float16, space="shared", extent=4096):
    """Make memory of a block."""
    return Buffer(space, dtype, index(extent), space, access="inout", alignment=1024)


def product(sums=64, swizzle=128, factor=None):
    """Make the body of a product of tiles."""
    totals = held(float32, "register", sums)
    factor = factor or held()
    tile = Tile(factor, ZERO, 0, swizzle, across=False, leading=0, stride=1024)
    return Alloc(totals), Alloc(factor), Multiply(totals, (tile,), tile, ZERO)


BROKEN_TILES = {
    "tensor": [
        (Effect("tensor_prefetch", (Tensor("t", "float16", 0, (8,), (), (8,), 128),)),)
    ],
    "tile": [
        product(sums=6),
        product(sums=256),
        product(swizzle=16),
        product(factor=held(int32)),
        product(factor=held(int8)),  # in float32
    ],
    "dynamic": [(Alloc(held(extent=513)),)],
}


@pytest.mark.parametrize(
    ("rule", "body"), [(r, b) for r, every in BROKEN_TILES.items() for b in every]
)
def test_a_broken_rule_of_tiles_is_said(rule, body):
    """Of what only a GPU has; 1,024 bytes are stated."""
    with pytest.raises(CompilerBug) as caught:
        verify(Kernel("k", (), tuple(body), threads=128, shared=1024), "cuda")
    assert RULES[rule] in str(caught.value)


@pytest.mark.parametrize(
    ("target", "threads"), [("cpu", 32), ("cuda", 0), ("cuda", 1025)]
)
def test_only_a_gpu_has_blocks_of_threads(target, threads):
    """A CPU's kernel shares its work in another way."""
    with pytest.raises(CompilerBug, match="has the threads of a block"):
        verify(Kernel("k", (), (), threads=threads), target)


def barrier_kernel(condition):
    """Make a kernel with a barrier behind `condition(builder, shared)`."""
    b = Builder(INT32)
    shared = b.alloc("s", float32, 32, "shared")
    with b.branch(condition(b, shared)):
        b.effect("barrier")
    return b.kernel("k", (X, N), threads=64)


def of_a_loop(b, shared):
    """Return a condition that depends on the thread from a loop's second turn on."""
    with b.loop(0, 4, 1, b.number(0)) as loop:
        loop.yields(b.thread())
    return b.let("less", loop.results[0], b.number(3))


def of_a_side(b, shared):
    """Return a condition of which of two values the thread's number chose."""
    with b.branch(b.let("less", b.thread(), b.number(7))) as branch:
        branch.gives(b.number(1))
        branch.otherwise()
        branch.gives(b.number(2))
    return b.let("less", branch.results[0], b.number(2))


@pytest.mark.parametrize(
    "condition",
    [
        lambda b, s: b.let("less", b.thread(), b.number(3)),
        lambda b, s: b.let("less", b.load(s, b.thread()), ONE),
        lambda b, s: b.let(
            "less", b.let("shuffle_xor", b.load(s, 0), b.number(1)), ONE
        ),
        lambda b, s: b.let(
            "less", b.load(b.alloc("r", float32, 4, "register"), 0), ONE
        ),
        of_a_loop,
        of_a_side,
    ],
)
def test_a_barrier_is_for_all_threads_of_a_block(condition):
    """Behind a condition that depends on the thread it is refused."""
    with pytest.raises(CompilerBug, match="every thread of a block reaches a barrier"):
        verify(barrier_kernel(condition), "cuda")


@pytest.mark.parametrize(
    "condition",
    [
        lambda b, s: b.let("less", b.block(), b.number(3)),
        lambda b, s: b.let("less", b.load(s, 3), ONE),
        lambda b, s: b.let("less", b.load(X, b.block()), ONE),
    ],
)
def test_a_barrier_may_stand_where_the_whole_block_goes(condition):
    """What the block's number or one element decides is the same for its threads."""
    verify(barrier_kernel(condition), "cuda")


def test_a_barrier_in_a_loop_needs_bounds_of_the_block():
    """Threads that turn more often than others would wait for them."""
    b = Builder(INT32)
    with b.loop(0, b.thread(), 1):
        b.effect("barrier")
    with pytest.raises(CompilerBug, match="every thread of a block reaches a barrier"):
        verify(b.kernel("k", (), threads=64), "cuda")


def test_a_kernel_name_is_a_symbol():
    """A name that an assembler would not take is refused."""
    with pytest.raises(CompilerBug, match="ASCII identifier"):
        verify(Kernel("<lambda>", (), ()))


HALF = const(1.0, float16)
MISTYPED = [
    ("add", F, (ONE, ONES)),
    ("add", CONDITION, (TRUE, TRUE)),
    ("add", typed(float64), (ONE, ONE)),
    ("fma", typed(float16), (HALF, HALF, HALF)),
    ("rem", F, (ONE, ONE)),
    ("sqrt", INDEX, (ZERO,)),
    ("less", F, (ONE, ONE)),
    ("less", CONDITION, (ONE, ONES)),
    ("bitwise_and", F, (ONE, ONE)),
    ("where", F, (ONE, ONE, ONE)),
    ("where", F16, (MASK8, ONES, ONES)),
    ("cast", typed(float64, 8), (ONES,)),
    ("splat", typed(float64, 8), (ONE,)),
    ("splat", F16, (const(1.0, float32, 8),)),
    ("extract", F, (ONES, ONE)),
    ("iota", F16, ()),
    ("reduce_add", F16, (ONES,)),
    ("reduce_add", CONDITION, (MASK8,)),
    ("reduce_bitwise_or", F, (ONES,)),
    ("mask_below", F16, (ZERO,)),
    ("mask_below", typed(bool_, 16), (ONE,)),
]


@pytest.mark.parametrize(("op", "result", "args"), MISTYPED)
def test_an_operation_is_typed_by_its_row(op, result, args):
    """The message names the operation and its typing rule."""
    with pytest.raises(CompilerBug, match=f"breaks the rule that {op}: "):
        verify(Kernel("k", (), (Let(Var("a", result), op, args),)))


def test_the_builder_refuses_what_has_no_type():
    """A mistake in a lowering shows where it is made."""
    with pytest.raises(CompilerBug, match=r"add\(float32, float32x16\)"):
        Builder().let("add", ONE, ONES)


def test_what_only_a_gpu_has_is_legal_there_and_unsupported_on_a_cpu():
    """Barriers, shuffles and asynchronous copies."""
    shared = Buffer("s", float16, index(64), "shared", access="inout")
    source = Buffer("x", float16, N)
    body = (
        Alloc(shared),
        Effect("copy_async", (shared, ZERO, source, ZERO, index(8), index(8))),
        Effect("copy_commit"),
        Effect("copy_wait", (ZERO,)),
        Effect("barrier"),
        Let(Var("d", F), "shuffle_xor", (ONE, index(16))),
    )
    verify(Kernel("k", (source, N), body, threads=32), "cuda")
    for statement in body[2:]:
        with pytest.raises(Unsupported, match="does not exist on target cpu"):
            verify(Kernel("k", (source, N), (statement,)))


def test_an_asynchronous_copy_goes_from_global_to_shared():
    """Typing rules hold for effects too."""
    body = (Effect("copy_async", (X, ZERO, X, ZERO, index(8), index(8))),)
    with pytest.raises(CompilerBug, match="copies from a global buffer to a shared"):
        verify(Kernel("k", (X, N), body, threads=32), "cuda")


@pytest.mark.parametrize(
    ("until", "legal"),
    [(const(1, bool_), True), (const(1, bool_, 4), False), (index(1), False)],
)
def test_a_loop_goes_on_until_a_bool_scalar(until, legal):
    """It is seen in the text; anything else breaks the rule of conditions."""
    b = Builder()
    with b.loop(0, 4, 1, index(0)) as loop:
        loop.yields(loop.carried[0], until=until)
    kernel = b.kernel("k", ())
    if legal:
        verify(kernel)
        assert "    until bool(1)\n" in text(kernel)
    else:
        with pytest.raises(CompilerBug, match="what a loop goes on until"):
            verify(kernel)


def test_only_a_cpu_inserts_a_scalar_into_a_lane_that_is_inside():
    """A thread of a GPU has no other lanes, and a vector only so many."""
    b = Builder()
    b.let("insert", const(0, float32, 4), const(1, float32), index(3))
    verify(b.kernel("k", ()))
    with pytest.raises(Unsupported, match="insert does not exist on target cuda"):
        verify(b.kernel("k", (), threads=32), "cuda")
    b.let("insert", const(0, float32, 4), const(1, float32), index(4))
    with pytest.raises(CompilerBug, match="inside the vector"):
        verify(b.kernel("k", ()))

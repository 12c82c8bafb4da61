"""Schedules whose threads walk reduced axes together: texts, choices, what is refused.

That what the recipes offer is right is `test_corpus`'s to say.
"""

import numpy as np
import pytest
import simt
import simt_tiles
from labels import schedule_of

from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.loops import INDEX
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import legality, strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.schedule import Place

H200 = GPUS["sm_90a"]
SIZES = (768, 1024, 4096, 5140, 20480)


def layernorm(rows, width, dtype="float16"):
    """Return the program of bias_layernorm."""
    specs = (((rows, width), dtype), *((((width,), dtype),) * 4))
    return simplify(library.bias_layernorm.program(*specs))


def lowered(program, label):
    """Return a program's kernel under the schedule of a label."""
    made = strategies.lower(program, schedule_of(label), H200)
    verify(made.kernel, "cuda")
    return made


def launched(program, label, arrays):
    """Run a program under the schedule of a label; return its outputs."""
    made = lowered(program, label)
    run = simt_tiles.launch if made.kernel.cluster > 1 else simt.launch
    return run(program, made, arrays).values()


@kernel
def across(x):
    """Reduce what lies a row apart."""
    return xp.sum(x, axis=0), xp.max(x, axis=0)


@kernel
def along(x):
    """Reduce rows, and use what they come to for their elements."""
    off = x - xp.mean(x, axis=-1, keepdims=True)
    return off * xp.rsqrt(xp.var(x, axis=-1, keepdims=True) + 1.0), xp.sum(x, axis=-1)


@kernel
def shares(x):
    """Reduce rows once."""
    return x * xp.sum(x, axis=-1, keepdims=True)


@kernel
def rescaled(x, scale):
    """Overwrite what all of a row read."""
    most = xp.max(x, axis=-1, keepdims=True)
    return {"y": x * scale, "scale": scale * most}


@kernel
def whole(x):
    """Reduce everything."""
    return xp.sum(x)


ALONG = [
    "i:thread4.grid j:v4.r3.thread32.serial",
    "i:thread4.grid j:v4.r1.thread16.serial",
    "i:thread2.grid j:v2.r2.thread64.serial",
    "i:grid j:v4.thread96.serial",
    "i:r2.grid j:v4.r2.thread128.serial",
    "i:grid j:v1.r2.thread32.serial",
    "i:grid j:v4.thread64.serial",
    "i:grid j:v4.r4.thread32.serial blocks3",
    "i:thread4.grid j:v4.r13.thread8.serial blocks2",
    "i:grid j:v4.r2.thread64.serial blocks4",
    "i:grid j:v4.thread64.cluster2.serial",
    "i:grid j:v4.r2.thread32.cluster3.serial",
    "i:r2.grid j:v4.r2.thread64.cluster2.serial",
    "i:grid j:v4.r2.thread64.cluster2.serial blocks4",
]


@pytest.mark.parametrize("label", ALONG)
@pytest.mark.parametrize("width", [60, 388])
def test_rows_by_threads(label, width):
    """Few and many vectors a thread, threads that have none, groups of threads a block."""
    x = np.random.default_rng(1).standard_normal((7, width)).astype(np.float32)
    program = simplify(along.program(x))
    off, total = launched(program, label, [x])
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(
        wide.var(-1, keepdims=True) + 1
    )
    np.testing.assert_allclose(off, expected, atol=2e-6)
    np.testing.assert_allclose(total, wide.sum(-1), atol=2e-5)


@pytest.mark.parametrize(
    "label",
    [
        "i:grid j:v8.r3.thread32.serial hoist-shared blocks8",
        "i:thread4.grid j:v8.r3.thread32.serial hoist-shared blocks2",
        "i:grid j:v8.thread128.serial hoist-shared blocks16",
        "i:grid j:v8.r2.thread64.serial",  # what rows share is read beside vectors
        "i:grid j:v8.r1.thread64.serial",  # in turns
        "i:thread2.grid j:v4.r2.thread32.serial",
        "i:grid j:v8.r2.thread32.cluster2.serial",
        "i:grid j:v8.r1.thread32.cluster2.serial",
        "i:grid j:v8.r1.thread64.cluster2.serial hoist-shared blocks16",
    ],
)
@pytest.mark.parametrize(("rows", "width"), [(35, 531), (40, 679), (35, 700)])
def test_rows_that_begin_anywhere_are_walked_by_whole_vectors(label, rows, width):
    """All of a thread begin as far behind one, which their ends do not fill."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((rows, width)).astype(np.float16)
    vectors = [rng.standard_normal(width).astype(np.float16) for _ in range(4)]
    program = simplify(library.bias_layernorm.program(x, *vectors))
    (found,) = launched(program, label, [x, *vectors])
    bias1, bias2, weight, bias = vectors
    wide = (x.astype(np.float32) + bias1).astype(np.float16).astype(np.float64) + bias2
    wide -= wide.mean(-1, keepdims=True)
    wide /= np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wide * weight + bias, rtol=2e-3, atol=2e-3)


def test_ends_of_rows_are_read_with_what_is_beside_them_unless_the_array_ends_there():
    """One by one their elements would be waited for before what is behind them."""
    label = "i:grid j:v8.r3.thread32.serial blocks8"
    for rows, apart in ((40, False), (35, True)):
        made = lowered(simplify(shares.program(((rows, 531), "float16"))), label)
        assert ("? x[" in emit(made.kernel)) is apart


@pytest.mark.parametrize("blocks", [2, 4])
def test_what_blocks_that_stay_tell_each_other_is_of_one_row(blocks):
    """Nobody writes where another may not have read what was told of the row before."""
    x = np.random.default_rng(7).integers(1, 9, (13, 388)).astype(np.float32)
    program = simplify(shares.program(x))
    label = f"i:grid j:v4.r1.thread64.cluster2.serial blocks{blocks}"
    (found,) = launched(program, label, [x])
    np.testing.assert_array_equal(found, x * x.sum(-1, keepdims=True))


def test_rows_beyond_a_blocks_registers_are_walked_by_its_threads():
    """Rows of 32000 and 33000 halves: no block has all of them, and no thread alone."""
    for width in (32_000, 33_000, 50_257):
        chosen = strategies.heuristic(layernorm(8192, width), H200)
        assert chosen.threads >= 256
        assert chosen.cuts[-1].at(Place.VECTOR) == 8


@pytest.mark.parametrize(
    ("columns", "few"), [(1024, True), (2048, True), (4096, False)]
)
def test_clusters_share_long_columns_where_there_are_few(columns, few):
    """Alone 32 blocks of them would leave most multiprocessors idle, and 128 few.

    All clusters run at once: 2048 columns took 35 us where some began late, else 26.
    """
    program = simplify(across.program(((16384, columns), "float16")))
    chosen = strategies.heuristic(program, H200)
    assert (chosen.cluster > 1) == few
    fit = H200.blocks_resident(chosen.threads, chosen.registers)
    turns = columns // chosen.cuts[0].size
    assert turns <= H200.clusters_resident(chosen.cluster, fit)


@pytest.mark.parametrize(
    ("width", "dtype", "blocks"),
    [(20_001, "float16", 1), (17_001, "float32", 2), (13_001, "float32", 8)],
)
def test_columns_of_long_odd_rows_are_kept_in_shared_memory(width, dtype, blocks):
    """Element by element from the cache LayerNorm took 1.4 to 2.2 times as long there."""
    chosen = strategies.heuristic(layernorm(8192, width, dtype), H200)
    assert (chosen.hoist, chosen.cluster) == (Place.SHARED, blocks)


def test_all_of_an_array_by_one_block():
    """Some turns, and what is left of one."""
    x = np.random.default_rng(3).integers(-9, 9, 10_007).astype(np.int64)
    program = simplify(whole.program(x))
    label = "i:grid j:v2.r2.thread256.serial"
    (total,) = launched(program, label, [x])
    assert total == x.sum()


def test_more_elements_than_an_int32_counts_are_reached_by_int64_indices():
    """The index type follows from the largest array."""
    label = "i:grid j:v8.r3.thread32.serial"
    small, large = (lowered(layernorm(n, 768), label) for n in (8, 2_796_000))
    assert small.slots[-1].code == "i"
    assert large.slots[-1].code == "q"
    assert large.kernel.parameters[-1].type is INDEX


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("i:grid j:v8.r3.thread48.serial", "multiple of 32 up to 1024"),
        ("i:thread2.grid j:v8.r3.thread48.serial", "power of two or a multiple of 32"),
        (
            "i:r2.grid j:v16.r3.thread32.serial",
            "vectors of 16 elements in rows of 1000",
        ),
        ("i:grid j:v16.r3.thread32.serial blocks7", "vectors of 16 elements in rows"),
        ("i:grid j:v8.r3.thread32.serial blocks8", "768 of 1000 elements in a turn"),
        ("i:r2.grid j:v8.r4.thread32.serial blocks8", "one row of a thread at a time"),
        ("i:grid j:v8.r4.thread32.serial hoist-shared", "hoist it with more blocks"),
        ("i:grid j:v8.r4.thread32.serial hoist-stack", "at stack on a cuda"),
        ("i:grid j:v8.r20.thread32.serial", "choose 1 to 16"),
        ("i:v2.grid j:v8.r3.thread32.serial", "vectors along i|along which an array"),
        ("i:grid j:v8.r3.thread32.cluster9.serial", "of 9 blocks; choose 1 to 8"),
        ("i:cluster2.grid j:v8.r4.thread32.serial", "share one loop that is reduced"),
        ("i:grid j:v8.r2.thread32.cluster2.serial blocks8", "no barrier between rows"),
        ("i:grid j:v8.r1.thread64.cluster2.serial blocks7", "choose a multiple"),
    ],
)
def test_a_schedule_that_fits_no_gpu_is_refused(label, message):
    """The error names the knob, what was seen, and what to choose."""
    with pytest.raises(KernelError, match=message):
        lowered(layernorm(8, 1000), label)


def test_what_all_threads_of_a_row_read_is_not_overwritten_without_a_barrier():
    """A warp has none; a block's warps meet before they store."""
    specs = ((5, 256), "float32"), ((5, 1), "float32")
    program = simplify(rescaled.program(*specs))
    with pytest.raises(KernelError, match=r"scale is overwritten.*choose 64 threads"):
        lowered(program, "i:grid j:v4.r2.thread32.serial")
    made = lowered(program, "i:grid j:v4.thread64.serial")
    x = np.random.default_rng(4).standard_normal((5, 256)).astype(np.float32)
    scale = np.arange(5, dtype=np.float32)[:, None]
    found = simt.launch(program, made, [x, scale])
    np.testing.assert_array_equal(found["y"], x * scale)
    np.testing.assert_array_equal(found["scale"], scale * x.max(-1, keepdims=True))


def test_clusters_are_of_gpus_that_have_them_and_overwrite_nothing():
    """What one block overwrites another may still read."""
    program, label = layernorm(8, 1000), "i:grid j:v8.r2.thread64.cluster2.serial"
    with pytest.raises(KernelError, match="which cuda:sm_90a alone has"):
        strategies.lower(program, schedule_of(label), GPUS["sm_80"])
    every = strategies.candidates(layernorm(8192, 33_000), GPUS["sm_80"])
    assert {schedule.cluster for schedule in every} == {1}
    specs = ((5, 256), "float32"), ((5, 1), "float32")
    updated = simplify(rescaled.program(*specs))
    with pytest.raises(KernelError, match="other blocks of a cluster may read"):
        lowered(updated, "i:grid j:v4.thread32.cluster2.serial")


def test_rows_that_no_cluster_can_walk_are_offered_to_none():
    """Totals that run along them, and rows that are overwritten."""

    @kernel
    def running(x):
        return xp.cumulative_sum(x, axis=-1)

    @kernel
    def updated(x):
        return {"x": x - xp.max(x, axis=-1, keepdims=True)}

    for made in (running, updated):
        program = simplify(made.program(((512, 32_768), "float32")))
        for chosen in strategies.candidates(program, H200):
            assert not legality.problem(nest_of(program), chosen, "cuda", aligned=True)


@pytest.mark.parametrize("width", [*SIZES, 33_000])
def test_candidates_are_many_and_legal(width):
    """Every one of bias_layernorm in float16 can be lowered."""
    program = layernorm(8192, width)
    every = strategies.candidates(program, H200)
    assert 64 <= len(every) <= 192
    assert len({each.label for each in every}) == len(every)
    for schedule in every:
        assert not legality.problem(nest_of(program), schedule, "cuda", aligned=True)
    for schedule in every[::17]:
        verify(strategies.lower(program, schedule, H200).kernel, "cuda")


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_threads_of_a_row_grow_with_the_row(arch, dtype):
    """A warp or two a row where rows are short; more where they are long."""
    gpu = GPUS[arch]
    chosen = [
        strategies.heuristic(layernorm(8192, width, dtype), gpu).cuts[-1]
        for width in (768, 4096, 20480)
    ]
    threads = [cut.at(Place.THREAD) for cut in chosen]
    assert threads == sorted(threads)
    assert threads[0] <= 128
    assert threads[-1] >= 128
    assert chosen[0].size >= 768  # all of a row in one turn
    huge = strategies.heuristic(layernorm(64, 400_000, dtype), gpu).cuts[-1]
    assert huge.size < 400_000


@pytest.mark.parametrize("width", [1, 257, 768, 4096, 5140, 20480])
def test_the_heuristic_finds_nearly_the_least_prediction(width):
    """Looking at fewer candidates loses at most a tenth.

    Blocks that stay are among them where rows were seen to gain by them.
    """
    program = layernorm(8192, width)
    chosen = strategies.heuristic(program, H200)
    totals = {
        schedule: prediction.total
        for schedule, prediction in strategies.rank(program, H200)
        if (
            strategies.estimated_registers(program, schedule) <= schedule.registers
            and (chosen.blocks or not schedule.blocks)
        )
        or schedule == chosen
    }
    assert totals[chosen] <= 1.1 * min(totals.values())


@pytest.mark.parametrize("shape", [(4096, 4096), (1 << 24,), (64, 3, 1000)])
def test_threads_share_what_is_reduced(shape):
    """Columns, everything, and an axis in the middle are walked by many threads."""
    axis = None if len(shape) == 1 else len(shape) - 2

    @kernel
    def total(x):
        return xp.sum(x, axis=axis)

    chosen = strategies.heuristic(simplify(total.program((shape, "float32"))), H200)
    reduced = chosen.cuts[-1].at(Place.THREAD)
    assert reduced > 1 if shape[axis or 0] > 8 else reduced == 1


def test_generated_text_of_a_warp_and_of_a_block(golden):
    """Loads first, what is kept in registers, one barrier a reduction or none."""
    program = layernorm(10, 1288)
    warps = lowered(program, "i:thread4.grid j:v8.r6.thread32.serial")
    golden(loops_print.text(warps.kernel), "warp")
    block = loops_print.text(lowered(program, "i:grid j:v8.thread64.serial").kernel)
    golden(block, "block")
    assert block.count("barrier") == 2


def test_registers_and_local_memory_are_as_planned():
    """No stack, and no more registers than allowed, of every thirtieth."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    assert nvrtc
    from steelyard_device import cubin
    from steelyard_device.nvrtc import compile as compile_cuda

    for width in (768, 5140):
        program = layernorm(8192, width)
        every = strategies.candidates(program, H200)
        chosen = strategies.heuristic(program, H200)
        hashes = set()
        for schedule in (*every[::30], chosen):
            made = strategies.lower(program, schedule, H200)
            compiled = compile_cuda(emit(made.kernel), "sm_90a")
            (found,) = cubin.read(compiled.cubin).values()
            estimate = strategies.estimated_registers(program, schedule)
            assert found.stack == 0 or schedule.registers < estimate, schedule.label
            assert found.registers <= made.kernel.registers
            hashes.add(found.code_hash)
        assert len(hashes) >= len(every[::30])


def test_vectors_begin_where_rows_do_that_are_repeated():
    """Rows that are read several times each do not begin as far apart as they are walked."""
    made = kernel(lambda x, v: v @ xp.matrix_transpose(xp.repeat(x, 3, axis=0)))
    rng = np.random.default_rng(6)
    x, v = (rng.standard_normal(shape).astype("float32") for shape in ((9, 9), (9,)))
    program, gpu = simplify(made.program(x, v)), GPUS["sm_90a"]
    for schedule in strategies.candidates(program, gpu):
        lowered = strategies.lower(program, schedule, gpu)
        found = simt.launch(program, lowered, [x, v])["out"]
        np.testing.assert_allclose(found, v @ np.repeat(x, 3, 0).T, 1e-5, 1e-5)


def test_reductions_of_unlike_arrays_share_their_walk():
    """A variance, and what it bends a sum by, were two walks by single threads."""

    @kernel
    def pulled(g, x):
        wide = xp.var(x, axis=1, keepdims=True)
        return xp.sum(g, axis=1, keepdims=True) / (wide + 1), xp.sum(-g, axis=1)

    program = simplify(pulled.program(*[((64, 768), "float32")] * 2))
    assert nest_of(program).extents == (64, 768)

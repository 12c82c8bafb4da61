"""Matrix products by tiles, as far as no GPU is needed."""

import re

import bounds
import numpy as np
import product_programs as programs
import pytest
import simt_tiles
import warp_products
from corpus import compare
from product_programs import H200, drawn, lowered, tiling

from steelyard_device.cuda import tensors
from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.cache import pack, unpack
from steelyard_kernels.building.programs import build
from steelyard_kernels.dtypes import TENSOR, float16, float32
from steelyard_kernels.emit import cuda_warps
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.ir import printing
from steelyard_kernels.ir.builder import index
from steelyard_kernels.ir.loops import Buffer, Multiply, Tile
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.plan.partition import partition
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.targets import device, parse

TARGET = "cuda:sm_90a"


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "numbers"), programs.CASES + programs.EXACT
)
def test_simulated_blocks_agree_with_the_oracle(name, shape, dtype, numbers):
    """Every index, phase and byte count, with tasks in random order."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, dtype, seed=1)
    program, low = lowered(made, arrays, numbers)
    verify(low.kernel, "cuda")
    scalars = {each.name: each.default for each in made.signature.scalars}
    found = simt_tiles.launch(program, low, arrays, scalars)
    for output, near in bounds.expected(program, arrays, scalars).items():
        compare(output, near, found[output])


def test_a_stage_that_is_filled_too_early_is_seen(monkeypatch):
    """The simulation does not pass for want of a wait."""
    arrays = drawn(programs.product, (64, 64, 512), "float16", seed=1)
    program, low = lowered(programs.product, arrays, (1, 64, 2))
    wait = simt_tiles._Block.do_mbarrier_wait

    def hasty(self, buffer, index, parity):
        if not buffer.name.startswith("empty"):
            wait(self, buffer, index, parity)

    monkeypatch.setattr(simt_tiles._Block, "do_mbarrier_wait", hasty)
    with pytest.raises(AssertionError, match="more arrivals than a phase has"):
        simt_tiles.launch(program, low, arrays)


@pytest.mark.parametrize("columns", [32, 96, 128])
@pytest.mark.parametrize("across", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("k", [0, 3])
def test_the_text_of_a_product_by_warps_is_the_product(columns, across, k):
    """Its lanes find their rows in tiles as copies bring them, as the PTX ISA has it."""
    rng, repeats, wide = np.random.default_rng(k), 2, 64 if columns % 64 == 0 else 32
    memory, begin, tiles, factors = np.zeros(1 << 16), 0, [], []
    for place, (turned, count) in enumerate(zip(across, (128, columns), strict=True)):
        chunk = (wide if place else 64) if turned else 64
        factor = rng.standard_normal((count, 16))
        own, deep = np.indices(factor.shape)
        deep = deep + 16 * k
        at = own * 64 + deep
        if turned:
            at = own // chunk * 64 * chunk + deep * chunk + own % chunk
        memory[simt_tiles.swizzled(2 * (begin + at), 2 * chunk) // 2] = factor
        room = Buffer("s", float16, index(1 << 16), "shared")
        first = 16 * k * (chunk if turned else 1)
        form = 2 * chunk, turned, 128 * chunk if turned else 16, 16 * chunk
        tiles += [
            Tile(room, index(begin), first + 4096 * more, *form)
            for more in range(1 if place else repeats)
        ]
        factors.append(factor)
        begin += 1 << 14
    sums = Buffer("sums", float32, index(repeats * columns // 2), "register")
    node = Multiply(sums, tuple(tiles[:repeats]), tiles[repeats], index(1), True)
    line, name, *_ = cuda_warps.multiply(
        node, "sums", [str(2 * tile.index.value) for tile in tiles], "1"
    )
    words = [
        eval(word, {"shared_address": int}) for word in re.split(", ", line[:-2])[1:]
    ]
    names = "rows_0", "rows_1", "columns", "row_inside", "column_inside", "more"
    count = repeats * columns // 2
    found = warp_products.run(
        cuda_warps.helper(name), memory, count, dict(zip(names, words, strict=True))
    )
    row, column = simt_tiles.places(columns)
    for repeat in range(repeats):
        rows = factors[0][64 * repeat : 64 * repeat + 64]
        exact = (rows @ factors[1].T)[row, column]
        own = found[:, repeat * columns // 2 : (repeat + 1) * columns // 2]
        assert np.allclose(own, exact, atol=1e-9)


def test_bulk_copies_know_what_tensor_cores_multiply():
    """By the numbers that the driver has for types, each with its size."""
    assert {dtype.name: dtype.bytes for dtype in TENSOR} == {
        name: size for name, (_, size) in tensors.TYPES.items()
    }


def test_the_kernel_of_the_seed_is_golden(golden):
    """64 x 768 x 768 with a bias: a cluster of four blocks divides the depth."""
    arrays = drawn(programs.bias_relu, (64, 768, 768), "float16", seed=0)
    program = simplify(programs.bias_relu.program(*arrays))
    schedule = strategies.heuristic(program, H200)
    assert schedule.label == (
        "i:mma64.warp1.grid j:mma32.grid k:mma16.r4.pipeline3.cluster4.serial"
    )
    kernel = strategies.lower(program, schedule, H200).kernel
    golden(printing.text(kernel), "loops")
    golden(emit(kernel), "text")


@pytest.mark.parametrize(
    ("name", "shape", "every"),
    [("product", (64, 768, 768), 4), ("bias_relu", (200, 264, 136), 4)],
)
def test_nvrtc_takes_candidates(nvrtc, name, shape, every):
    """In groups, none of which spills."""
    made = getattr(programs, name)
    program = simplify(made.program(*drawn(made, shape, "float16", seed=0)))
    schedules = programs.covering(program)
    assert len(schedules) >= 20
    for resources in programs.built_without_spills(program, schedules[::every]):
        assert resources.tensor_core >= 4


@pytest.mark.parametrize(
    ("name", "shape", "target"),
    [
        ("bias_gelu", (512, 768, 768), "cuda:sm_80"),
        ("linear", (97, 101, 131), "cuda:sm_89"),
        ("bias_gelu", (512, 768, 768), "cuda:sm_120a"),
    ],
)
def test_nvrtc_takes_products_by_warps(nvrtc, name, shape, target):
    """The chosen one and a large one, which spill nothing."""
    made = getattr(programs, name)
    arrays = drawn(made, shape, "bfloat16", seed=0)
    large = tiling(made, arrays, programs.by_warps(1, 96, 2, 2)).schedule
    for schedule in (None, large):
        program = made.program(*arrays)
        built = build(program, schedule, target=target, levels=frozenset())
        assert isinstance(built, Artifact), built.error
        assert built.code.resources.tensor_core >= 8
        assert built.code.spill_stores == 0


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "target"),
    [
        ("product", (1024, 1024, 1024), "float32", "cuda:sm_80"),
        ("bias_relu", (997, 1009, 1013), "float32", "cuda:sm_90a"),
        ("linear", (1024, 1024, 1024), "float64", "cuda:sm_90a"),
        ("linear", (1024, 1024, 1024), "float64", "cuda:sm_120a"),
        ("product", (1024, 1024, 1024), "int32", "cuda:sm_120a"),
        ("window", (28, 64, 64), "float32", "cuda:sm_80"),
    ],
)
def test_nvrtc_takes_products_by_fma(nvrtc, name, shape, dtype, target):
    """The chosen one and a large one, which spill nothing."""
    made, gpu = getattr(programs, name), device(parse(target))
    program = simplify(made.program(*drawn(made, shape, dtype)))
    likely = strategies.rank(program, gpu)
    fits = [each for each, _ in likely if Place.FMA in each.places]
    assert len(fits) >= 24
    assert likely[0][0] in fits or gpu.lanes[1] < 16
    most = max(fits, key=lambda each: strategies.estimated_registers(program, each))
    for schedule in (fits[0], most):
        built = build(program, schedule, target=target, levels=frozenset())
        assert isinstance(built, Artifact), built.error
        assert built.code.spill_stores == 0, schedule.label


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (programs.by_fma(2, 96, 2, split=2), "divides 96 columns among 2 parts"),
        (
            programs.by_fma(1, 288, 2),
            "of 288 columns; choose a multiple of 32 up to 256",
        ),
        (programs.by_fma(4, 128, 2, 2), "registers a thread, 512 threads leave 128"),
        (programs.by_fma(1, 64, 1), "has 1 stages; choose 2 to 10"),
        (programs.by_warps(1, 64, 2), "multiplies tiles by mma.sync, which code for"),
    ],
)
def test_a_tiling_by_fma_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    arrays = drawn(programs.product, (256, 256, 320), "float32")
    with pytest.raises(KernelError, match=said):
        lowered(programs.product, arrays, numbers)


@pytest.mark.parametrize(
    ("made", "dtypes"),
    [
        (lambda x, w: x @ xp.tf32(w), "float32 float32"),  # computed, of one factor
        (programs.softmax.function, "float32 float32"),  # rows of sums
    ],
)
def test_what_threads_do_not_multiply_by_fma_is_walked(made, dtypes):
    """No tiles, and no failure."""
    shapes = (64, 64), (64, 64)
    arrays = [np.zeros(x, d) for x, d in zip(shapes, dtypes.split(), strict=True)]
    program = simplify(kernel(made).program(*arrays))
    assert not strategies.heuristic(program, H200).multiplies_tiles


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (programs.by_warps(1, 48, 2), "tiles of 48 columns; choose a multiple of 32"),
        (programs.by_warps(1, 64, 2, 3), "has 3 times the rows of an instruction"),
        (programs.by_warps(1, 256, 2, 2), "needs 352 registers a thread"),
        ((1, 40, 2), "tiles of 40 columns; choose a multiple of 16 up to 256"),
        ((5, 64, 2), "5 warpgroups; choose 1 to 4"),
        ((1, 64, 2, 3), "divides 64 columns among 3 blocks"),
        ((1, 64, 1, 8), "leaves one of 8 that divide the depth without a step"),
        ((1, 64, 2, 2, 132), "blocks that stay and others that divide"),
        ((1, 64, 1), "has 1 stages; choose 2 to 5"),
        ((2, 256, 5), "bytes of shared memory, a block has 232448"),
        ((4, 256, 2), "registers a thread, 544 threads leave 96"),
    ],
)
def test_a_tiling_that_does_not_fit_says_why(numbers, said):
    """What was seen, and what to choose."""
    arrays = drawn(programs.product, (256, 256, 320), "float16", seed=0)
    with pytest.raises(KernelError, match=said):
        lowered(programs.product, arrays, numbers)


def chosen(made, shapes, target=TARGET, *, aligned=True):
    """Return the schedule that the heuristic chooses."""
    arrays = [np.zeros(shape, "float16") for shape in shapes]
    program = simplify(made.program(*arrays))
    return strategies.heuristic(program, device(parse(target)), aligned=aligned)


def test_what_no_tiling_fits_is_multiplied_by_threads():
    """No failure: the general recipe."""
    shapes = (100, 64), (64, 100), (100, 100)
    assert not chosen(programs.in_place, shapes).multiplies_tiles


def test_what_is_too_deep_to_load_at_once_is_copied_by_those_that_multiply():
    """Rows that begin at odd places, of which bulk copies bring none."""
    schedule = chosen(programs.product, ((64, 10001), (10001, 64)))
    assert "mma64" in schedule.label
    assert ".warp" in schedule.label.rpartition(" ")[2]


@pytest.mark.parametrize("name", list(programs.CONVOLUTIONS))
def test_nvrtc_takes_convolutions(nvrtc, name):
    """By warpgroups where there are some, whose threads copy; they spill nothing."""
    made = getattr(programs, name)
    arrays = drawn(made, (14, 64, 64), "float16", seed=0)
    for target, first in (("cuda:sm_90a", "mma64"), ("cuda:sm_86", "mma16.r")):
        built = build(made.program(*arrays), target=target, levels=frozenset())
        assert isinstance(built, Artifact), built.error
        assert first in built.schedule.label
        assert built.code.resources.tensor_core >= 4
        assert built.code.spill_stores == 0


OTHERS = ("cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_100a", "cuda:sm_120a")


def test_other_targets_multiply_by_warps_and_unaligned_arrays_by_threads():
    """Only NVRTC's sm_90a has wgmma, LLVM none of both, and copies want 16 bytes."""
    shapes = (64, 64), (64, 64)
    assert "mma64" in chosen(programs.product, shapes).label
    for target in OTHERS:
        assert "mma16.r1.warp" in chosen(programs.product, shapes, target).label
        assert not chosen(
            programs.product, shapes, target, aligned=False
        ).multiplies_tiles
    assert not chosen(programs.product, shapes, "nvptx:sm_90a").multiplies_tiles
    assert not chosen(programs.product, shapes, aligned=False).multiplies_tiles
    arrays = [np.zeros(shape, "float16") for shape in shapes]
    schedule = tiling(programs.product, arrays, (1, 64, 1)).schedule
    with pytest.raises(
        KernelError, match="by wgmma, which code for this target has not"
    ):
        strategies.lower(
            programs.product.program(*arrays), schedule, device(parse("cuda:sm_80"))
        )


def test_a_build_is_the_same_after_the_disk(nvrtc):
    """Its tensors and its dynamic memory too."""
    program = programs.linear.program(
        *drawn(programs.linear, (64, 64, 64), "float16", seed=0)
    )
    built = build(program, target=TARGET, levels=frozenset())
    assert isinstance(built, Artifact)
    assert built.shared > 0
    again, _ = unpack(pack(built), program, TARGET)
    assert isinstance(again, Artifact)
    assert (again.slots, again.shared) == (built.slots, built.shared)
    assert again.slots[0].tensor is not None
    assert again.slots[0].tensor.box == (64, 64)


@pytest.mark.parametrize("made", [programs.softmax, programs.layer_norm])
def test_rows_are_reduced_behind_their_product_where_a_tile_holds_them(nvrtc, made):
    """Without spills, and in the registers of the threads that multiplied."""
    program = simplify(made.program(*drawn(made, (4096, 128, 768), "float16")))
    assert partition(program, H200) is None
    some = programs.tiled(program)[::12]
    for resources in programs.built_without_spills(program, some):
        assert resources.tensor_core >= 4
    # No tile's columns, beyond all of them, and too few rows for one tile a block.
    for shape in ((4096, 100, 768), (4096, 768, 768), (128, 128, 768)):
        long = simplify(made.program(*drawn(made, shape, "float16")))
        plan = partition(long, H200)
        assert plan is not None
        assert len(plan.launches) == 2


def test_what_reads_more_of_a_product_than_its_rows_is_another_launch():
    """Along the other axis; or where the product itself is asked for."""
    x, w = drawn(programs.product, (256, 128, 768), "float16")
    for function in (
        lambda x, w: xp.sum((x @ w).astype("float32"), axis=0),
        lambda x, w: (x @ w, xp.max(x @ w, axis=1, keepdims=True) + x[:, :1]),
    ):
        plan = partition(simplify(kernel(function).program(x, w)), H200)
        assert plan is not None
        assert len(plan.launches) >= 2

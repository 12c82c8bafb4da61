"""Programs with a matrix product, with shapes that they are run at and how they are tiled.

Shapes are of the product: rows, columns, depth; of a convolution they are places along
both axes, features out and features in. A tiling is (warpgroups, columns, stages,
blocks that divide the depth, blocks that stay), `by_warps`, or, of what tensor cores do not
multiply, `by_fma`.
"""

from functools import partial

import numpy as np

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.group import build as group
from steelyard_kernels.group.batch import Candidate
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.contraction import product_of
from steelyard_kernels.schedule.cores import FMA, MMA, WGMMA
from steelyard_kernels.schedule.product_tiling import Tiling
from steelyard_kernels.targets import device, parse

H200 = device(parse("cuda:sm_90a"))
RAGGED = (100, 72, 136)


def by_warps(groups, columns, stages, repeats=1, blocks=0, *, split=1):
    """Return a tiling for instructions of warps."""
    return groups, columns, stages, split, blocks, MMA, repeats


def by_fma(groups, columns, stages, repeats=1, blocks=0, *, split=1):
    """Return a tiling for threads that multiply by FMA."""
    return groups, columns, stages, split, blocks, FMA, repeats


def by_threads(groups, columns, stages, blocks=0, *, split=1):
    """Return a tiling for warpgroups that copy what they multiply."""
    return groups, columns, stages, split, blocks, WGMMA, 1, True


def shared(groups, columns, stages, split=1, blocks=0, *, sharing=2):
    """Return a tiling of blocks that share columns."""
    return groups, columns, stages, split, blocks, WGMMA, 1, False, sharing


CASES = [
    ("product", (64, 64, 64), "float16", (1, 64, 1)),  # one step, one tile
    ("product", (64, 64, 256), "bfloat16", (1, 64, 2)),  # a ring
    ("linear", (64, 64, 256), "float16", (1, 64, 4)),  # a stage for each step
    ("product", RAGGED, "float16", (2, 64, 3)),
    ("linear", RAGGED, "bfloat16", (2, 48, 2)),  # chunks of unlike widths
    ("linear", (67, 71, 136), "float16", (1, 32, 2)),  # single columns
    ("linear", (130, 136, 136), "float16", (1, 96, 2, 1, 3)),  # blocks that stay
    ("product", (130, 136, 136), "bfloat16", (2, 64, 2, 1, 2)),
    ("product", (64, 32, 256), "float16", (1, 32, 1, 4)),  # clusters
    ("linear", (64, 96, 248), "bfloat16", (1, 96, 2, 2)),
    ("product", (64, 128, 256), "float16", (1, 128, 2, 2)),  # two chunks of columns
    # Rows that begin at no multiples of 16 bytes: pairs, and single elements.
    ("product", (67, 70, 136), "float16", (1, 64, 3)),
    ("product", (67, 71, 136), "bfloat16", (1, 32, 2, 2)),
    ("linear", (70, 72, 130), "float16", (2, 48, 3)),
    ("linear", (67, 71, 131), "bfloat16", (1, 64, 2, 2)),
    ("product", (64, 96, 200), "float16", (1, 16, 2)),  # rows of 32 bytes
    ("product", (64, 160, 328), "bfloat16", (1, 80, 2, 2)),
    ("of_transposed", (67, 71, 136), "float16", (2, 64, 3)),
    ("bias_relu", RAGGED, "float16", (1, 32, 2, 2)),
    ("bias_relu", RAGGED, "bfloat16", (1, 192, 2)),
    ("bias_gelu", RAGGED, "float16", (1, 64, 2)),
    ("residual", RAGGED, "float16", (1, 96, 2, 1, 2)),
    ("in_place", (64, 96, 72), "float16", (1, 96, 2)),
    ("scaled", RAGGED, "bfloat16", (1, 64, 2)),
    ("in_float32", RAGGED, "float16", (1, 64, 2)),
    ("two_outputs", RAGGED, "float16", (1, 64, 2)),
    ("of_transposed", (104, 72, 136), "float16", (2, 32, 2)),
    ("of_transposed", (104, 72, 136), "bfloat16", (1, 64, 2, 2)),
    ("batched", (72, 40, 72), "float16", (1, 32, 2)),
    ("batched", (72, 40, 72), "float16", (1, 32, 2, 1, 4)),
    ("product", (64, 64, 64), "float16", by_warps(1, 64, 1)),
    ("product", (64, 64, 320), "bfloat16", by_warps(1, 64, 3)),
    ("linear", (130, 72, 320), "float16", by_warps(1, 64, 2, 2)),
    ("product", RAGGED, "float16", by_warps(1, 32, 2, 2)),
    ("linear", RAGGED, "bfloat16", by_warps(2, 48, 3)),
    ("linear", (67, 71, 131), "float16", by_warps(1, 32, 2)),
    ("product", (67, 70, 136), "bfloat16", by_warps(1, 64, 2, 2)),
    ("product", (67, 71, 136), "float16", by_warps(2, 32, 3)),
    ("of_transposed", (104, 72, 136), "float16", by_warps(1, 96, 2, 2)),
    ("of_transposed", (67, 71, 136), "bfloat16", by_warps(4, 32, 2)),
    ("bias_gelu", RAGGED, "float16", by_warps(1, 64, 2, 2)),
    ("residual", (130, 136, 136), "float16", by_warps(1, 64, 3, 1, 3)),
    ("in_place", (128, 96, 72), "float16", by_warps(1, 96, 2, 2)),
    ("linear", RAGGED, "float16", by_warps(2, 16, 3)),
    ("two_outputs", RAGGED, "bfloat16", by_warps(2, 32, 3)),
    ("batched", (72, 40, 72), "float16", by_warps(1, 32, 2, 2)),
    ("linear", (64, 64, 320), "float16", by_warps(1, 32, 2, split=2)),  # in a block
    ("product", (67, 71, 136), "float16", by_warps(1, 96, 1, split=3)),
    ("bias_gelu", (130, 64, 320), "bfloat16", by_warps(1, 64, 2, 2, split=2)),
    ("product", (67, 71, 263), "float16", by_threads(1, 64, 3)),
    ("linear", (130, 71, 331), "bfloat16", by_threads(2, 32, 4)),
    ("product", (130, 136, 136), "bfloat16", by_threads(1, 96, 3, 2)),
    ("of_transposed", (104, 72, 520), "float16", by_threads(1, 64, 3, split=2)),
    # Blocks that share columns.
    ("product", (128, 64, 320), "float16", shared(1, 64, 2)),
    ("linear", (256, 72, 264), "bfloat16", shared(1, 32, 3, 2)),
    ("product", (250, 72, 320), "bfloat16", shared(1, 32, 2, 1, 4, sharing=2)),
    ("linear", (512, 136, 200), "float16", shared(2, 64, 2, 1, 2)),
    ("product", (256, 64, 128), "float16", shared(1, 64, 2, sharing=4)),  # no ring
    ("linear_in_float32", (256, 72, 512), "float8_e4m3fn", shared(1, 64, 2)),
    ("batched", (128, 40, 72), "float16", shared(1, 32, 2)),
    # Sums that are guarded are stored one by one.
    ("padded", RAGGED, "float16", by_threads(1, 64, 3)),
    ("padded", (130, 136, 136), "bfloat16", by_warps(1, 96, 2, 2)),
    # Rows that are reduced behind the product.
    ("softmax", (100, 64, 136), "float16", (1, 64, 2)),
    ("softmax", (130, 96, 136), "bfloat16", (2, 96, 2, 1, 2)),
    ("layer_norm", (100, 128, 136), "float16", (1, 128, 2)),
    ("layer_norm", (70, 32, 136), "float16", by_warps(1, 32, 2)),
    ("softmax", (100, 96, 200), "bfloat16", by_threads(1, 96, 3)),
    ("layer_norm", (200, 64, 264), "bfloat16", by_warps(1, 64, 2, 2)),
    ("weighed", (100, 64, 136), "float16", (1, 64, 2)),
    ("weighed", (100, 96, 200), "bfloat16", by_threads(1, 96, 3)),
    ("weighed", (70, 32, 136), "float16", by_warps(1, 32, 2)),
    # Elements of one byte and of four, along the depth in shared memory.
    *[
        (name, shape, dtype, numbers)
        for place, (name, dtype) in enumerate(
            (
                ("linear_in_float32", "float8_e4m3fn"),
                ("in_float32", "float8_e5m2"),  # turned by the threads that copy
                ("linear_in_float32", "float8_e4m3fn float8_e5m2"),
                ("linear_in_int32", "int8"),
                ("in_int32", "uint8"),
                ("linear_in_int32", "uint8 int8"),
                ("linear", "int8"),  # which wraps
                ("product", "uint8"),
                ("linear_as_tf32", "float32"),
                ("as_tf32", "float32"),
            )
        )
        for shape, numbers in (
            ((130, 72, 272), (2, 64, 3)),
            ((70, 64, 640), (1, 64, 3, 2)),
            ((67, 71, 135), by_warps(1, 32, 2, 2)),
            ((130, 136, 272), by_warps(1, 64, 2, split=2)),
        )[place % 2 :: 2]
    ],
    ("linear_in_float32", (200, 136, 512), "float8_e4m3fn", (1, 64, 2, 1, 3)),
    ("linear_in_float32", (130, 136, 272), "float8_e5m2", (2, 128, 2)),
    ("linear_as_tf32", (130, 136, 388), "float32", (2, 32, 2, 4)),
    ("linear_in_int32", (130, 132, 260), "int8", (1, 64, 3)),  # four at a time
    ("window", (9, 40, 16), "float16", by_warps(1, 64, 2)),
    ("window", (7, 32, 64), "bfloat16", by_warps(1, 32, 3, 2)),
    ("window", (6, 24, 3), "float16", by_warps(1, 32, 1)),  # single elements
    ("window", (6, 24, 6), "bfloat16", by_warps(2, 32, 1)),  # pairs
    ("strided", (9, 48, 24), "float16", by_warps(2, 48, 2)),
    ("dilated", (8, 32, 32), "float16", by_warps(1, 32, 2, 1, 2)),
    ("pointwise", (9, 64, 72), "bfloat16", by_warps(1, 64, 2)),
    ("first", (7, 40, 8), "float16", by_warps(1, 64, 2)),
    ("window", (7, 32, 64), "float16", (1, 32, 3, 2)),
    ("strided", (9, 128, 24), "float16", (1, 128, 2, 2)),
    ("window", (9, 40, 16), "float16", (1, 64, 3)),  # threads copy for warpgroups
    ("window", (7, 32, 64), "bfloat16", (2, 32, 4)),
    ("strided", (9, 48, 24), "bfloat16", (1, 48, 4)),
    ("dilated", (8, 32, 32), "float16", (1, 32, 5, 1, 2)),
    ("first", (7, 40, 8), "float16", (1, 64, 2)),
]
EXACT = [
    ("product", (64, 32, 64), "float32", by_fma(1, 32, 2)),
    ("product", (2, 3, 1), "float32", by_fma(1, 32, 1)),
    ("product", (67, 71, 131), "float32", by_fma(1, 64, 2)),
    ("linear", (67, 39, 99), "float64", by_fma(1, 64, 3)),
    ("linear", (130, 136, 72), "float32", by_fma(2, 128, 2, 1, 2)),  # blocks that stay
    ("product", (130, 72, 140), "float32", by_fma(1, 64, 2, 2, split=2)),
    ("linear", (70, 128, 136), "float64", by_fma(1, 128, 2, split=2)),
    ("linear", (300, 39, 72), "float32", by_fma(4, 64, 2)),
    ("product", (200, 40, 48), "float32", by_fma(3, 32, 2)),  # turns cross patches
    ("of_transposed", (104, 40, 136), "float64", by_fma(3, 64, 3)),
    ("bias_relu", RAGGED, "float32", by_fma(1, 96, 3, 2)),
    ("residual", (100, 72, 72), "float64", by_fma(1, 128, 3)),
    ("in_place", (128, 96, 72), "float32", by_fma(1, 96, 2, 2)),
    ("scaled", (70, 40, 33), "float64", by_fma(2, 32, 2)),
    ("two_outputs", (100, 40, 72), "float32", by_fma(1, 64, 2)),
    ("batched", (72, 40, 40), "float32", by_fma(1, 32, 2, 1, 4)),
    *[
        (name, (70, 40, 67), dtype, by_fma(1, 32, 2))
        for name, kinds in (
            ("product", ("int16", "uint32", "int64")),
            ("linear", ("uint16", "int32", "uint64")),
        )
        for dtype in kinds
    ],
    # Of two dtypes, of which threads widen one.
    ("in_float32", (67, 39, 72), "float32 float16", by_fma(1, 64, 2)),
    ("linear_in_float32", (67, 40, 72), "bfloat16 float32", by_fma(1, 64, 2)),
    ("linear_in_float32", (67, 40, 72), "float8_e5m2 float32", by_fma(1, 64, 2)),
    ("product", (67, 39, 72), "float64 float32", by_fma(2, 64, 2)),
    ("product", (67, 39, 72), "int64 uint16", by_fma(2, 64, 2)),
    ("in_int32", (67, 40, 72), "int16 uint8", by_fma(1, 64, 2)),
    ("window", (9, 40, 16), "float32", by_fma(1, 64, 2)),
    ("window", (6, 24, 3), "int32", by_fma(1, 32, 1)),
    ("strided", (9, 48, 24), "float64", by_fma(1, 64, 2)),
    ("dilated", (8, 32, 32), "float32", by_fma(1, 32, 2, 1, 2)),
    ("pointwise", (9, 64, 72), "float32", by_fma(1, 64, 2)),
    ("first", (7, 40, 8), "float32", by_fma(1, 64, 2)),  # turned windows
]


def _convolved(stride, window, layout, dilation=1):
    pad = (dilation * (window // 2),) * 2

    def convolved(x, w, b):
        found = xp.conv_general_dilated(
            x,
            w,
            (stride,) * 2,
            (pad,) * 2,
            rhs_dilation=(dilation,) * 2,
            dimension_numbers=layout,
        )
        return xp.maximum(found + (b if layout[2] == LAST[2] else b[:, None, None]), 0)

    return kernel(convolved)


LAST, FIRST = ("NHWC", "OHWI", "NHWC"), ("NCHW", "OIHW", "NCHW")
CONVOLUTIONS = {  # by strides, windows, layouts and dilations
    "window": (1, 3, LAST),
    "strided": (2, 3, LAST),
    "dilated": (1, 3, LAST, 2),
    "pointwise": (2, 1, LAST),
    "first": (1, 3, FIRST),
}
globals().update({name: _convolved(*how) for name, how in CONVOLUTIONS.items()})


@kernel
def product(x, w):
    """Multiply."""
    return x @ w


@kernel
def in_int32(x, w):
    """Add up products of small integers."""
    return x.astype("int32") @ w.astype("int32")


@kernel
def linear_in_int32(x, w):
    """Add up products of small integers, and use the sums."""
    return (x.astype("int32") @ w.T.astype("int32")) * 2 + 1


@kernel
def linear_in_float32(x, w):
    """Round no sum."""
    return x.astype("float32") @ w.T.astype("float32")


@kernel
def as_tf32(x, w):
    """Multiply the first 11 digits."""
    return xp.tf32(x) @ xp.tf32(w)


@kernel
def linear_as_tf32(x, w):
    """Multiply the first 11 digits, and add."""
    return xp.maximum(xp.tf32(x) @ xp.tf32(w.T), 0)


@kernel
def linear(x, w):
    """Multiply by a transposed matrix."""
    return x @ w.T


@kernel
def of_transposed(x, w):
    """Multiply a transposed matrix."""
    return x.T @ w


@kernel
def bias_relu(x, w, b):
    """Apply a layer."""
    return xp.maximum(x @ w + b, 0)


@kernel
def bias_gelu(x, w, b):
    """Apply a layer without rounding within."""
    y = (x @ w).astype("float32") + b
    return (y * 0.5 * (1 + xp.erf(y * 0.7071067811865476))).astype(x.dtype)


@kernel
def softmax(x, w):
    """Divide powers by their sum, of which none is a denormal number."""
    y = (x @ w).astype("float32") * 0.25
    e = xp.exp(y - xp.max(y, axis=-1, keepdims=True))
    return (e / xp.sum(e, axis=-1, keepdims=True)).astype(x.dtype)


@kernel
def layer_norm(x, w, r, g):
    """Normalise rows of a sum."""
    y = (x @ w + r).astype("float32")
    y = y - xp.mean(y, axis=-1, keepdims=True)
    deviation = xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return (y / deviation * g).astype(x.dtype)


@kernel
def weighed(x, w, r):
    """Take a sum of each row from it, weighted by what nothing else reads."""
    y = x @ w
    return y - xp.sum(y * r, axis=-1, keepdims=True)


@kernel
def residual(x, w, r, s):
    """Add and scale by row and by element."""
    return r + (x @ w) * s[:, None]


@kernel
def in_place(x, w, r):
    """Add to what is there."""
    return {"r": r + x @ w}


@kernel
def scaled(x, w, *, scale=0.5):
    """Scale by what the launch knows."""
    return (x @ w) * scale


@kernel
def in_float32(x, w):
    """Round no sum."""
    return x.astype("float32") @ w.astype("float32")


@kernel
def two_outputs(x, w):
    """Return halves and float32."""
    y = x @ w
    return y, xp.tanh(y.astype("float32"))


@kernel
def padded(x, w):
    """Multiply between rows of zeros."""
    return xp.pad(x @ w, ((3, 2), (0, 0)))


@kernel
def batched(x, w, b):
    """Multiply in a batch."""
    return xp.matmul(x, w) + b


def shapes(made, m, n, k):
    """Return the shapes of a program's arrays for a product of m x n and depth k."""
    for name, how in CONVOLUTIONS.items():
        if made is globals()[name]:
            wide = ((2, m, m, k), (n, how[1], how[1], k), (n,))
            turned = ((2, k, m, m), (n, k, how[1], how[1]), (n,))
            return turned if how[2] is FIRST else wide
    more = {
        "linear": ((m, k), (n, k)),
        "linear_in_int32": ((m, k), (n, k)),
        "linear_in_float32": ((m, k), (n, k)),
        "linear_as_tf32": ((m, k), (n, k)),
        "of_transposed": ((k, m), (k, n)),
        "bias_relu": ((m, k), (k, n), (n,)),
        "bias_gelu": ((m, k), (k, n), (n,)),
        "layer_norm": ((m, k), (k, n), (m, n), (n,)),
        "weighed": ((m, k), (k, n), (m, n)),
        "residual": ((m, k), (k, n), (m, n), (m,)),
        "in_place": ((m, k), (k, n), (m, n)),
        "batched": ((3, m, k), (3, k, n), (n,)),
    }
    return more.get(made.signature.name, ((m, k), (k, n)))


def drawn(made, shape, dtype, seed=0):
    """Return normal random arrays of a program, as the host carries them."""
    rng = np.random.default_rng(seed)
    found, names = [], dtype.split()
    for place, each in enumerate(shapes(made, *shape)):
        kept = dtypes.of(names[min(place, len(names) - 1)])
        values = rng.standard_normal(each)
        if kept.kind == "int":
            ends = int(kept.smallest), int(kept.largest)
            values = rng.integers(*ends, each, kept.numpy, endpoint=True)
        found.append(values.astype(kept.numpy))
    return found


def tiling(made, arrays, numbers):
    """Return a program's tiling by its numbers; it need not be legal."""
    found = product_of(nest_of(simplify(made.program(*arrays))))
    assert not isinstance(found, str), found
    return Tiling(found, *numbers)


def lowered(made, arrays, numbers):
    """Return a program as it is lowered, and its kernel."""
    program = simplify(made.program(*arrays))
    schedule = tiling(made, arrays, numbers).schedule
    return program, strategies.lower(program, schedule, H200)


def tiled(program):
    """Return the candidates of a program that multiply tiles on an H200."""
    found = strategies.candidates(program, H200)
    return [schedule for schedule in found if schedule.multiplies_tiles]


def covering(program):
    """Return candidates with every piece there is, those of the most registers first."""
    seen, found = set(), []
    registers = partial(strategies.estimated_registers, program)
    for schedule in sorted(tiled(program), key=registers, reverse=True):
        axes = (axis.split(":") for axis in schedule.label.split())
        pieces = {(name, piece) for name, cuts in axes for piece in cuts.split(".")}
        if pieces - seen:
            found.append(schedule)
        seen |= pieces
    return found


def built_without_spills(program, schedules):
    """Compile candidates as one group; return the codes' resources."""
    batch = group.build_all(
        [Candidate(each.label, program, each) for each in schedules],
        target="cuda:sm_90a",
    )
    found = []
    for result in batch.results:
        assert isinstance(result, Artifact), result.error
        assert result.code.spill_stores == 0, result.schedule.label
        assert result.code.resources is not None
        found.append(result.code.resources)
    return found

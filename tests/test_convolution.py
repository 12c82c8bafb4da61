"""Convolutions: what they are, by sums that are spelled out, on every kind of target."""

import itertools
import random

import numpy as np
import pytest
import simt
import simt_tiles
from gradients import check

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.targets import machine


def normal(*shape, seed=0):
    """Return normal numbers, which shapes tell apart."""
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype("float32")


def several(value, rank):
    """Return a number for each spatial axis."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def direct(x, w, *, stride=1, padding=0, dilation=1, groups=1):
    """Add up each element of the window for all places at once, in float64."""
    rank = x.ndim - 2
    stride, dilation = several(stride, rank), several(dilation, rank)
    pads = [(p, p) if isinstance(p, int) else p for p in several(padding, rank)]
    wide = np.pad(x.astype(float), [(0, 0), (0, 0), *pads])
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(
            wide.shape[2:], w.shape[2:], stride, dilation, strict=True
        )
    ]
    made, read = w.shape[0] // groups, w.shape[1]
    found = np.zeros((x.shape[0], w.shape[0], *counts))
    for at in itertools.product(*map(range, w.shape[2:])):
        part = wide[
            (
                ...,
                *[
                    slice(k * d, k * d + s * (n - 1) + 1, s)
                    for k, d, s, n in zip(at, dilation, stride, counts, strict=True)
                ],
            )
        ]
        for g in range(groups):
            mine = part[:, g * read : (g + 1) * read]
            weights = w[(slice(g * made, (g + 1) * made), slice(None), *at)]
            found[:, g * made : (g + 1) * made] += np.einsum(
                "nc...,oc->no...", mine, weights.astype(float)
            )
    return found


def scattered(x, w, *, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Convolve elements that lie apart by windows turned around, up to its gradient's ends."""
    rank = x.ndim - 2
    how = [several(v, rank) for v in (stride, padding, output_padding, dilation)]
    apart = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], how[0], strict=True)]
    wide = np.zeros((*x.shape[:2], *apart))
    wide[(..., *[slice(None, None, s) for s in how[0]])] = x
    parts = np.flip(w, range(2, w.ndim)).reshape(groups, -1, *w.shape[1:])
    turned = parts.swapaxes(1, 2).reshape(-1, parts.shape[1], *w.shape[2:])
    ends = zip(w.shape[2:], *how[1:], strict=True)
    pads = [(d * (k - 1) - p, d * (k - 1) - p + more) for k, p, more, d in ends]
    return direct(wide, turned, padding=pads, dilation=dilation, groups=groups)


FORWARD = [
    ((2, 3, 11), (4, 3, 3), {}),
    ((2, 4, 37), (6, 2, 5), {"stride": 2, "padding": 2, "groups": 2}),
    ((2, 3, 9, 11), (5, 3, 3, 2), {"padding": (1, 2), "stride": (2, 1)}),
    ((1, 3, 12, 13), (4, 3, 3, 3), {"dilation": (2, 3), "padding": 2}),
    ((2, 6, 8, 9), (6, 1, 3, 3), {"padding": 1, "groups": 6}),  # depthwise
    ((2, 4, 8, 9), (12, 1, 3, 3), {"stride": 2, "groups": 4}),
    ((1, 16, 14, 14), (40, 16, 3, 3), {"padding": 1}),  # blocks of registers
    ((2, 33, 7, 9), (20, 33, 1, 1), {"stride": 2}),
    ((1, 5, 19, 37), (9, 5, 3, 5), {"padding": (1, 3)}),  # vectors that end with rows
    ((2, 8, 100), (11, 8, 7), {"padding": 5}),
    ((1, 3, 5, 6, 7), (4, 3, 2, 3, 2), {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
]
TRANSPOSED = [
    ((2, 3, 7), (3, 4, 3), {}),
    (
        (2, 4, 9),
        (4, 3, 5),
        {"stride": 2, "padding": 2, "output_padding": 1, "groups": 2},
    ),
    (
        (1, 3, 5, 6),
        (3, 4, 3, 2),
        {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 2)},
    ),
    ((1, 3, 3, 4, 5), (3, 2, 2, 3, 2), {"stride": 2, "padding": 1}),
]


def made_of(name, how):
    """Return a kernel of one function with its options."""
    return kernel(lambda x, w: getattr(xp, name)(x, w, **how))


def named(cases, prefix):
    """Return cases with the name of their function."""
    return [(f"{prefix}{len(x) - 2}d", x, w, how) for x, w, how in cases]


CASES = [*named(FORWARD, "conv"), *named(TRANSPOSED, "conv_transpose")]


def expected(name, x, w, how):
    """Return what a function gives, and how far float32 may be from it."""
    function = scattered if "transpose" in name else direct
    most = function(np.abs(x), np.abs(w), **how)
    return function(x, w, **how), most * 2.0**-24 * (w[0].size * len(w) + 2)


@pytest.mark.parametrize(("name", "x", "w", "how"), CASES)
def test_a_convolution_is_the_sum_of_its_windows_by_every_schedule(name, x, w, how):
    """The heuristic's and some candidates, blocks of registers among them."""
    x, w = normal(*x), normal(*w)
    made = made_of(name, how)
    answer, bound = expected(name, x, w, how)
    every = strategies.candidates(simplify(made.program(x, w)), machine())
    rng = random.Random(name)
    blocked = [each for each in every if each.multiplies_blocks]
    schedules = [None, rng.choice(every), *rng.sample(blocked, min(2, len(blocked)))]
    for schedule in schedules:
        work = made.bind(x, w, schedule=schedule)
        work.launch()
        (found,) = work.outputs.values()
        assert found.shape == answer.shape
        assert (np.abs(found - answer) <= bound).all(), schedule


@pytest.mark.parametrize(("name", "x", "w", "how"), [*CASES[:6], CASES[7], *CASES[9:]])
def test_a_gpu_s_threads_give_the_same(name, x, w, how):
    """The loop kernel, run by the simulator that finds races: it takes large ones seconds."""
    x, w = normal(*x), normal(*w)
    program = simplify(made_of(name, how).program(x, w))
    answer, bound = expected(name, x, w, how)
    gpu = GPUS["sm_90a"]
    schedule = strategies.heuristic(program, gpu)
    low = strategies.lower(program, schedule, gpu)
    run = simt_tiles if schedule.multiplies_tiles else simt
    (found,) = run.launch(program, low, [x, w], {}).values()
    assert (np.abs(found - answer) <= bound).all()


def test_layouts_are_the_places_of_letters():
    """As JAX names them; the features last, and weights with the window first."""
    x, w = normal(2, 9, 10, 16), normal(3, 2, 16, 24)
    layouts = ("NHWC", "HWIO", "NHWC")

    @kernel
    def last(x, w):
        return xp.conv_general_dilated(x, w, (1, 2), "SAME", dimension_numbers=layouts)

    pads = (1, 1), (0, 0)
    answer = direct(
        np.moveaxis(x, -1, 1),
        np.transpose(w, (3, 2, 0, 1)),
        stride=(1, 2),
        padding=pads,
    )
    found = last(x, w)
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), answer, rtol=0, atol=1e-4)


def test_groups_of_the_batch_are_convolved_by_their_own_features():
    """The batch is cut, and each part gives some of the result's features."""
    x, w = normal(6, 3, 9), normal(4, 3, 2)
    found = kernel(
        lambda x, w: xp.conv_general_dilated(x, w, (1,), "VALID", batch_group_count=2)
    )(x, w)
    answer = np.concatenate([direct(x[:3], w[:2]), direct(x[3:], w[2:])], axis=1)
    np.testing.assert_allclose(found, answer, rtol=0, atol=1e-5)


def test_a_bias_and_names_of_padding_are_pytorch_s():
    """With what follows in one kernel."""
    x, w, b = normal(2, 3, 8, 9), normal(5, 3, 3, 3), normal(5)
    made = kernel(
        lambda x, w, b: xp.maximum(xp.conv2d(x, w, b, padding="same", dilation=2), 0)
    )
    answer = direct(x, w, padding=2, dilation=2) + b[:, None, None]
    np.testing.assert_allclose(made(x, w, b), np.maximum(answer, 0), rtol=0, atol=1e-4)


def test_halves_are_added_up_in_float32():
    """And rounded once."""
    x, w = (normal(*s).astype("float16") for s in ((1, 32, 9, 9), (20, 32, 3, 3)))
    found = kernel(lambda x, w: xp.conv2d(x, w, padding=1))(x, w)
    assert found.dtype == "float16"
    answer = direct(x, w, padding=1)
    np.testing.assert_allclose(found, answer, rtol=2.0**-11, atol=1e-3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: xp.conv_general_dilated(x, w, (3,), [(2, 3)], (2,)),
        lambda x, w: xp.conv_general_dilated(x, w, (2,), [(1, 0)], (4,), (2,)),
        lambda x, w: grad(lambda x: xp.sum(xp.square(xp.conv1d(x, w, stride=2))))(x),
        lambda x, w: grad(
            lambda x: xp.sum(xp.square(xp.conv_transpose1d(x, w, stride=3)))
        )(x),
    ],
    ids=["spread by 2", "spread by 4", "twice", "twice, transposed"],
)
def test_gradients_of_spread_windows_are_their_differences(function):
    """Between whose elements zeros lie, as in gradients of strided ones."""
    x, w = normal(1, 3, 7).astype(float), normal(3, 3, 3).astype(float)
    check(lambda x, w: xp.sum(xp.square(function(x, w))), x, w)


IMAGES = (1, 4, 8, 8), (4, 4, 3, 3)
LINES = (1, 4, 8), (4, 3, 3)


@pytest.mark.parametrize(
    ("name", "shapes", "how", "said"),
    [
        (
            "conv2d",
            ((1, 3, 8, 8), (4, 2, 3, 3)),
            {},
            "expected weights of 3 features",
        ),
        ("conv2d", ((1, 3, 8, 8), (4, 3, 3)), {}, "expected 4 axes of both"),
        (
            "conv2d",
            ((1, 4, 8, 8), (3, 2, 3, 3)),
            {"groups": 2},
            "that 2 groups divide",
        ),
        ("conv2d", IMAGES, {"stride": 0}, "strides and dilations from 1 up"),
        ("conv2d", IMAGES, {"stride": (1, 2, 3)}, "for 2 spatial axes"),
        ("conv2d", IMAGES, {"padding": "full"}, 'expected "same", "valid"'),
        ("conv2d", IMAGES, {"padding": (0, -1)}, "padding from 0 up"),
        ("conv_transpose1d", LINES, {"padding": "same"}, "for 1 spatial axes; give"),
        ("conv_transpose1d", LINES, {"padding": -1}, "padding from 0 up"),
        ("conv_transpose1d", LINES, {"output_padding": -1}, "output_padding from 0 up"),
        (
            "conv_transpose1d",
            LINES,
            {"stride": 2, "output_padding": 2},
            "output_padding below the stride or the",
        ),
    ],
)
def test_what_does_not_fit_is_told(name, shapes, how, said):
    """What was seen, and what was expected."""
    with pytest.raises(KernelError, match=said):
        made_of(name, how).program(*[normal(*shape) for shape in shapes])


@pytest.mark.parametrize("bias", [(1,), (4,), (3, 1)])
def test_a_bias_has_a_number_for_each_feature(bias):
    """It was broadcast, or failed without a word of it."""

    @kernel
    def conv(x, w, bias):
        return xp.conv1d(x, w, bias)

    with pytest.raises(KernelError, match=r"one number for each of 3 features, \(3,\)"):
        conv.program(normal(1, 4, 8), normal(3, 4, 3), normal(*bias))


def test_a_window_is_no_larger_than_the_padded_array():
    """Such convolutions had results without an element."""
    arrays = normal(1, 4, 8), normal(3, 4, 5)
    assert made_of("conv1d", {"dilation": 2}).program(*arrays[:1], normal(3, 4, 4))
    for how in ({"dilation": 2}, {"dilation": 3, "padding": 2}):
        with pytest.raises(KernelError, match="windows that are no larger than"):
            made_of("conv1d", how).program(*arrays)

"""ResNet-50's convolutions: of one image in float32 by either layout, and of 32 in float16.

Ours on the CPU, and PyTorch's oneDNN by ``-p impl=ours,torch`` where it is installed; the
latter on a GPU beside cuDNN, by the same.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_kernels import KernelFunction, kernel
from steelyard_kernels import array as xp

from .common import Array, available

Layer = tuple[int, int, int, int, int]  # extent, features in and out, window, stride

LAYERS: Final = [
    (56, 64, 64, 3, 1),
    (56, 64, 256, 1, 1),
    (28, 128, 128, 3, 1),
    (28, 256, 512, 1, 2),
    (14, 256, 256, 3, 1),
    (7, 512, 512, 3, 1),
    (224, 3, 64, 7, 2),
    (56, 64, 64, 1, 1),
    (56, 256, 64, 1, 1),
    (56, 128, 128, 3, 2),
    (28, 512, 128, 1, 1),
    (28, 256, 256, 3, 2),
    (14, 256, 1024, 1, 1),
    (14, 512, 512, 3, 2),
    (7, 2048, 512, 1, 1),
]
ON_CPU: Final = 7
"""The first layers, which are measured on a CPU."""
BATCH: Final = 32
LAYOUTS: Final = {"last": ("NHWC", "OHWI", "NHWC"), "first": ("NCHW", "OIHW", "NCHW")}


@benchmark(
    layer=axis(LAYERS[0], others=LAYERS[1:ON_CPU]),
    features=["last", "first"],
    impl=axis("ours", others=available("torch")),
)
def convolutions(b: Builder, layer: Layer, features: str, impl: str) -> Call:
    """Convolve an image of extent x extent by a window with half of it around."""
    extent, read, made, window, stride = layer
    places = -(-extent // stride)
    x = b.input(_shape(1, read, extent, features), "float32")
    w = b.input(_shape(made, read, window, features), "float32")
    y = b.output(_shape(1, made, places, features), "float32")
    depth = read * window * window
    b.count(operations=2 * made * places * places * depth)

    def reference(x: Array, w: Array) -> Array:
        return _reference(x, w, stride, features)

    # As of products: Higham and Mary, 2019, with lambda = 8 and a mean of 2 / pi.
    unit = float(np.finfo("float32").eps) / 2
    b.check(reference, x, w, atol=8 * depth**0.5 * unit * depth * 2 / np.pi)
    b.mode("kernel/warm")  # little of it is memory
    if impl == "torch":
        return b.launch(_torch(stride, features), x, w, out=y, as_="torch")
    return b.launch(OURS[stride, features], x, w, out=y)


@benchmark(
    layer=axis(LAYERS[0], others=LAYERS[1:]),
    impl=axis("ours", others=available("torch")),
)
def gpu_convolutions(b: Builder, layer: Layer, impl: str) -> Call:
    """Convolve 32 images of extent x extent, features last, in float16."""
    b.on("cuda")
    extent, read, made, window, stride = layer
    places = -(-extent // stride)
    x = b.input(_shape(BATCH, read, extent, "last"), "float16")
    w = b.input(_shape(made, read, window, "last"), "float16")
    y = b.output(_shape(BATCH, made, places, "last"), "float16")
    b.count(operations=2 * BATCH * made * places**2 * read * window**2)
    b.check(lambda x, w: _reference(x, w, stride, "last"), x, w)
    b.mode("kernel/warm")  # a layer reads what the one before has left in the L2
    if impl == "torch":
        return b.launch(_cudnn(stride), x, w, out=y, as_="torch")
    return b.launch(OURS[stride, "last"], x, w, out=y)


def _shape(count: int, features: int, extent: int, place: str) -> tuple[int, ...]:
    if place == "last":
        return count, extent, extent, features
    return count, features, extent, extent


def _ours(stride: int, features: str) -> KernelFunction:
    """Return a kernel of one stride and layout."""

    def convolution(x: Any, w: Any) -> Any:
        pad = _pad(w.shape, features)
        return xp.conv_general_dilated(
            x, w, (stride,) * 2, (pad,) * 2, dimension_numbers=LAYOUTS[features]
        )

    return kernel(convolution)


def _pad(shape: tuple[int, ...], features: str) -> tuple[int, int]:
    half = shape[1 if features == "last" else 2] // 2
    return half, half


OURS: Final[dict[tuple[int, str], KernelFunction]] = {
    each: _ours(*each) for each in product((1, 2), LAYOUTS)
}
convolution: Final = OURS[1, "last"]


def _torch(stride: int, features: str) -> Any:
    """Return PyTorch's, which takes the features last as strides of arrays."""

    def convolution(x: Any, w: Any, out: Any) -> None:
        import torch

        if features == "last":
            x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)
        pad = w.shape[-1] // 2
        found = torch.nn.functional.conv2d(x, w, stride=stride, padding=pad)
        out.copy_(found.permute(0, 2, 3, 1) if features == "last" else found)

    return convolution


def _cudnn(stride: int) -> Any:
    """Return cuDNN's, the quickest that it finds."""

    def convolution(x: Any, w: Any, out: Any) -> None:
        import torch

        x, w, out = (each.permute(0, 3, 1, 2) for each in (x, w, out))
        half, strides = (w.shape[-1] // 2,) * 2, (stride,) * 2
        how = {"benchmark": True, "deterministic": False, "allow_tf32": False}
        torch.cudnn_convolution(x, w, half, strides, (1, 1), 1, **how, out=out)

    return convolution


def _reference(x: Array, w: Array, stride: int, features: str) -> Array:
    """Return the sum over the window of products of features, in float64."""
    if features == "first":
        x, w = np.moveaxis(x, 1, -1), np.moveaxis(w, 1, -1)
    window, half = w.shape[1], w.shape[1] // 2
    wide = np.pad(x, [(0, 0), (half, half), (half, half), (0, 0)])
    places = -(-x.shape[1] // stride)
    total: Any = 0.0
    for i, j in product(range(window), repeat=2):
        ends = [k + stride * (places - 1) + 1 for k in (i, j)]
        part = wide[:, i : ends[0] : stride, j : ends[1] : stride]
        total = total + part @ w[:, i, j].T
    found: Array = np.moveaxis(total, -1, 1) if features == "first" else total
    return found

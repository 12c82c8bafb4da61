"""Arguments that show each kernel of the library at work: shapes in words of axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from steelyard_kernels.errors import KernelError

Spec: TypeAlias = tuple[tuple[int, ...], str]
"""Shape and dtype of one array."""

Axes: TypeAlias = Mapping[str, int | str]

AXES: Final[Axes] = {
    "n": 1 << 16,
    "rows": 1024,
    "hidden": 768,
    "iterations": 8000,
    "width": 1,
    "units": 12,
    "dtype": "float32",
}
"""What the axes are unless somebody says otherwise."""

SHAPES: Final[Mapping[str, str]] = {
    "adam": "n n n",
    "adam_m": "n n",
    "adam_update": "n n n",
    "adam_v": "n n",
    "bias_layernorm": "rows,hidden hidden hidden hidden hidden",
    "copy": "n",
    "empty": "",
    "noisy_mlp": "width :int64 width,units units,width",
    "noisy_mlp_ahead": "width iterations,width width,units units,width",
    "noisy_mlp_backward": "width :int64 width,units units,width",
    "noisy_mlp_fixed_point": "width :int64 width width,units units,width",
    "noisy_mlp_given": "width :int64 width,units units,width",
    "noisy_mlp_noise": "width :int64",
    "noisy_mlp_step": "width :int64 :int64 width,units units,width",
    "scale": "n n n",
    "softmax": "rows,hidden",
    "triad": "n n",
}
"""The array parameters of each kernel: lengths by axis, arrays apart by a space.

Behind a colon stands the dtype of an array whose dtype no axis says.
"""


def axes_of(kernel: str) -> tuple[str, ...]:
    """Return the axes of a kernel, in order; one without arrays has none."""
    shapes = [each.partition(":")[0] for each in SHAPES[kernel].split()]
    words = ",".join(filter(None, shapes)).split(",")
    return (*dict.fromkeys(words), "dtype") if shapes else ()


def specs(kernel: str, axes: Axes | None = None) -> tuple[Spec, ...]:
    """Return the arrays of a library kernel at a point of its axes.

    Raises KernelError for an axis that the kernel has not.
    """
    known = axes_of(kernel)
    for name in axes or {}:
        if name not in known:
            raise KernelError(
                f"{kernel} has no axis {name!r}, expected one of "
                f"{', '.join(known) or 'none'}; leave it out."
            )
    point = {**AXES, **(axes or {})}
    return tuple(_spec(each, point) for each in SHAPES[kernel].split())


def _spec(word: str, point: Axes) -> Spec:
    shape, _, dtype = word.partition(":")
    extents = [int(point[axis]) for axis in shape.split(",") if axis]
    return tuple(extents), dtype or str(point["dtype"])

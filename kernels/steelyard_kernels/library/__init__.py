"""Kernels that ship: one a file, each a plain function over arrays."""

from steelyard_kernels.library.adam import adam, adam_m, adam_update, adam_v
from steelyard_kernels.library.bias_layernorm import bias_layernorm
from steelyard_kernels.library.copy import copy
from steelyard_kernels.library.empty import empty
from steelyard_kernels.library.noisy_mlp import (
    noisy_mlp,
    noisy_mlp_ahead,
    noisy_mlp_backward,
    noisy_mlp_fixed_point,
    noisy_mlp_given,
    noisy_mlp_noise,
    noisy_mlp_step,
)
from steelyard_kernels.library.scale import scale
from steelyard_kernels.library.softmax import softmax
from steelyard_kernels.library.triad import triad

__all__ = [
    "adam",
    "adam_m",
    "adam_update",
    "adam_v",
    "bias_layernorm",
    "copy",
    "empty",
    "noisy_mlp",
    "noisy_mlp_ahead",
    "noisy_mlp_backward",
    "noisy_mlp_fixed_point",
    "noisy_mlp_given",
    "noisy_mlp_noise",
    "noisy_mlp_step",
    "scale",
    "softmax",
    "triad",
]

"""Kernels that ship: one a file, each a plain function over arrays."""

from steelyard_kernels.library.adam import adam as adam
from steelyard_kernels.library.adam import adam_m as adam_m
from steelyard_kernels.library.adam import adam_update as adam_update
from steelyard_kernels.library.adam import adam_v as adam_v
from steelyard_kernels.library.bias_layernorm import bias_layernorm as bias_layernorm
from steelyard_kernels.library.copy import copy as copy
from steelyard_kernels.library.empty import empty as empty
from steelyard_kernels.library.noisy_mlp import noisy_mlp as noisy_mlp
from steelyard_kernels.library.noisy_mlp import noisy_mlp_ahead as noisy_mlp_ahead
from steelyard_kernels.library.noisy_mlp import noisy_mlp_backward as noisy_mlp_backward
from steelyard_kernels.library.noisy_mlp import (
    noisy_mlp_fixed_point as noisy_mlp_fixed_point,
)
from steelyard_kernels.library.noisy_mlp import noisy_mlp_given as noisy_mlp_given
from steelyard_kernels.library.noisy_mlp import noisy_mlp_noise as noisy_mlp_noise
from steelyard_kernels.library.noisy_mlp import noisy_mlp_step as noisy_mlp_step
from steelyard_kernels.library.scale import scale as scale
from steelyard_kernels.library.softmax import softmax as softmax
from steelyard_kernels.library.triad import triad as triad

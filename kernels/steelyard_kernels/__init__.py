"""The compiler core: Python functions over arrays become machine code.

from steelyard_kernels import array as xp, kernel

@kernel
def softmax(x):
e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
return e / xp.sum(e, axis=-1, keepdims=True)
"""

from steelyard_kernels.errors import CompilerBug, KernelError, Unsupported
from steelyard_kernels.function import KernelFunction, kernel

__all__ = ["CompilerBug", "KernelError", "KernelFunction", "Unsupported", "kernel"]

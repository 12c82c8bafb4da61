"""Models written for PyTorch, each as one kernel; see `from_torch`."""

from typing import Final

from steelyard_kernels.from_torch.function import TorchKernel, from_torch
from steelyard_kernels.from_torch.interpret import ROWS

OPERATIONS: Final = tuple(sorted(ROWS))
"""ATen's operations that a model may have, by name or by overload."""

__all__ = ["OPERATIONS", "TorchKernel", "from_torch"]

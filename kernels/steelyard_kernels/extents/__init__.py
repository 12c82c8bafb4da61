"""Kernels some of whose axes have extents that only a call knows: `runtime`."""

from steelyard_kernels.extents.kernel import Extent, RuntimeKernel, runtime

__all__ = ["Extent", "RuntimeKernel", "runtime"]

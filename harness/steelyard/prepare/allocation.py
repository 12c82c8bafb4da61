"""The buffers of a case, where its benchmark says that they live."""

from __future__ import annotations

from steelyard.declare.benchmark import Description
from steelyard.declare.handles import CUDA
from steelyard.declare.plan import Settings
from steelyard.prepare.buffers import Buffers


def allocate(description: Description, settings: Settings) -> Buffers:
    """Allocate and fill them, on the GPU that the settings name if on one.

    Raises:
        BenchmarkError: they do not fit, or their data cannot be had.
        DeviceError: there is no such GPU.
    """
    if description.device != CUDA:
        return Buffers(description.handles, settings.seed, settings.inputs)
    from steelyard.prepare.gpu_buffers import DeviceBuffers
    from steelyard_device import cuda

    context = cuda.context(settings.gpu)
    handles = description.handles
    return DeviceBuffers(context, handles, settings.seed, settings.inputs)

"""Launch cubins on this machine's GPUs: the door to the modules in this folder.

Importing it calls nothing. `context` is where work begins; `load` a cubin in it, find
its `Function`, pack a `Launch`.
"""

from __future__ import annotations

from steelyard_device.cuda.device import (
    Context,
    Device,
    Stream,
    beside,
    context,
    device,
    devices,
)
from steelyard_device.cuda.driver import CUDAError
from steelyard_device.cuda.events import Event, EventPair
from steelyard_device.cuda.graph import Chain, Graph
from steelyard_device.cuda.launch import Launch, Rotation
from steelyard_device.cuda.memory import ALIGNMENT, Buffer, SharedWords, View, copy_of
from steelyard_device.cuda.module import (
    Attributes,
    Function,
    Module,
    load,
    load_again,
)
from steelyard_device.cuda.probes import QUEUE, Delay, Flush, Spin, null

__all__ = [
    "ALIGNMENT",
    "QUEUE",
    "Attributes",
    "Buffer",
    "CUDAError",
    "Chain",
    "Context",
    "Delay",
    "Device",
    "Event",
    "EventPair",
    "Flush",
    "Function",
    "Graph",
    "Launch",
    "Module",
    "Rotation",
    "SharedWords",
    "Spin",
    "Stream",
    "View",
    "beside",
    "context",
    "copy_of",
    "device",
    "devices",
    "load",
    "load_again",
    "null",
]

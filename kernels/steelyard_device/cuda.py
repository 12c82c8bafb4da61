"""Launch cubins on this machine's GPUs: the door to the modules ``cuda_*``.

Importing it calls nothing. `context` is where work begins; `load` a cubin in it, find
its `Function`, pack a `Launch`.
"""

from __future__ import annotations

from steelyard_device.cuda_device import Context, Device, context, device, devices
from steelyard_device.cuda_driver import CUDAError
from steelyard_device.cuda_events import Event
from steelyard_device.cuda_graph import Graph
from steelyard_device.cuda_launch import Launch, Rotation
from steelyard_device.cuda_memory import ALIGNMENT, Buffer, SharedWords, copy_of
from steelyard_device.cuda_module import Attributes, Function, Module, load
from steelyard_device.cuda_probes import BlockedPair, Delay, Flush, Spin, null

__all__ = [
    "ALIGNMENT",
    "Attributes",
    "BlockedPair",
    "Buffer",
    "CUDAError",
    "Context",
    "Delay",
    "Device",
    "Event",
    "Flush",
    "Function",
    "Graph",
    "Launch",
    "Module",
    "Rotation",
    "SharedWords",
    "Spin",
    "context",
    "copy_of",
    "device",
    "devices",
    "load",
    "null",
]

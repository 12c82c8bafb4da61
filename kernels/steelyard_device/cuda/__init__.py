"""Launch cubins on this machine's GPUs: the door to the modules in this folder.

Importing it calls nothing. `context` is where work begins; `load` a cubin in it, find
its `Function`, pack a `Launch`.
"""

from __future__ import annotations

from steelyard_device.cuda.device import Context as Context
from steelyard_device.cuda.device import Device as Device
from steelyard_device.cuda.device import Stream as Stream
from steelyard_device.cuda.device import beside as beside
from steelyard_device.cuda.device import context as context
from steelyard_device.cuda.device import device as device
from steelyard_device.cuda.device import devices as devices
from steelyard_device.cuda.driver import CUDAError as CUDAError
from steelyard_device.cuda.events import Event as Event
from steelyard_device.cuda.events import EventPair as EventPair
from steelyard_device.cuda.graph import Chain as Chain
from steelyard_device.cuda.graph import Graph as Graph
from steelyard_device.cuda.launch import Launch as Launch
from steelyard_device.cuda.launch import Rotation as Rotation
from steelyard_device.cuda.memory import ALIGNMENT as ALIGNMENT
from steelyard_device.cuda.memory import Buffer as Buffer
from steelyard_device.cuda.memory import SharedWords as SharedWords
from steelyard_device.cuda.memory import View as View
from steelyard_device.cuda.memory import copy_of as copy_of
from steelyard_device.cuda.module import Attributes as Attributes
from steelyard_device.cuda.module import Function as Function
from steelyard_device.cuda.module import Module as Module
from steelyard_device.cuda.module import load as load
from steelyard_device.cuda.module import load_again as load_again
from steelyard_device.cuda.probes import QUEUE as QUEUE
from steelyard_device.cuda.probes import Delay as Delay
from steelyard_device.cuda.probes import Flush as Flush
from steelyard_device.cuda.probes import Spin as Spin
from steelyard_device.cuda.probes import null as null
from steelyard_device.cuda.series import Series as Series

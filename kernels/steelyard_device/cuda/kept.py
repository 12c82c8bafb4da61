"""Our own small cubins, compiled once a machine and kept in the user's cache folder.

Every process that measures needs them, and starting NVRTC costs it 0.1 to 0.3 s.
"""

from __future__ import annotations

from steelyard_device.cuda.device import Context
from steelyard_device.cuda.module import Function, load
from steelyard_device.disk import kept
from steelyard_device.threads import Once


@Once
def function(context: Context, text: str, entry: str) -> Function:
    """Load the kernel of a text that has a name on a GPU; raises as `cubin`."""
    return load(context, cubin(text, context.device.arch)).function(entry)


@Once
def cubin(text: str, arch: str) -> bytes:
    """Return the cubin of a CUDA C++ text, compiled where none is kept.

    It is known by text, arch and the version of NVRTC's package: asking NVRTC itself
    would load it.

    Raises:
        CompileError: NVRTC refuses the text.
    """
    return kept("probes", repr((text, arch, _version())), lambda: _made(text, arch))


def _made(text: str, arch: str) -> bytes:
    from steelyard_device import nvrtc  # as seldom as there is none

    return nvrtc.compile(text, arch).cubin


def _version() -> str:
    """Return the version of the package that NVRTC is from, if it is from one."""
    from importlib import metadata  # 20 ms

    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return "system"

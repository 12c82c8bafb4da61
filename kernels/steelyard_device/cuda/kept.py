"""Our own small cubins, compiled once a machine and kept in the user's cache folder.

Every process that measures needs them, and starting NVRTC costs it 0.1 to 0.3 s.
"""

from __future__ import annotations

from importlib import metadata

from steelyard_device import nvrtc
from steelyard_device.disk import kept
from steelyard_device.threads import Once


@Once
def cubin(text: str, arch: str) -> bytes:
    """Return the cubin of a CUDA C++ text, compiled where none is kept.

    It is known by text, arch and the version of NVRTC's package: asking NVRTC itself
    would load it.

    Raises:
        CompileError: NVRTC refuses the text.
    """
    named = repr((text, arch, _version()))
    return kept("probes", named, lambda: nvrtc.compile(text, arch).cubin)


def _version() -> str:
    """Return the version of the package that NVRTC is from, if it is from one."""
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        return "system"

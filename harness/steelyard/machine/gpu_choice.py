"""Which GPU a run uses, why a case cannot have one, and what a run stores of it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.errors import SteelyardError
from steelyard.machine import facts as machine
from steelyard.machine import gpu_state, kept_peaks

if TYPE_CHECKING:
    from steelyard_device.cuda import Device


PACKAGES: Final = ("cuda-bindings", "cupti-python", "nvidia-cuda-nvrtc")
"""What stands between us and a GPU; NVRTC may also come with the CUDA toolkit."""


@functools.cache
def _seen() -> tuple[tuple[Device, ...], str]:
    """Return the GPUs, or none and the reason; asked once, CUDA outlives no fork."""
    from steelyard_device import cuda
    from steelyard_device.errors import DeviceError

    try:
        found = cuda.devices()
    except DeviceError as error:
        return (), str(error)
    return found, "" if found else "this machine has none: measure on the CPU."


def missing() -> str | None:
    """Return why nothing can run on a GPU here; None where something can."""
    return _seen()[1] or None


def devices() -> tuple[Device, ...]:
    """Return the GPUs that this process may use, as CUDA numbers them."""
    return _seen()[0]


def choose(
    asked: str = "", use: Callable[[str], tuple[float, ...]] = gpu_state.use
) -> int:
    """Return the index of the GPU that ``asked`` names, or of the least used one.

    It is an index, or the beginning of a UUID as nvidia-smi prints it.

    Raises:
        SteelyardError: there is no GPU, or not exactly one that is called so.
    """
    known = devices()
    if not known:
        raise SteelyardError(f"there is no GPU to choose: {missing()}")
    if not asked:
        if len(known) == 1:
            return known[0].index
        return min(known, key=lambda device: (use(device.uuid), device.index)).index
    named = [device for device in known if _is(device, asked)]
    if len(named) != 1:
        shown = ", ".join(f"{d.index} ({d.name}, {d.uuid[:12]})" for d in known)
        what = "no GPU" if not named else f"{len(named)} GPUs"
        raise SteelyardError(
            f"--gpu {asked} names {what}, expected an index or the beginning of one "
            f"UUID: {shown}."
        )
    return named[0].index


def _is(device: Device, asked: str) -> bool:
    if asked.isdecimal() and len(asked) < 4:  # longer ones begin a UUID
        return device.index == int(asked)
    begin = asked.lower().removeprefix("gpu-")
    return device.uuid.lower().removeprefix("gpu-").startswith(begin)


def facts(index: int) -> dict[str, Any]:
    """Return what a run stores of its GPU, with what it was measured to do at most."""
    device = devices()[index]
    settings = gpu_state.settings(device.uuid)
    return {
        "name": device.name,
        "uuid": hashed(device.uuid),
        "memory": device.memory_bytes,
        "arch": device.arch,
        "multiprocessors": device.multiprocessors,
        "l2": device.l2_bytes,
        **settings,
        **machine.installed(*PACKAGES),
        "peaks": kept_peaks.best(peaks_files(device.uuid).values()),
    }


def peaks_files(uuid: str) -> dict[str, Path]:
    """Return where a GPU's peaks are kept by the clock that read them, the best first.

    Whether CUPTI works is not asked: it would be taken from whoever wants it.
    """
    driver = gpu_state.settings(uuid)["driver"]
    cupti = str(machine.installed("cupti-python"))
    return {
        clock: kept_peaks.path(uuid, driver, cupti, clock)
        for clock in ("cupti", "events")
    }


def hashed(uuid: str) -> str:
    """Return a pseudonym of a GPU for a stored run that may be published."""
    return hashlib.blake2b(f"steelyard {uuid}".encode(), digest_size=6).hexdigest()

"""Which GPU a run uses, why a case cannot have one, and what a run stores of it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.analyse.peaks import COPY, METHOD, Table
from steelyard.errors import SteelyardError
from steelyard.machine import facts as machine
from steelyard.machine import files, gpu_state

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
        "peaks": best_kept(peaks_files(device.uuid).values()),
    }


def peaks_files(uuid: str) -> dict[str, Path]:
    """Return where a GPU's peaks are kept by the clock that read them, the best first.

    Whether CUPTI works is not asked: it would be taken from whoever wants it.
    """
    driver = gpu_state.settings(uuid)["driver"]
    cupti = str(machine.installed("cupti-python"))
    return {
        clock: kept_file(uuid, driver, cupti, clock) for clock in ("cupti", "events")
    }


def hashed(uuid: str) -> str:
    """Return a pseudonym of a GPU for a stored run that may be published."""
    return hashlib.blake2b(f"steelyard {uuid}".encode(), digest_size=6).hexdigest()


def kept_file(uuid: str, driver: str, cupti: str, clock: str) -> Path:
    """Return the file that keeps the table of a GPU under a driver, read by a clock.

    ``cupti`` is the version of its bindings: where they come or change, the table is
    another one.
    """
    import platformdirs

    text = f"{uuid} {driver} {METHOD} {cupti} {clock}"
    name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return platformdirs.user_data_path("steelyard") / "peaks" / f"{name}.json"


def kept(place: Path) -> dict[str, Any] | None:
    """Return the table in a file; None where there is none that can be used."""
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    good = isinstance(found, dict) and found.get("method") == METHOD
    return found if good and COPY in found and "rates" in found else None


def best_kept(places: Iterable[Path]) -> dict[str, Any]:
    """Return the table of the first file that has one; empty where none has."""
    return next((table for table in map(kept, places) if table), {})


def keep(place: Path, table: Table) -> None:
    """Write a table; where nothing can be written, it is not kept."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        files.replace(place, json.dumps(dict(table)).encode())

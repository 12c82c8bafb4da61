"""Which NVRTC this process compiles with: the one chosen, or the one that is found."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from steelyard_device import install
from steelyard_device.errors import DeviceError
from steelyard_device.threads import Once

_SONAME = "libnvrtc.so.13"


class Compiler(Struct, frozen=True):
    """Which build of the compiler: in every row and every cache key."""

    version: str
    """``13.5.37`` where its package says so, else ``13.5``."""
    build: str
    """Twelve hexadecimal digits that tell two builds of one version apart."""
    path: str


def load(path: str | None) -> None:
    """Make the library at ``path`` the NVRTC of this process; None leaves the choice.

    Raises:
        DeviceError: it cannot be loaded, or another one already is.
    """
    if path is None:
        return
    loaded = _loaded()
    if loaded is None:
        _preload(Path(path))
        loaded = _loaded()
    if loaded is None:
        raise DeviceError(
            f"{path} is not {_SONAME}: name a libnvrtc of CUDA 13, as in the package "
            "nvidia-cuda-nvrtc."
        )
    if not Path(path).exists() or not Path(path).samefile(loaded):
        raise DeviceError(
            f"this process already compiles with {loaded}, so {path} cannot be loaded: "
            "one NVRTC a process, compare two in two processes."
        )


def _preload(path: Path) -> None:
    """Load the library so that cuda.bindings, which asks the loader first, takes it."""
    mode = os.RTLD_NOW | os.RTLD_GLOBAL
    try:
        # NVRTC looks for its builtins by name alone: 13.0 has no path to them.
        for builtins in path.resolve().parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode)
        ctypes.CDLL(str(path), mode)
    except OSError as error:
        raise DeviceError(
            f"NVRTC cannot be loaded from {path} ({error}): name the libnvrtc.so.13 "
            "itself, with its libnvrtc-builtins beside it."
        ) from error


def _loaded() -> str | None:
    """Return the path of the NVRTC in this process, or None before there is one."""
    try:
        ctypes.CDLL(_SONAME, os.RTLD_NOLOAD)
    except OSError:
        return None
    bindings()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    path: str | None = load_nvidia_dynamic_lib("nvrtc").abs_path
    return path


@Once
def bindings() -> Any:
    """Import the bindings and load the library.

    Before anything here can load libcuda, its compute cache is switched off (it reads
    the variable once): nvJitLink and NVRTC would keep results there, and a cold build
    would be a warm one.
    """
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        lacking = "cuda.bindings" if isinstance(error, ImportError) else "NVRTC"
        raise DeviceError(
            f"there is no {lacking} here to compile CUDA with: "
            f"{install.command('cuda')}."
        ) from error
    return nvrtc


@Once
def compiler() -> Compiler:
    """Say which NVRTC this process compiles with, loading it.

    Raises:
        DeviceError: there is none.
    """
    _, major, minor = bindings().nvrtcVersion()
    path = _loaded()
    assert path is not None, "NVRTC answered, so it is loaded"
    version = _package_version(Path(path).resolve()) or f"{major}.{minor}"
    return Compiler(version, _digest(path), path)


def _package_version(path: Path) -> str | None:
    """Return the version of the package that ``path`` was installed by, if any."""
    if len(path.parents) < 5:
        return None
    root = path.parents[3]  # site-packages / nvidia / cu13 / lib / libnvrtc.so.13
    record = path.relative_to(root).as_posix()
    from importlib import metadata  # 20 ms

    for found in metadata.distributions(name="nvidia-cuda-nvrtc", path=[str(root)]):
        if any(file.as_posix() == record for file in found.files or ()):
            return found.version
    return None


def _digest(path: str) -> str:
    """Hash the size and the first megabyte, where the linker's build id lies (1 ms)."""
    digest = hashlib.blake2b(str(Path(path).stat().st_size).encode(), digest_size=6)
    with Path(path).open("rb") as file:
        digest.update(file.read(1 << 20))
    return digest.hexdigest()

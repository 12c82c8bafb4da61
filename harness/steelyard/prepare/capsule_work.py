"""A capsule as the one case of a benchmark: what a worker launches of it.

Files that it needs lie beside it in a folder of the run (`unpack`); its own is named by
its digest, and a worker opens no other.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from steelyard.declare import mode as modes
from steelyard.declare.axes import plain
from steelyard.declare.benchmark import (
    Case,
    Described,
    DescribedCase,
    Description,
    elsewhere,
)
from steelyard.declare.handles import CUDA, Call, Check, Handle
from steelyard.errors import BenchmarkError
from steelyard.machine import files
from steelyard.prepare import answers, capsules
from steelyard.prepare.capsule_checks import Launch
from steelyard.prepare.capsules import SUFFIX, Capsule
from steelyard.prepare.cubins import CubinWork, Extents
from steelyard.prepare.work import BoundOnCall
from steelyard_device import binary, cpu, cuda, memory, series
from steelyard_device.cuda import tensors

ROWS = "rows.npz"


@dataclass(frozen=True, slots=True)
class SealedCase(DescribedCase):
    """The case of a capsule, as it was called where it was made."""

    def describe(self) -> Description:
        """Return what it needs; nothing is allocated or loaded."""
        assert isinstance(self.benchmark, Sealed)
        return self.benchmark.described()


@dataclass(frozen=True, slots=True)
class Sealed(Described):
    """A benchmark that defines nothing: its case is a capsule's."""

    capsule: Capsule

    @classmethod
    def of(cls, place: Path) -> Self:
        """Open a capsule that was unpacked.

        Raises:
            SteelyardError: it is not the one that was.
        """
        found = _opened(place)
        about = found.manifest
        said = {"name": about["benchmark"], "path": place, "line": about["line"]}
        return cls(elsewhere, {}, said, found)

    def source_hash(self) -> str:
        """Return the hash of the benchmark's file where the capsule was made."""
        return self.capsule.manifest["source"]

    def case(self, axes: Mapping[str, Any] | None = None) -> Case:
        """Return the one case, whatever is asked for."""
        del axes
        known = {n: plain(value) for n, value in self.capsule.manifest["axes"].items()}
        return SealedCase(self, known, {"id": self.capsule.manifest["case"]})

    def described(self) -> Description:
        """Return what the case needs."""
        manifest, folder = self.capsule.manifest, self.path.parent
        handles = {
            one["name"]: Handle(
                one["name"],
                one["role"],
                tuple(one["shape"]),
                one["dtype"],
                tuple(
                    (n, str(folder / f"{number}.npy") if n == "file" else value)
                    for n, value in one["recipe"]
                ),
            )
            for number, one in enumerate(manifest["handles"])
        }
        names = [one["handle"] for one in manifest["arrays"] if one["handle"]]
        call = Call(
            SealedKernel(self.capsule),
            tuple(handles[name] for name in names),
            None,
            "numpy",
            {},
        )
        check = manifest["check"]
        known = check and Check(None, (), check["rtol"], check["atol"], folder / ROWS)
        return Description(
            tuple(handles.values()),
            call,
            known,
            tuple(map(modes.parse, manifest["modes"])),
            manifest["counts"],
            manifest["device"],
        )


@functools.lru_cache(maxsize=1)
def _opened(place: Path) -> Capsule:
    """Read an unpacked capsule once a process: it is named by its digest."""
    found = capsules.read(files.read(place, limit=capsules.LARGEST))
    if found.digest != place.stem:
        raise BenchmarkError(f"{place.name} is not the capsule that was asked for.")
    return found


def unpack(capsule: Capsule, folder: Path) -> Sealed:
    """Write a capsule and what its case needs to a folder of ours; open it there."""
    for name, body in capsule.members.items():
        if name.startswith("data/"):
            (folder / name.removeprefix("data/")).write_bytes(body)
    check = capsule.manifest["check"]
    if check is not None:
        rows = [capsule.known(number) for number in range(len(check["results"]))]
        answers.keep(folder / ROWS, [answers.Rows(*one) for one in rows])
    place = folder / f"{capsule.digest}{SUFFIX}"
    place.write_bytes(capsule.data)
    return Sealed.of(place)


def drafted(
    content: Mapping[str, Any], members: Mapping[str, bytes], folder: Path
) -> Sealed:
    """Open a capsule that nobody has measured yet, in a folder of ours."""
    draft = capsules.write(content, {**members, capsules.RUN: b"{}"})
    return unpack(capsules.read(draft), folder)


@dataclass(frozen=True, slots=True)
class SealedKernel(BoundOnCall):
    """The launch of a capsule, a target of `Call`; its arguments go by place."""

    capsule: Capsule

    def bind(self, *args: Any) -> SealedLaunch | SealedSeries | SealedCubin:
        """Load the code and pack the launch for these arrays.

        Raises:
            BenchmarkError: the processor lacks instructions that the code was made for.
            DeviceError: the code cannot be loaded.
        """
        manifest = self.capsule.manifest
        launch = manifest["launch"]
        on_gpu = manifest["device"] == CUDA
        given, addresses, kept = iter(args), {}, []
        context = args[0].context if on_gpu else None
        for array in manifest["arrays"]:
            one = next(given) if array["handle"] else _room(array["bytes"], context)
            kept.append(one)
            addresses[array["name"]] = one.address if on_gpu else one.ctypes.data
        if context is None:
            return self._on_cpu(addresses, kept)
        words = binary.words(launch.get("slots", ()), addresses)
        for place, (kind, name, word) in enumerate(launch.get("slots", ())):
            if kind == "tensor":
                words[place] = tensors.encoded(context.handle, addresses[name], **word)
        return self._on_gpu(context, words, kept)

    def _on_cpu(
        self, addresses: Mapping[str, int], kept: Sequence[Any]
    ) -> SealedLaunch | SealedSeries:
        from steelyard_device import llvm  # llvmlite takes long to import

        manifest, launch = self.capsule.manifest, self.capsule.manifest["launch"]
        lacks = capsules.lacking(manifest, llvm.host().features)
        if lacks:
            raise BenchmarkError(
                f"{manifest['case']}: its code was made for a processor with "
                f"{', '.join(lacks)}, which this one lacks. Replay it on such a machine."
            )
        code = self.capsule.members[capsules.CODE]
        parts, slots = series.of_head(launch, code, addresses)
        made: SealedLaunch | SealedSeries
        if "launches" in launch:
            made = SealedSeries(parts, slots)
        else:
            ((function, _, threads),) = parts
            made = SealedLaunch(function, slots, threads, claims=True)
        made.head, made.kept = launch, kept
        return made

    def _on_gpu(
        self,
        context: cuda.Context,
        words: Sequence[int | bytes],
        kept: Sequence[Any],
    ) -> SealedCubin:
        launch = self.capsule.manifest["launch"]
        module = cuda.load(context, self.capsule.members[capsules.CODE])
        made = SealedCubin(
            module.function(launch.get("entry", "")),
            words,
            grid=_extents(launch.get("grid", 1)),
            block=_extents(launch.get("block", 1)),
            shared=launch.get("shared", 0),
        )
        made.head, made.arguments = launch, tuple(kept)
        return made


class SealedLaunch(cpu.Launch):
    """A launch on this machine's cores, with the facts of where it was made."""

    head: Launch
    kept: Sequence[Any]
    """Arrays, alive as long as they may be written to."""

    def facts(self) -> dict[str, Any]:
        """Return what the code's maker said, and on how many threads it runs here."""
        return {**self.head["facts"], **super().facts()}


class SealedSeries(SealedLaunch, series.Series):
    """Several launches on this machine's cores."""


class SealedCubin(CubinWork):
    """A launch on a GPU, with the facts of where it was made."""

    head: Launch

    def facts(self) -> dict[str, Any]:
        """Return what the code's maker said, and how many blocks fit this GPU."""
        resident = cuda.Launch.facts(self)["blocks_per_multiprocessor"]
        return {**self.head["facts"], "blocks_per_multiprocessor": resident}


def _room(nbytes: int, context: cuda.Context | None) -> Any:
    """Return memory that only the launch looks at."""
    if context is not None:
        return cuda.Buffer(context, (nbytes,), np.uint8)
    return memory.empty((nbytes,), np.uint8)


def _extents(given: int | list[int]) -> Extents:
    return given if isinstance(given, int) else tuple(given)

"""Capsules in workers: what a case gives for one, and what one that runs it may take."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from steelyard.declare.handles import Handle
from steelyard.declare.plan import Settings
from steelyard.errors import BenchmarkError
from steelyard.measure import inject
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import capsules
from steelyard.prepare.answers import Rows
from steelyard.prepare.capsule_checks import INDEX
from steelyard.prepare.capsule_work import Sealed
from steelyard.prepare.work import DeviceWork, Recordable
from steelyard_device import binary

SPARE: Final = 8 << 30
"""Bytes of memory beside the buffers: flushes walk several times a cache of 1 GiB at most,
and CUDA's driver keeps some for itself."""

ELEMENTS: Final = 8192
"""Known elements of a result that a capsule keeps at most, but for a row: 64 KiB."""

TIMES: Final = 4
"""How often the buffers: copies of them are made to restore, compare and draw them."""


def confine(place: Path) -> None:
    """Limit what this process may take of memory, for good, before a capsule is loaded.

    Private memory counts that can be written (RLIMIT_DATA): CUDA reserves addresses
    beyond any limit of those. How long it takes is for the run to limit.
    """
    most = SPARE + TIMES * Sealed.of(place).capsule.nbytes
    for which, limit in ((resource.RLIMIT_DATA, most), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(which)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(which, (least, least))


def record(prepared: PreparedCase, settings: Settings, folder: Path) -> dict[str, Any]:
    """Write the members of a case's capsule to a folder; return the manifest's content.

    Raises:
        BenchmarkError: its work is not one launch of machine code.
    """
    from steelyard_device import llvm  # llvmlite takes long to import

    bound, case = inject.bare(prepared.work), prepared.case
    if not isinstance(bound, Recordable):
        several = len(bound.facts().get("launches", ()))
        if several:
            raise BenchmarkError(
                f"{case.id} is {several} launches on a GPU, of which a capsule holds one "
                "yet; make one of it on a CPU, or of one launch of a running program by "
                "`steelyard attach --capture KERNEL`."
            )
        raise BenchmarkError(
            f"{case.id} calls Python, and a capsule holds machine code and its launch. "
            "Choose a case of a compiled kernel or of a work.Cubin."
        )
    head, image = binary.unpack(bound.binary())
    if "order" in head:
        raise BenchmarkError(
            f"{case.id} repeats launches of a loop, and a capsule holds those that run "
            "once. Choose a case of one iteration, or of a loop in one kernel."
        )
    (folder / capsules.CODE).write_bytes(image)
    handles = prepared.buffers.handles
    features = [] if isinstance(bound, DeviceWork) else sorted(llvm.host().features)
    return {
        "case": case.id,
        "benchmark": case.benchmark.name,
        "axes": dict(case.axes),
        "source": prepared.hashes["source"],
        "file": case.benchmark.path.name,
        "line": case.benchmark.line,
        "device": prepared.description.device,
        "features": features,
        "seed": settings.seed,
        "modes": [],
        "counts": dict(prepared.description.counts),
        "handles": [_handle(h, folder, number) for number, h in enumerate(handles)],
        "arrays": list(_arrays(prepared, bound)),
        "launch": {n: value for n, value in head.items() if n in KEPT},
        "check": _check(prepared, folder),
    }


KEPT: Final = (
    *("entry", "slots", "facts", "threads", "grid", "block", "shared"),
    "launches",
)
"""What a capsule keeps of a binary's head."""


def _handle(handle: Handle, folder: Path, number: int) -> dict[str, Any]:
    """Return a handle; a file that it comes from is copied, without its path."""
    recipe = dict(handle.recipe)
    if "file" in recipe:
        data = Path(recipe["file"]).read_bytes()
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / f"{number}.npy").write_bytes(data)
        recipe["file"] = ""
    return {
        "name": handle.name,
        "role": handle.role,
        "shape": handle.shape,
        "dtype": handle.dtype,
        "recipe": list(recipe.items()),
    }


def _arrays(prepared: PreparedCase, bound: Recordable) -> Iterator[dict[str, Any]]:
    """Yield the arrays of a launch, with the handle that each is, if it is one."""
    own = {_address(a): name for name, a in prepared.buffers.arrays.items() if a.nbytes}
    for name, array in bound.arrays.items():
        handle = own.get(_address(array))
        yield {"name": name, "handle": handle, "bytes": array.nbytes}


def _address(array: Any) -> int:
    return int(array.address if hasattr(array, "address") else array.ctypes.data)


def _few(rows: Rows) -> Rows:
    """Return some of the rows that are known, evenly: a capsule is to be small."""
    width = rows.wanted[0].size if len(rows.indices) else 1
    step = math.ceil(len(rows.indices) / max(1, ELEMENTS // max(1, width)))
    if step <= 1:
        return rows
    return Rows(rows.indices[::step], rows.wanted[::step])


def _check(prepared: PreparedCase, folder: Path) -> Mapping[str, Any] | None:
    """Write the rows that are known of each result; return how they are held against."""
    check = prepared.description.check
    if check is None or not prepared.known:
        return None
    (folder / "check").mkdir()
    kept = []
    for number, rows in enumerate(map(_few, prepared.known)):
        little = rows.wanted.dtype.newbyteorder("<")
        for what, array in (
            ("indices", rows.indices.astype(INDEX)),
            ("wanted", np.ascontiguousarray(rows.wanted, little)),
        ):
            (folder / "check" / f"{number}.{what}").write_bytes(array.tobytes())
        count = len(rows.indices) if rows.wanted.ndim else 1
        kept.append({"rows": count, "dtype": rows.wanted.dtype.name})
    return {"rtol": check.rtol, "atol": check.atol, "results": kept}

"""What the parts of a capsule owe each other, looked at before anything is loaded."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import numpy as np

from steelyard.declare.recipes import DISTRIBUTIONS
from steelyard.machine.decoding import Malformed, Matching, Within, checked
from steelyard_device import binary, cubin
from steelyard_device.errors import DeviceError

MOST: Final = 200
"""Handles, arrays and slots."""

LAUNCHES: Final = 5000
"""Of a program: 12 layers of BERT-base have 108 on a CPU."""

LONGEST: Final = 2**46
"""Bytes of a buffer: more than any memory has."""

MACHINES: Final = {62: "x86_64", 183: "aarch64"}
"""Processors of object code, by ELF's numbers."""

INDEX: Final = np.dtype("<i8")
"""Of the places of known rows."""


class _Tensor(TypedDict):
    """How bulk copies see an array."""

    dtype: Literal["float16", "bfloat16"]
    first: Count
    extents: list[Count]
    strides: list[Bytes]
    box: list[Count]
    swizzle: Literal[32, 64, 128]


class _Addresses(TypedDict):
    """A structure that holds addresses."""

    bytes: Annotated[str, Matching(r"([0-9a-f]{2}){8,32764}")]
    at: list[tuple[Count, Name, Bytes]]


def size(handle: Buffer) -> int:
    """Return the bytes of a handle's buffer."""
    return math.prod(handle["shape"]) * np.dtype(handle["dtype"]).itemsize


def shape(kept: Kept, handle: Buffer) -> tuple[int, ...]:
    """Return the shape of what is known of a result."""
    return (kept["rows"], *handle["shape"][1:]) if handle["shape"] else ()


def results(manifest: Manifest) -> list[Buffer]:
    """Return what a launch writes: outputs, then inouts."""
    every = manifest["handles"]
    return [h for role in ("output", "inout") for h in every if h["role"] == role]


def require(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """Look at the launch, its data and its code; members are those of the manifest.

    Raises:
        Malformed: parts do not belong together.
    """
    _require_handles(manifest)
    _require_launch(manifest)
    _require_data(manifest, members)
    _require_rows(manifest, members)
    _require_code(manifest, members["code"])


def _require_handles(manifest: Manifest) -> None:
    for what, some in (
        ("handles", manifest["handles"]),
        ("arrays", manifest["arrays"]),
    ):
        names = [one["name"] for one in some]
        if len(names) > MOST or len(set(names)) < len(names):
            raise Malformed(f"{what} are too many, or there twice")
    for handle in manifest["handles"]:
        _require_recipe(handle)
    known = {handle["name"] for handle in manifest["handles"]}
    for array in manifest["arrays"]:
        name = array["handle"]
        if name is not None and name not in known:
            raise Malformed(f"array {array['name']} lies in {name}, which is no handle")
    if not any(array["handle"] for array in manifest["arrays"]):
        raise Malformed("no array is one of a handle")


def _require_launch(manifest: Manifest) -> None:
    """Refuse a launch without what its device needs, or with slots that get nothing."""
    device, every = manifest["device"], binary.launches(manifest["launch"])
    if "launches" in manifest["launch"] and device != "cpu":
        raise Malformed(f"it has several launches on {device}, and only a cpu's can")
    if not 0 < len(every) <= LAUNCHES:
        raise Malformed(f"it has {len(every)} launches, not 1 to {LAUNCHES}")
    needed = {"threads"} if device == "cpu" else {"grid", "block", "shared"}
    for launch in every:
        if missing := {*needed, "entry", "slots"} - launch.keys():
            raise Malformed(f"a launch on {device} has no {', '.join(sorted(missing))}")
        _require_slots(launch["slots"], manifest)


def _require_slots(slots: binary.Slots, manifest: Manifest) -> None:
    if not 0 < len(slots) <= MOST:
        raise Malformed(f"a launch has {len(slots)} slots")
    sizes = {array["name"]: array["bytes"] for array in manifest["arrays"]}
    for number, (kind, name, word) in enumerate(slots):
        _require_slot(f"slot {number}", kind, word, manifest["device"])
        taken = [(name, 0)] if kind == "tensor" else []
        if kind in binary.ADDRESSED:
            taken = [(name, word)]
        if kind == "addresses":
            taken = [(array, shift) for _, array, shift in word["at"]]
        for array, shift in taken:
            if shift > sizes.get(array, -1):
                raise Malformed(f"slot {number} takes {array}, which is no array")


def _require_slot(at: str, kind: str, word: Any, device: str) -> None:
    if device == "cpu" and kind in {"tensor", "bytes", "addresses"}:
        raise Malformed(f"{at} is of kind {kind}, which a launch on a cpu has not")
    if kind == "tensor":
        found = checked(word, _Tensor, at)
        axes = len(found["extents"])
        if not (1 <= axes == len(found["box"]) == len(found["strides"]) + 1 <= 5):
            raise Malformed(f"{at}: a tensor has {axes} extents and other strides")
    elif kind == "addresses":
        room = len(checked(word, _Addresses, at)["bytes"]) // 2
        if any(place > room - 8 for place, *_ in word["at"]):
            raise Malformed(f"{at}: an address lies behind its end")
    elif kind == "bytes":
        checked(word, Annotated[str, Matching(r"([0-9a-f]{2}){0,32764}")], at)  # type: ignore[arg-type] # a type, to `checked`
    else:
        checked(word, Annotated[int, Within(0, 2**64 - 1)], at)  # type: ignore[arg-type]


def _require_recipe(handle: Buffer) -> None:
    """Refuse data that nobody can draw: an unknown distribution, or its parameters."""
    recipe, name = dict(handle["recipe"]), handle["name"]
    if size(handle) > LONGEST:
        raise Malformed(f"{name} is larger than any memory")
    if handle["role"] == "output":
        known = not recipe
    elif "file" in recipe:
        known = recipe.keys() == {"file", "constant"} and recipe["file"] == ""
    else:
        dist = recipe.pop("dist", None)
        parameters = DISTRIBUTIONS.get(dist if isinstance(dist, str) else "", {})
        numbers = all(isinstance(v, int | float) for v in recipe.values())
        known = bool(parameters) and recipe.keys() == parameters.keys() and numbers
    if not known:
        raise Malformed(f"{name} has a recipe that is none")


def _require_data(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    for number, handle in enumerate(manifest["handles"]):
        body = members.get(f"data/{number}.npy")
        if body is not None:
            _require_npy(body, handle)


def _require_rows(manifest: Manifest, members: Mapping[str, bytes]) -> None:
    """Refuse known rows that are not of the lengths or the places that they should be."""
    check, written = manifest["check"], results(manifest)
    if check is None:
        return
    if len(check["results"]) != len(written):
        raise Malformed("it checks other results than there are")
    for number, (kept, handle) in enumerate(
        zip(check["results"], written, strict=True)
    ):
        name = handle["name"]
        indices = members[f"check/{number}.indices"]
        wanted = members[f"check/{number}.wanted"]
        items = math.prod(shape(kept, handle))
        count = kept["rows"] if handle["shape"] else 0
        if len(indices) != count * INDEX.itemsize:
            raise Malformed(f"places of known rows of {name} are too many or few")
        if len(wanted) != items * np.dtype(kept["dtype"]).itemsize:
            raise Malformed(f"known rows of {name} have another length")
        places = np.frombuffer(indices, INDEX)
        if count and not (places.min() >= 0 and places.max() < handle["shape"][0]):
            raise Malformed(f"known rows of {name} lie outside of it")


def _require_npy(body: bytes, handle: Buffer) -> None:
    try:
        data = np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
    except Exception as error:  # noqa: BLE001 # NumPy has Python's own parser read headers
        raise Malformed(f"data of {handle['name']}: {type(error).__name__}") from None
    if [*data.shape] != handle["shape"] or data.dtype != np.dtype(handle["dtype"]):
        raise Malformed(f"data of {handle['name']} has another shape or dtype")


def _require_code(manifest: Manifest, code: bytes) -> None:
    """Refuse code of another kind of machine, without the entry, or of another hash.

    The hash is made as the code's maker made it: of a cubin that of the entry's
    instructions, of object code that of its bytes. Gates go by it.
    """
    launch, facts = manifest["launch"], manifest["launch"]["facts"]
    if "launches" in launch:
        parts = launch["launches"]
        made = [_object_hash(binary.code_of(e, code), e["entry"]) for e in parts]
        _require_hash(
            facts, blake2b("".join(made).encode(), digest_size=16).hexdigest()
        )
        return
    entry = launch.get("entry", "")
    if manifest["device"] == "cuda":
        try:
            entries = cubin.read(code)
        except DeviceError as error:
            raise Malformed(f"its code is no cubin: {error}") from None
        if entry not in entries:
            raise Malformed(f"its cubin has no kernel {entry}")
        _require_hash(facts, entries[entry].code_hash)
        return
    _require_hash(facts, _object_hash(code, entry))


def _object_hash(code: bytes, entry: str) -> str:
    """Return the hash of object code that has an entry."""
    machine = int.from_bytes(code[18:20], "little")
    relocatable = code[16:18] == b"\1\0"
    if not (code.startswith(b"\x7fELF\2\1") and relocatable and machine in MACHINES):
        raise Malformed("its code is no object file of a processor that we know")
    if entry.encode() + b"\0" not in code:
        raise Malformed(f"its code has no {entry}")
    return blake2b(code, digest_size=16).hexdigest()


def _require_hash(facts: Mapping[str, Any], made: str) -> None:
    if facts.get("code_hash") != made:
        raise Malformed(f"its code has the hash {made}, not facts.code_hash")


Text = Annotated[str, Matching(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,500}")]
Name = Annotated[str, Matching(r"[\w.-]{1,100}")]
Symbol = Annotated[str, Matching(r"[\w.$@<>-]{1,4000}")]
Hex = Annotated[str, Matching(r"[0-9a-f]{32}")]
Count = Annotated[int, Within(0, 2**31 - 1)]
Bytes = Annotated[int, Within(0, 2**46)]
Number = Annotated[float, Within(-1e300, 1e300)]
Value = bool | Number | Text | None
Extents = int | list[Annotated[int, Within(1, 2**31 - 1)]]


class Buffer(TypedDict):
    """A handle, as `declare.handles.Handle` has it."""

    name: Name
    role: Literal["input", "inout", "output"]
    shape: list[Count]
    dtype: Annotated[str, Matching(r"bool|u?int(8|16|32|64)|float(16|32|64)")]
    recipe: list[tuple[Text, Value]]


class Array(TypedDict):
    """An array of the launch: a handle's, or memory that nobody else looks at."""

    name: Name
    handle: Name | None
    bytes: Bytes


class OneLaunch(TypedDict):
    """One of several launches on a CPU; its code begins and is as long as ``code`` says."""

    entry: Symbol
    slots: list[tuple[Name, Text, Any]]
    threads: Annotated[int, Within(0, 1)]
    code: tuple[Bytes, Bytes]


class Launch(TypedDict):
    """The head of the binary: of one launch with its entry and slots, or of several."""

    facts: dict[str, Any]
    entry: NotRequired[Symbol]
    slots: NotRequired[list[tuple[Name, Text, Any]]]
    launches: NotRequired[list[OneLaunch]]
    threads: NotRequired[Annotated[int, Within(0, 1)]]
    grid: NotRequired[Extents]
    block: NotRequired[Extents]
    shared: NotRequired[Annotated[int, Within(0, 1 << 20)]]


class Kept(TypedDict):
    """Rows of one result that are known; of a scalar one and no index."""

    rows: Count
    dtype: Annotated[str, Matching(r"bool|u?int(8|16|32|64)|float64")]


class Check(TypedDict):
    """What results are held against."""

    rtol: Annotated[float, Within(0, 1e300)] | None
    atol: Annotated[float, Within(0, 1e300)] | None
    results: list[Kept]


class Member(TypedDict):
    """Another file of the archive."""

    bytes: Bytes
    digest: Hex


class Manifest(TypedDict):
    """What a capsule says of itself."""

    case: Text
    benchmark: Name
    axes: dict[str, Value | list[Value]]
    source: Text
    file: Text
    line: Count
    device: Literal["cpu", "cuda"]
    features: list[Name]
    seed: Annotated[int, Within(0, 2**63 - 1)]
    modes: list[Annotated[str, Matching(r"[\w/-]{1,64}")]]
    counts: dict[str, Annotated[float, Within(0, 1e30)]]
    handles: list[Buffer]
    arrays: list[Array]
    launch: Launch
    check: Check | None
    members: dict[str, Member]

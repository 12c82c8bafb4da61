"""What a capsule's manifest holds: the type and the bounds of each value.

`capsules` says what a capsule is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from steelyard.machine.decoding import Matching, Within

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

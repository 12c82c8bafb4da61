"""What a run and a trial hold in a file: the type and the bounds of each value.

Reports compute with these values and expect nothing else. What no report computes with
is of any type; `codec.restore` bounds its numbers.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from steelyard.analyse.trial import Traits
from steelyard.machine.decoding import Matching, Within

MOST: Final = 2**31 - 1
"""Of a count; PostgreSQL's integers hold no more."""

LONGEST: Final = 1e18
"""Nanoseconds: 31 years."""

Index = Annotated[int, Within(0, MOST)]
Count = Annotated[int, Within(1, MOST)]
Bytes = Annotated[int, Within(0, 2**63 - 1)]
Time = Annotated[float, Within(0, LONGEST)]
Change = Annotated[float, Within(-LONGEST, LONGEST)]
Share = Annotated[float, Within(0, 1)]
Amount = Annotated[float, Within(0, 1e30)]
Number = Annotated[float, Within(-1e30, 1e30)]
Positive = Annotated[float, Within(1e-30, 1e30)]
Unknown = Literal["unknown"]
Axis = bool | Number | str | None
Mode = Annotated[str, Matching(r"[\w/-]{1,64}")]
Word = Annotated[str, Matching(r".{0,64}")]
Moment = Annotated[str, Matching(r"[\w:.+-]{0,32}")]
Size = Annotated[str, Matching(r"[1-9][0-9]{0,17}")]


class Clock(Traits):
    """The facts of a clock but for its floor, which is in the blob."""

    id: str
    version: Index
    quantum: Time
    offset: NotRequired[Change]  # it and those below came with clocks of GPUs
    uncertainty: NotRequired[Time]
    drift: NotRequired[Share]


class Facts(TypedDict):
    """What the work says of itself."""

    bytes: NotRequired[Amount | None]
    operations: NotRequired[Amount | None]
    items: NotRequired[Amount | None]
    kernels: NotRequired[Index | None]
    opcodes: NotRequired[dict[str, Index] | str | None]
    code_hash: NotRequired[str | None]


class Process(TypedDict):
    """Another process on the GPU."""

    pid: Index


class State(TypedDict):
    """A GPU before or after a trial."""

    temperature_c: NotRequired[Number | Unknown]
    others: NotRequired[list[Process] | Unknown]


class Gpu(TypedDict):
    """What a trial keeps of its GPU."""

    before: NotRequired[State]
    after: NotRequired[State]
    energy: NotRequired[dict[str, Number]]
    capped: NotRequired[dict[str, Bytes | Unknown]]


class Reading(Traits):
    """What another clock of a GPU read."""

    ticks: list[Annotated[int, Within(-(2**63), 2**63 - 1)]]
    quantum: Time
    offset: Change
    uncertainty: Time
    drift: Share


class Stated(TypedDict):
    """An estimate of another tool, which kept no samples."""

    value: Time
    low: Time
    high: Time
    systematic: Time


class Extra(TypedDict):
    """What was noted beside the samples."""

    stated: NotRequired[Stated]

    gpu: NotRequired[Gpu]
    clocks: NotRequired[dict[str, Reading]]
    mhz: NotRequired[list[Number | Unknown | None]]
    spans: NotRequired[tuple[Bytes, Bytes]]
    audit: NotRequired[dict[str, Any]]
    neighbours: NotRequired[Number | Unknown | None]
    flush_bytes: NotRequired[Bytes | None]
    working_set: NotRequired[Amount]


class Document(TypedDict):
    """A trial without its samples."""

    case: str
    axes: dict[str, Axis | list[Axis]]
    mode: Mode
    block: Index
    position: Index
    worker: Index
    clock: Clock
    floors: dict[str, Time]
    ledger: dict[str, Change]
    facts: Facts
    hashes: dict[str, str]
    extra: Extra
    doubts: list[str]
    error: str | None


class Writer(TypedDict):
    """The process that writes a run."""

    machine: str
    boot: str
    namespace: str
    pid: Index
    started: str


class Cache(TypedDict):
    """One level of caches."""

    bytes: Bytes | Unknown


class Identity(TypedDict):
    """Which machine it is."""

    id: NotRequired[str]
    cpu: NotRequired[str]
    system: NotRequired[str]
    hypervisor: NotRequired[str]
    cores: NotRequired[Index | str]
    memory: NotRequired[Bytes | str]
    caches: NotRequired[dict[str, Cache | str] | str]


class Peaks(TypedDict):
    """What a GPU was measured to do at most: see `analyse.peaks`."""

    problem: NotRequired[str]
    uncertainty: NotRequired[Time]
    drift: NotRequired[Share]
    copy: NotRequired[dict[str, dict[Size, Positive]]]
    rates: NotRequired[dict[str, dict[str, Positive]]]


class Device(TypedDict):
    """The GPU of a run."""

    l2: NotRequired[Bytes | str | None]
    memory: NotRequired[Bytes | str | None]
    peaks: NotRequired[Peaks]


class Machine(TypedDict):
    """The machine of a run."""

    identity: NotRequired[Identity]
    settings: NotRequired[dict[str, Any]]
    versions: NotRequired[dict[str, str | bool | None]]
    moment: NotRequired[dict[str, Any]]
    gpu: NotRequired[Device]


class Settings(TypedDict):
    """How a run measured."""

    seed: NotRequired[int | None]
    precision: NotRequired[Amount | None]
    clock: NotRequired[str]
    check: NotRequired[bool]
    inputs: NotRequired[dict[str, str]]
    turns: NotRequired[Index | None]
    imported: NotRequired[str]
    dated: NotRequired[str]


class Run(TypedDict):
    """A run without its trials."""

    uid: Annotated[str, Matching(r"\w{1,32}")]
    started: Moment
    command: str
    version: Annotated[str, Matching(r".{0,32}")]
    machine: Machine
    settings: Settings
    tags: list[str]
    commit: Word
    dirty: bool | None
    writer: dict[str, Any]
    state: Literal["running", "finished", "budget", "interrupted", "failed", "killed"]
    finished: Moment | None

"""How a run measures; everything its numbers depend on but the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line and the configuration decide."""

    seed: int = 0
    budget: float | None = None
    """Seconds for the whole run."""
    precision: float = 0.005
    """Half-width of the interval at which a trial stops, as a fraction."""
    timeout: float = 60.0
    """Seconds after which a silent worker is taken for hung."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files instead of generated data, by the names of handles."""
    flush_bytes: int | None = None
    """What a flush walks; calibrated if it is not known yet."""
    gpu: int = 0
    """Which GPU cases on ``cuda`` use, as CUDA numbers them."""
    clock: str = "auto"
    """Which clock reads the kernel on a GPU: its id, ``auto`` for the best there is, or
    ``all``, where every other one reads the same case beside it."""
    scratch: str = ""
    """A folder that the blocks of one run share, such as for rows of references."""
    check: bool = True
    audit: bool = True
    """Whether work that is checked is also audited, and its numbers are confirmed by
    another process: once a run, for longer than some trials take."""
    allocations: bool = False
    energy: bool = False
    """Whether the energy of a launch on a GPU is metered, which takes 0.4 s a case."""
    role: str = ""
    """Whether this trial's windows are taken in turn with another worker's, which waits
    on a clock of the host's: it may lead or follow; see `interleave`."""

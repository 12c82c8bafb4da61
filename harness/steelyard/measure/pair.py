"""Two builds of one kernel in one process: launched in turn on the same buffers.

One is the case's own, the other a binary that another process gave away. Each is measured
as it would be alone, and where memory lies is the same for both. Code lies where each was
linked.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from steelyard.analyse.trial import Trial
from steelyard.declare.benchmark import Case
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.measure import inject, interleave
from steelyard.measure.instruments import Instruments
from steelyard.measure.one_case import Measurement, placed
from steelyard.measure.prepared import PreparedCase, blank
from steelyard.measure.sampler import no_collection
from steelyard.prepare import inputs
from steelyard.prepare.work import Bindable, Exported, NativeWork


@runtime_checkable
class Portable(Exported, Protocol):
    """Such work that can also launch another build's code on its own arrays."""

    def of_binary(self, binary: bytes) -> NativeWork:
        """Return another build's launch on the arrays of this work.

        Raises:
            Exception: it is called on other memory; of which class is the work's to say.
        """
        ...


@dataclass(frozen=True, slots=True)
class PortableBinary:
    """A case's compiled binary and input recipe: enough to run it in another process."""

    binary: bytes
    inputs: str
    """The hash of what the case works on."""
    injected: int | None
    """Multiply-adds behind each launch, where there are to be some; see `inject`."""

    @classmethod
    def of(cls, case: Case, settings: Settings) -> Self | None:
        """Bind a case's kernel, without data, and return it; None of other work.

        Raises:
            SteelyardError: it cannot be bound.
        """
        described = case.describe()
        call = described.call
        if call.built_for or settings.inputs or not isinstance(call.target, Bindable):
            return None
        bound = blank(described, settings)
        if not isinstance(bound, Portable):
            return None
        given = inputs.recipe_hash(described.handles, settings.seed)
        return cls(bound.binary(), given, inject.asked(case.id))

    def message(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        text = base64.b64encode(self.binary).decode()
        return {"binary": text, "inputs": self.inputs, "injected": self.injected}

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Self:
        """Read what `message` returned."""
        data = base64.b64decode(message["binary"])
        return cls(data, message["inputs"], message["injected"])


def beside(prepared: PreparedCase, portable: PortableBinary) -> PreparedCase | None:
    """Return the case with the other side's work on the same buffers.

    None where it has other inputs or another call: then each needs its own process.
    """
    own = inject.bare(prepared.work)
    if not isinstance(own, Portable) or portable.inputs != prepared.hashes["inputs"]:
        return None
    try:
        launched = own.of_binary(portable.binary)
    except Exception:  # noqa: BLE001 # whatever the user's work raises
        return None
    other = copy.copy(prepared)
    other.audited = {}
    other.work = launched
    if portable.injected is not None:
        other.work = inject.delayed(launched, portable.injected)
    return other


def measure_pair(
    sides: Sequence[PreparedCase],
    turns: Sequence[PlannedTrial],
    scale: Instruments,
    settings: Settings,
) -> list[Trial]:
    """Measure the leader and the follower in turn; what goes wrong is its trial's error.

    A side that fails ends the other too, whose error then is `interleave.OTHER`.
    """
    if turns[0].mode.cache == "cold":
        assert scale.flush.nbytes >= 0  # made now: both walk the same memory
    lead, follow = (
        Measurement(side, turn.mode, scale, settings, turn.block, turn.position)
        for side, turn in zip(sides, turns, strict=True)
    )
    with placed(sides[0]), no_collection() as collected:
        interleave.in_turn(lead.windows(collected), follow.windows(collected))
    return [lead.trial(), follow.trial()]

"""Parts of a machine that have a job each at one time: a GPU with its share of the cores.

Pure. A part is called after its machine, such as ``box/gpu0``; who has the machine has all of
its parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

MACHINE: Final = "machine"
GPU: Final = "gpu"
"""What a job has to itself; as resources of Ray's each machine has one ``machine`` and
``gpu0``, ``gpu1`` and so on."""

PARTS: Final = 10_000
"""Ray counts resources in these (docs.ray.io, Resources)."""


@dataclass(frozen=True, slots=True)
class Share:
    """One GPU of a machine."""

    uuid: str
    """As ``CUDA_VISIBLE_DEVICES`` takes it: an index would depend on who counts."""
    at: int
    of: int
    """How many there are."""

    @property
    def name(self) -> str:
        """Return ``gpu0``, ``gpu1`` and so on."""
        return f"{GPU}{self.at}"

    def resources(self) -> dict[str, float]:
        """Return what of Ray's it takes: all GPUs together less than a machine."""
        return {MACHINE: PARTS // self.of / PARTS, self.name: 1}


def labels(gpus: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the facts of a machine's GPUs, of which each is a name and a UUID."""
    if not gpus:
        return {}
    found = {"gpu": gpus[0][0], "gpus": str(len(gpus))}
    for at, (name, uuid) in enumerate(gpus):
        found |= {f"{GPU}{at}": name, f"uuid{at}": uuid}
    return found


def resources(facts: Mapping[str, str]) -> dict[str, float]:
    """Return what a machine with these facts has."""
    count = int(facts.get("gpus", 0))
    return {MACHINE: 1, **{f"{GPU}{at}": 1 for at in range(count)}}


def said(facts: Mapping[str, str]) -> dict[str, str]:
    """Return a machine's facts without those of each of its GPUs."""
    count = int(facts.get("gpus", 0))
    own = {f"{what}{at}" for what in (GPU, "uuid") for at in range(count)}
    return {name: value for name, value in facts.items() if name not in own}


def parts(facts: Mapping[str, str]) -> dict[str, tuple[dict[str, str], Share | None]]:
    """Return the facts of a machine's GPUs by name; a machine without one is whole."""
    count, whole = int(facts.get("gpus", 0)), said(facts)
    if not count:
        return {facts["name"]: (whole, None)}
    found: dict[str, tuple[dict[str, str], Share | None]] = {}
    for at in range(count):
        share = Share(facts[f"uuid{at}"], at, count)
        name = f"{facts['name']}/{share.name}"
        own = {"name": name, "gpu": facts[f"{GPU}{at}"], "gpus": "1"}
        found[name] = whole | own, share
    return found


def cores(
    cpus: Collection[int], together: Collection[Sequence[int]], share: Share
) -> set[int]:
    """Return the processors of a share: whole cores, as many as any other's, in order.

    ``together`` has the groups that are threads of one core. So that two jobs do not meet
    on one, what is over stays idle; where GPUs outnumber the cores all of them are shared.
    """
    grouped = set(chain.from_iterable(together))
    every = sorted(
        [*map(sorted, together), *([one] for one in cpus if one not in grouped)]
    )
    count = len(every) // share.of
    return set(chain.from_iterable(every[share.at * count :][:count])) or set(cpus)

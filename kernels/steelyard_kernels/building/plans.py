"""Plans of several launches on disk, beside their kernels' builds.

A process that finds one neither partitions the program nor asks what its kernels are
known by. A plan lies under the program's own key, which has all that it depends on.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import replace

from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.build import Phases, Request, linked
from steelyard_kernels.building.cache import disk, recall
from steelyard_kernels.building.keys import key
from steelyard_kernels.digest import digest
from steelyard_kernels.plan.launches import Plan


def keep(asked: Request, named: str, plan: Plan) -> None:
    """Keep the plan of a program by its key, with the key of each kernel's build.

    One of programs that are too deep to be written is made again each time.
    """
    kernels = []
    for numbers in plan.distinct:
        launch = plan.launches[numbers[0]]
        aligned = asked.aligned and launch.aligned
        name = key(launch.program, None, asked.target, aligned=aligned)
        kernels.append((name, tuple(numbers)))
    with suppress(RecursionError):
        disk().put(_place(named), pickle.dumps((plan, kernels)))


def recalled(asked: Request, named: str) -> tuple[Plan, tuple[Artifact, ...]] | None:
    """Return a program's plan and the build of each launch; None unless all are kept."""
    found = disk().get(_place(named))
    if found is None:
        return None
    kernels: list[tuple[str, tuple[int, ...]]]
    plan, kernels = pickle.loads(found)  # noqa: S301 # the disk vouches for every byte
    parts: dict[int, Artifact] = {}
    for name, numbers in kernels:
        program = plan.launches[numbers[0]].program
        made = recall(name, program, str(asked.target))
        if not isinstance(made, Artifact):
            return None
        own = replace(asked, phases=Phases())
        made = replace(linked(made, own), chosen_by="heuristic")
        asked.phases.add(made.phases)
        for number in numbers:
            parts[number] = replace(made, program=plan.launches[number].program)
    return plan, tuple([parts[number] for number in range(len(plan.launches))])


def _place(named: str) -> str:
    return digest(f"launches of {named}".encode())

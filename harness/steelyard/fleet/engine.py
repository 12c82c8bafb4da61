"""Ray as the engine of a fleet: which machines there are, and an agent on each.

An agent holds the resource ``machine`` of its node, of which each has one, or a GPU's part
of it: so two fleets of a cluster have a machine one after the other. Its facts are the
node's labels. Nothing that is measured runs in a process of Ray's.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.fleet import agent, jobs, local
from steelyard.fleet.agent import Order
from steelyard.fleet.jobs import GONE, GPU, MACHINE, Job, Share
from steelyard_device import install

NODE: Final = "node"
"""The fact that is Ray's own name of a machine, a new one after each start."""

STOP_SECONDS: Final = 30.0


def ray() -> Any:
    """Import Ray, which nobody needs before.

    Raises:
        SteelyardError: it is not installed.
    """
    try:
        import ray as module
    except ImportError as error:
        raise SteelyardError(
            f"a fleet needs Ray: {install.command('fleet')}."
        ) from error
    return module


def machines() -> dict[str, dict[str, str]]:
    """Return the facts of the nodes of a cluster that are machines, by their names."""
    found = {}
    for node in ray().nodes():
        if node["Alive"] and node["Resources"].get(MACHINE):
            facts = local.facts(node.get("Labels", {}))
            found[facts["name"]] = facts | {NODE: node["NodeID"]}
    return found


class Agent:
    """A process of Ray's on a machine; it only starts and watches."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def work(self, order: Order) -> str:
        """Do a job: see `agent.work`."""
        return agent.work(order, self._stop)

    def stop(self) -> None:
        """End what is done."""
        self._stop.set()


@dataclass(slots=True)
class Ray:
    """The machines of a cluster."""

    order: Order
    """Of every job, but for the job and the machine."""
    per: str = MACHINE
    """What a job has to itself: a machine, or a GPU of one that has any."""
    _agents: dict[str, Any] = field(default_factory=dict)
    _machines: dict[Any, str] = field(default_factory=dict)
    """By what is under way."""
    _places: dict[str, tuple[str, Share | None]] = field(default_factory=dict)
    """The node of each, and which part of it."""

    def machines(self) -> dict[str, dict[str, str]]:
        """Return the facts of the nodes that are machines, or of their GPUs."""
        found = {}
        for name, facts in machines().items():
            node, whole = facts.pop(NODE), {name: (jobs.said(facts), None)}
            parts = jobs.parts(facts) if self.per == GPU else whole
            for part, (own, share) in parts.items():
                self._places[part], found[part] = (node, share), own
        return found

    def start(self, machine: str, job: Job) -> Any:
        """Have the agent of a machine do a job."""
        module = ray()
        node, share = self._places[machine]
        if machine not in self._agents:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            how = NodeAffinitySchedulingStrategy(node, soft=False)
            made = module.remote(Agent).options(
                num_cpus=0,
                resources=share.resources() if share else {MACHINE: 1},
                scheduling_strategy=how,
                max_concurrency=2,
            )
            self._agents[machine] = made.remote()
        order = replace(self.order, job=job, machine=machine, share=share)
        begun = self._agents[machine].work.remote(order)
        self._machines[begun] = machine
        return begun

    def ended(self, seconds: float) -> list[tuple[object, str]]:
        """Return what ended; an agent that is lost is made anew for the next job."""
        module = ray()
        if not self._machines:
            threading.Event().wait(seconds)
            return []
        done, _ = module.wait(list(self._machines), timeout=seconds)
        found: list[tuple[object, str]] = []
        for one in done:
            machine = self._machines.pop(one)
            try:
                found.append((one, module.get(one)))
            except module.exceptions.RayError:
                with suppress(Exception):  # however that is said, it is gone
                    module.kill(self._agents[machine])
                del self._agents[machine]
                found.append((one, GONE))
        return found

    def stop(self) -> None:
        """Have every agent end its work, and wait for that."""
        module = ray()
        for one in self._agents.values():
            with suppress(module.exceptions.RayError):
                one.stop.remote()
        if self._machines:
            count = len(self._machines)
            module.wait(list(self._machines), num_returns=count, timeout=STOP_SECONDS)

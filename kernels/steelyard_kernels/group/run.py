"""Compile groups on workers until every candidate has its code or its reason.

A group that fails is compiled again without those that are to blame; if nobody is
named, or time was up, it is split until the one remains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

from steelyard_device.timings import listening, span
from steelyard_kernels.artifact import Code
from steelyard_kernels.group.job import Job, Reply
from steelyard_kernels.group.plan import split
from steelyard_kernels.group.worker import Worker
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains.costs import Costs

SLOWER: Final = 4
"""By how much a machine may be slower than predicted before a group is split, which
costs only time: each candidate alone gets its whole limit."""

STOPPED_PARTS: Final = 8
"""Parts of a group whose time was up: of 64 candidates one that never ends is found
after three limits, where halves would take seven."""

REFUSED_PARTS: Final = 2


@dataclass(frozen=True, slots=True)
class Group:
    """What was compiled together, by which worker and how long, in nanoseconds.

    `members` are places in the work's parts.
    """

    members: tuple[int, ...]
    worker: int
    wall: int


@dataclass(frozen=True, slots=True)
class Work:
    """Texts to be compiled, each with its entry and the seconds it is predicted to take.

    `seconds` is the limit of each.
    """

    parts: tuple[tuple[str, str], ...]
    weights: tuple[float, ...]
    target: Target
    costs: Costs
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Parts that are compiled together; `again` after a worker died of one alone."""

    members: tuple[int, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task came to, by part, and what there is to do still."""

    made: dict[int, Code]
    refused: Mapping[int, Exception]
    rest: tuple[Task, ...]


def run(
    work: Work,
    groups: Sequence[tuple[int, ...]],
    workers: Sequence[Worker],
    told: Callable[[Outcome], None],
) -> tuple[Group, ...]:
    """Compile groups of `work.parts`; `told` hears each outcome, on this thread."""
    pending = deque(Task(group) for group in groups)
    free = list(range(len(workers)))
    running: dict[Future[tuple[Group, Reply]], Task] = {}
    done: list[Group] = []
    with ThreadPoolExecutor(len(workers), "worker") as pool:
        try:
            while pending or running:
                while pending and free:
                    task, number = pending.popleft(), free.pop()
                    job = _job(work, task)
                    future = pool.submit(_timed, workers[number], number, task, job)
                    running[future] = task
                with span("wait"):
                    ended = wait(running, return_when=FIRST_COMPLETED).done
                for future in ended:
                    group, reply = future.result()
                    free.append(group.worker)
                    done.append(group)
                    outcome = settled(work, running.pop(future), reply)
                    pending.extendleft(outcome.rest)
                    told(outcome)
        finally:  # also when interrupted: a process is not waited for
            for worker in workers:
                worker.close()
    return tuple(done)


def _job(work: Work, task: Task) -> Job:
    parts = tuple(work.parts[each] for each in task.members)
    return Job(parts, work.target, limit(work, task), listening())


def limit(work: Work, task: Task) -> float | None:
    """Return the seconds that a task may take.

    One candidate's limit, and for all of them together a multiple of what is predicted
    unless their limits add up to less.
    """
    if work.seconds is None:
        return None
    predicted = work.costs.program + sum(work.weights[each] for each in task.members)
    return min(len(task.members) * work.seconds, work.seconds + SLOWER * predicted)


def _timed(worker: Worker, number: int, task: Task, job: Job) -> tuple[Group, Reply]:
    started = perf_counter_ns()
    said = f"group of {len(task.members)} from {min(task.members)}"
    with span("compile"), span(said):
        reply = worker.compile(job)
    return Group(task.members, number, perf_counter_ns() - started), reply


def settled(work: Work, task: Task, reply: Reply) -> Outcome:
    """Say what a reply means for each part of a task, and what follows."""
    made, refused, left = {}, {}, []
    for each in task.members:
        entry, _ = work.parts[each]
        if entry in reply.made:
            made[each] = reply.made[entry]
        elif entry in reply.refused:
            refused[each] = reply.refused[entry]
        else:
            left.append(each)
    if not left:
        return Outcome(made, refused, ())
    if len(left) < len(task.members):  # without those to blame it may go through
        return Outcome(made, refused, (Task(tuple(left)),))
    if len(left) > 1:
        parts = split(left, STOPPED_PARTS if reply.stopped else REFUSED_PARTS)
        return Outcome({}, {}, tuple(Task(part) for part in parts))
    if reply.died and not task.again:  # somebody else may have killed it
        return Outcome({}, {}, (Task(task.members, again=True),))
    assert reply.error is not None, "who gives no code gives a reason"
    return Outcome({}, {left[0]: reply.error}, ())

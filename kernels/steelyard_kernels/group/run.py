"""Compile groups on workers until every candidate has its code or its reason.

A group that fails is compiled again without those that are to blame; if nobody is
named, or time was up, it is split until the one remains.

A program costs its compiler something before its first kernel, so small kernels share
one; a program of many heavy ones would keep a thread busy after the others are done.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from time import perf_counter_ns
from typing import Final

from msgspec import Struct

from steelyard_device.timings import listening, span
from steelyard_kernels.artifact import Code
from steelyard_kernels.group.worker import Job, Reply, Worker
from steelyard_kernels.targets import Target
from steelyard_kernels.toolchains.costs import Costs

LARGEST: Final = 64
"""Kernels of a program: more save little of its fixed cost, and lose more together."""

LONGEST: Final = 0.4
"""Seconds of a program: eight kernels of 50 ms, of which the fixed cost is 4 %."""

PER_THREAD: Final = 3
"""Programs of a thread where there is enough, so that the last one hangs over little."""

SHARE: Final = 0.1
"""The part of a program's time that its fixed cost may be for having `PER_THREAD`."""


def plan(
    weights: Sequence[float], threads: int, program: float, largest: int = LARGEST
) -> tuple[tuple[int, ...], ...]:
    """Put candidates into groups by their weights; the heaviest group comes first.

    Each candidate, the heaviest first, goes where the least is (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969). `program` is what a group costs beside
    its candidates, in seconds as the weights.
    """
    count = _count(sum(weights), len(weights), threads, program, largest)
    groups: list[list[int]] = [[] for _ in range(count)]
    loads = [0.0] * count
    lightest = [(0.0, number) for number in range(count)]
    for candidate in sorted(range(len(weights)), key=lambda each: -weights[each]):
        _, number = heapq.heappop(lightest)
        groups[number].append(candidate)
        loads[number] += weights[candidate]
        if len(groups[number]) < largest:
            heapq.heappush(lightest, (loads[number], number))
    order = sorted(range(count), key=lambda number: -loads[number])
    return tuple(tuple(groups[number]) for number in order)


def _count(
    total: float, candidates: int, threads: int, program: float, largest: int
) -> int:
    """Return how many groups there are.

    As many as threads, or some times that if the fixed cost stays a small share; fewer
    if it would be half of a group's time; more if groups would get too large.
    """
    times = int(total / threads * SHARE / program) if program else PER_THREAD
    wanted = threads * min(max(times, 1), PER_THREAD)
    affordable = math.ceil(total / program) if program else candidates
    count = min(wanted, max(affordable, 1))
    least = max(math.ceil(candidates / largest), math.ceil(total / LONGEST))
    if least > count:  # then a whole number for each thread
        count = math.ceil(least / threads) * threads
    return min(count, candidates)


def split(group: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """Deal a group out in so many parts of alike weights, or one for each candidate."""
    count = min(parts, len(group))
    return tuple(tuple(group[number::count]) for number in range(count))


SLOWER: Final = 4
"""By how much a machine may be slower than predicted before a group is split, which
costs only time: each candidate alone gets its whole limit."""

STOPPED_PARTS: Final = 8
"""Parts of a group whose time was up: of 64 candidates one that never ends is found
after three limits, where halves would take seven."""

REFUSED_PARTS: Final = 2


class Group(Struct, frozen=True):
    """What was compiled together, by which worker and how long, in nanoseconds.

    `members` are places in the work's parts.
    """

    members: tuple[int, ...]
    worker: int
    wall: int


class Work(Struct, frozen=True):
    """Texts to be compiled, each with its entry and the seconds it is predicted to take.

    `seconds` is the limit of each.
    """

    parts: tuple[tuple[str, str], ...]
    weights: tuple[float, ...]
    target: Target
    costs: Costs
    seconds: float | None = None


class Task(Struct, frozen=True):
    """Parts that are compiled together; `again` after a worker died of one alone."""

    members: tuple[int, ...]
    again: bool = False


class Outcome(Struct, frozen=True):
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

"""Doubts: a closed list of what may make a number wrong, a row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, StrEnum
from typing import Final, Self

from steelyard.analyse import stats, symptoms
from steelyard.analyse.symptoms import Seen
from steelyard.analyse.trial import Trial


class Act(Enum):
    """What a gate does with a case of which it has a doubt."""

    PRINT = "print"
    """It prints the doubt; the verdict stands."""
    FASTER = "faster"
    """It does not believe that the case became faster: that is unresolved."""
    OPEN = "open"
    """The case is unresolved, unless it became slower."""
    FAIL = "fail"
    """The case fails if head has the doubt, and is unresolved if only base has."""


def _elsewhere(_: Seen) -> bool:
    """Hold for no trial: such a doubt is of several, or of a row; see `report.rows`."""
    return False


class Doubt(StrEnum):
    """Something seen while measuring that a reader of the number must know.

    A row has the doubt's name, a hint for the reader, what a gate does with it and why,
    and when a trial raises it.
    """

    hint: str
    act: Act
    reason: str
    holds: Callable[[Seen], bool]

    def __new__(
        cls,
        name: str,
        hint: str,
        act: Act,
        reason: str,
        holds: Callable[[Seen], bool],
    ) -> Self:
        """Return a member that is equal to its name."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.hint, made.act, made.reason = hint, act, reason
        made.holds = holds
        return made

    ABOVE_PEAK = (
        "above-peak",
        (
            "faster than the fastest that was measured on this machine; look "
            "whether its bytes and operations are counted right, or measure the "
            "peaks again with `steelyard peaks --again`"
        ),
        Act.PRINT,
        "the count of bytes is in doubt, not the time of either side",
        _elsewhere,
    )
    ALLOCATES = (
        "allocates",
        (
            "each launch allocates memory, which is timed with its work; give it "
            "preallocated buffers, such as out= of NumPy's functions"
        ),
        Act.PRINT,
        "users of the work pay for it too, on both sides alike",
        lambda s: s.audited.get("peak_bytes", 0) >= symptoms.ALLOCATED,
    )
    BIMODAL = (
        "bimodal",
        (
            "the samples fall into two groups and no single number stands for both;"
            " look at the histogram, and for what changes between launches"
        ),
        Act.PRINT,
        "the spread between blocks holds what it does to a change",
        lambda s: symptoms.two_groups(
            s.times, s.trial.clock.quantum / s.trial.samples.launches[0]
        ),
    )
    BUSY_MACHINE = (
        "busy-machine",
        (
            "other work kept the cores busy; measure again on a quiet machine, or "
            "give --budget more seconds than the run took, so that quiet moments "
            "are found"
        ),
        Act.PRINT,
        "both sides' windows stand in turn and meet the same",
        lambda s: s.extra.get("neighbours", 0.0) > symptoms.NEIGHBOURS,
    )
    CACHE_SIZED = (
        "cache-sized",
        (
            "the working set is near the size of a cache, where the same launch "
            "takes one of two times; choose a size well below or above"
        ),
        Act.PRINT,
        "both sides have the same working set",
        lambda s: s.warm and 0.5 < s.share <= 1.5,
    )
    CHANGES_PROCESS = (
        "changes-process",
        (
            "the case changed its process for good: `steelyard show RUN CASE` lists what "
            "under changed; it was put back for the next case. Have the case do so"
        ),
        Act.PRINT,
        "what a case sets up for itself is part of what its user runs",
        _elsewhere,
    )
    CLOCKS_DISAGREE = (
        "clocks-disagree",
        (
            "two clocks differ by more than the error bars of both; on a GPU "
            "`--clocks all` shows them side by side with the likely cause"
        ),
        Act.OPEN,
        "one of two clocks is wrong and nobody knows which",
        lambda s: symptoms.clocks_disagree(s.trial),
    )
    COLLAPSED_INPUT = (
        "collapsed-input",
        (
            "inputs are zeros, denormals, infinities or one constant, or in-place "
            "updates turned them into such during the window; users have other "
            "data: measure it cold, or give inputs that survive"
        ),
        Act.OPEN,
        "work that is quick with zeros is no faster with users' data",
        lambda s: bool(s.extra.get("collapsed", False)),
    )
    DEPENDENT_BLOCKS = (
        "dependent-blocks",
        (
            "a block is like the one before it, so that a few in a row say less than "
            "so many; gate again on a quieter machine"
        ),
        Act.PRINT,
        "a change counts only if three times its error does not explain it",
        _elsewhere,
    )
    DISTURBED_GPU = (
        "disturbed-gpu",
        ("another process had the GPU too; end it, or choose another GPU with --gpu"),
        Act.PRINT,
        "both sides meet the other process",
        lambda s: bool(symptoms.of_gpu(s.trial, "others")),
    )
    DRIFTING = (
        "drifting",
        (
            "later samples are slower or faster than early ones; the machine or the"
            " kernel changes while it is measured"
        ),
        Act.PRINT,
        "both sides drift alike, or their blocks differ",
        lambda s: symptoms.drifts(s.times),
    )
    EXCEEDS_CACHE = (
        "exceeds-cache",
        (
            "the working set does not fit the last-level cache, so warm launches "
            "read memory too; choose a smaller size, or measure it cold"
        ),
        Act.PRINT,
        "both sides have the same working set",
        lambda s: s.warm and s.share > 1.5,
    )
    FEW_SAMPLES = (
        "few-samples",
        (
            "the time ended before the interval means anything; give --budget more "
            "seconds than the run took: its turns share them, and have 0.08 s each "
            "without it"
        ),
        Act.PRINT,
        "a change is judged by blocks, not by samples",
        lambda s: len(s.times) < stats.MINIMUM,
    )
    GAPS = (
        "gaps",
        (
            "a launch is several kernels and the time is with the gaps between "
            "them, which this clock cannot leave out; install cupti-python and "
            "measure with --clock cupti to have the kernels alone"
        ),
        Act.PRINT,
        "the gaps are part of both sides' launches",
        lambda s: s.trial.clock.gapped and s.trial.facts.get("kernels", 1) > 1,
    )
    IDLE = (
        "idle",
        (
            "the processor was idle for half of the windows and more: the work "
            "sleeps, or waits for a disk or another process, and that is no work"
        ),
        Act.OPEN,
        "what sleeps, or works in another process, is not timed",
        lambda s: symptoms.idle(s.trial),
    )
    IMPORTED = (
        "imported",
        (
            "another tool measured it: caches, clock and statistics are that tool's, and "
            "nothing was checked here; compare it with numbers of the same tool alone"
        ),
        Act.OPEN,
        "a stored number of another tool is no side of a gate",
        _elsewhere,
    )
    LOGGED_IN = (
        "logged-in",
        (
            "somebody's terminal was at work on this machine of a fleet; measure again "
            "when nobody is logged in"
        ),
        Act.PRINT,
        "both sides' windows stand in turn and meet the same",
        lambda s: s.extra.get("terminals", 0) > 0,
    )
    NOT_LAUNCHED = (
        "not-launched",
        (
            "the code is for a target that it was not launched on, so nothing says "
            "that its result is right; launch it where there is one"
        ),
        Act.PRINT,
        "a build is measured, and it was made",
        lambda s: not s.extra.get("launched", True),
    )
    ONE_BLOCK = (
        "one-block",
        (
            "there is one block, so the interval knows nothing of what differs "
            "between processes; raise --blocks before comparing"
        ),
        Act.PRINT,
        "a change of one block is unresolved by itself",
        _elsewhere,
    )
    PREEMPTED = (
        "preempted",
        (
            "more than a quarter of the samples were interrupted by the scheduler; "
            "measure again on a quiet machine"
        ),
        Act.PRINT,
        "the spread between blocks holds what it does to a change",
        lambda s: (
            sum(map(bool, s.trial.samples.preemptions))
            > symptoms.DISTURBED * len(s.times)
        ),
    )
    PYTHON_CALL = (
        "python-call",
        (
            "calling it takes more than 5 % of the time, which is therefore not the "
            "kernel's alone; the floor is an empty callable of its kind. Give it more to "
            "do in a call, or launch a compiled kernel"
        ),
        Act.PRINT,
        "a change of the call is a change of what its user waits for",
        lambda s: symptoms.calls(s.trial),
    )
    QUANTISED = (
        "quantised",
        (
            "the clock's tick is a visible part of the window; the estimate is a "
            "mean of ticks and its interval includes one"
        ),
        Act.PRINT,
        "the interval includes the tick",
        lambda s: s.summary.quantised,
    )
    REMEMBERS = (
        "remembers",
        (
            "a launch on new data takes much longer than the same again: the work "
            "keeps results, or looks whether they are there; users have new data"
        ),
        Act.FAIL,
        "a result that was kept was not computed while it was timed",
        lambda s: symptoms.remembers(s.audited.get("again", ())),
    )
    RESCHEDULED = (
        "rescheduled",
        (
            "the work changed its niceness, its scheduling policy or the processors "
            "that it may use (see rescheduled of `steelyard show`); users' processes "
            "have the usual ones"
        ),
        Act.OPEN,
        "the two sides do not have the same share of the machine",
        lambda s: bool(s.extra.get("rescheduled")),
    )
    SPINS = (
        "spins",
        (
            "threads that the work left behind keep a processor busy when it has "
            "returned; end them, or have them sleep"
        ),
        Act.OPEN,
        "what such threads do is not timed",
        lambda s: bool(s.audited.get("spins")),
    )
    THROTTLED = (
        "throttled",
        (
            "the GPU lowered its clock for its power or temperature, or samples ran"
            " at different clocks; let it cool down, or compare only within a run; "
            "`steelyard doctor` says what can be locked"
        ),
        Act.PRINT,
        "a change of the clock alone is told apart by cycles",
        lambda s: symptoms.throttled(s.trial),
    )
    UNCHECKED = (
        "unchecked",
        (
            "no reference was given, so a wrong result would not be seen; add "
            "b.check(reference, ...)"
        ),
        Act.FASTER,
        "nothing says that the faster work has the right result",
        lambda s: s.extra.get("launched", True) and not s.extra.get("checked", True),
    )
    UNCONFIRMED = (
        "unconfirmed",
        (
            "launches on new data, which another process timed, take more than twice "
            "what the samples say, or could not be timed: the work keeps results, skips "
            "launches, works outside of them, or changes what measures it"
        ),
        Act.FAIL,
        "its samples are not of the work that new data needs",
        _elsewhere,
    )
    UNDER_FLOOR = (
        "under-floor",
        (
            "less than five times what the clock reads around nothing; the floor is"
            " a large part of the number"
        ),
        Act.PRINT,
        "the floor hides part of a change and makes none",
        lambda s: symptoms.under_floor(s.trial),
    )
    UNSETTLED = (
        "unsettled",
        (
            "the interval is wider than 5 % to either side; raise --blocks, give "
            "--budget more seconds than the run took (its turns share them, and "
            "have 0.08 s each without it), or accept the printed interval"
        ),
        Act.PRINT,
        "a change is judged by blocks, not by one interval",
        lambda s: s.summary.estimate.sampled > max(symptoms.WIDE, s.precision),
    )
    WRONG_CACHE = (
        "wrong-cache",
        (
            "the launch does not find the cache as its mode promises: a GPU's "
            "counters or limits say so (see coldness and wrong_cache of `steelyard "
            "show`), or its data is read as fast as from cache behind the flush"
        ),
        Act.OPEN,
        "the time is of a cache in another state than the mode's",
        lambda s: symptoms.wrong_cache(s.trial),
    )


NAMED: Final[Mapping[str, Doubt]] = {str(doubt): doubt for doubt in Doubt}
"""Every doubt by its name."""


def raise_doubts(
    trial: Trial, last_level_cache: int, precision: float
) -> tuple[Doubt, ...]:
    """Name everything about a trial that its readers must know.

    ``last_level_cache`` are the bytes of the cache before memory where it ran: a GPU's
    L2.
    """
    seen = Seen(trial, last_level_cache, precision)
    if not seen.times:
        return ()
    return tuple(doubt for doubt in Doubt if doubt.holds(seen))

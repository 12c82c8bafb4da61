"""Doubts: what the work itself does, or leaves undone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from steelyard.analyse.doubts import Act, Doubt
from steelyard.analyse.trial import Trial

ALLOCATED: Final = 128 << 10
"""Bytes from which C libraries have the system map and unmap memory for each array."""
LEAKED: Final = 256
"""Bytes of an object with something in it: integers and frames that stay are less."""
PAIRS: Final = 3
"""Pairs of launches on new data and on the same again that say anything."""
TIMES: Final = 2.0
"""How much longer new data may take: branch predictors learn data that is small."""
AWAKE: Final = 0.5
"""Share of a window's time for which its process used a processor, or it waited."""
SHARES: Final = 3


def remembers(pairs: Sequence[Sequence[int]]) -> bool:
    """Tell whether launches on new data are slower than the same again, all of them."""
    if len(pairs) < PAIRS:
        return False
    new, again = zip(*pairs, strict=True)
    return bool(min(new) > TIMES * statistics.median(again))


def idle(trial: Trial) -> bool:
    """Tell whether a case of the CPU leaves the processor idle while it is timed.

    Its quicker windows say so, all of them, but for those that it lost to others.
    """
    if "gpu" in trial.extra or trial.mode.startswith("build"):
        return False
    samples = trial.samples
    each = zip(
        samples.per_launch(),
        samples.ticks,
        samples.cpu,
        samples.preemptions,
        strict=True,
    )
    rows = [(time, ticks, cpu) for time, ticks, cpu, lost in each if not lost]
    shares = [cpu / ticks for _, ticks, cpu in sorted(rows) if ticks > 0]
    quicker = shares[: (len(shares) + 1) // 2]
    return len(shares) >= SHARES and max(quicker) < AWAKE


ALLOCATES: Final = Doubt(
    "allocates",
    "each launch allocates memory, which is timed with its work; give it "
    "preallocated buffers, such as out= of NumPy's functions",
    Act.PRINT,
    "users of the work pay for it too, on both sides alike",
    lambda s: s.audited.get("peak_bytes", 0) >= ALLOCATED,
)

CHANGES_PROCESS: Final = Doubt(
    "changes-process",
    "the case changed its process for good: `steelyard show RUN CASE` lists what it "
    "changed, which was put back for the next case. Have the case do so",
    Act.PRINT,
    "what a case sets up for itself is part of what its user runs",
)

COLLAPSED_INPUT: Final = Doubt(
    "collapsed-input",
    "inputs are zeros, denormals, infinities or one constant, or in-place "
    "updates turned them into such during the window; users have other data: "
    "measure it cold, or give inputs that survive",
    Act.OPEN,
    "work that is quick with zeros is no faster with users' data",
    lambda s: bool(s.extra.get("collapsed", False)),
)

EDITED: Final = Doubt(
    "edited",
    "code of the case was edited while the run was under way, so its blocks are of "
    "different code: `steelyard show RUN CASE` lists the files; measure again",
    Act.OPEN,
    "a number of two codes is of neither",
)

IDLE: Final = Doubt(
    "idle",
    "the processor was idle for half of the windows and more: the work sleeps, "
    "or waits for a disk or another process, and that is no work",
    Act.OPEN,
    "what sleeps, or works in another process, is not timed",
    lambda s: idle(s.trial),
)

INSTALLED_COPY: Final = Doubt(
    "installed-copy",
    "a module of the checkout was imported from a copy that is installed, and differs: "
    "`steelyard show RUN CASE` lists the files; install again, or once by pip install -e .",
    Act.PRINT,
    "a gate imports each side's own",
)

LEAKS: Final = Doubt(
    "leaks",
    "each launch keeps memory that the one before had not: whoever launches it long "
    "enough has none left; look for what grows, such as a list or a cache",
    Act.PRINT,
    "its time is right while there is memory, on both sides alike",
    lambda s: s.audited.get("kept_bytes", 0) >= LEAKED,
)

NOT_LAUNCHED: Final = Doubt(
    "not-launched",
    "the code is for a target that it was not launched on, so nothing says that "
    "its result is right; launch it where there is one",
    Act.PRINT,
    "a build is measured, and it was made",
    lambda s: not s.extra.get("launched", True),
)

REMEMBERS: Final = Doubt(
    "remembers",
    "a launch on new data takes much longer than the same again: the work keeps "
    "results, or looks whether they are there; users have new data",
    Act.FAIL,
    "a result that was kept was not computed while it was timed",
    lambda s: remembers(s.audited.get("again", ())),
)

CONTENDED: Final = Doubt(
    "contended",
    "launches on new data, which another process timed, take more than twice what "
    "the samples say, while threads of the work waited for processors; measure "
    "again on a quieter machine, or with fewer threads",
    Act.OPEN,
    "whether its samples are of all the work is not known",
)

REPLACES_FUNCTIONS: Final = Doubt(
    "replaces-functions",
    "the suite's import replaced functions of NumPy, of Python or of steelyard, which were "
    "put back, so the case ran without: `steelyard show RUN CASE` lists them; call yours "
    "by a name of its own",
    Act.OPEN,
    "the code that was timed is not the code of its users",
)

RESCHEDULED: Final = Doubt(
    "rescheduled",
    "the work changed its niceness, its scheduling policy or the processors that "
    "it may use (see rescheduled of `steelyard show`); users' processes have "
    "the usual ones",
    Act.OPEN,
    "the two sides do not have the same share of the machine",
    lambda s: bool(s.extra.get("rescheduled")),
)

SPINS: Final = Doubt(
    "spins",
    "threads that the work left behind keep a processor busy when it has "
    "returned; end them, or have them sleep",
    Act.OPEN,
    "what such threads do is not timed",
    lambda s: bool(s.audited.get("spins")),
)

UNCHECKED: Final = Doubt(
    "unchecked",
    "no reference was given, so a wrong result would not be seen; add "
    "b.check(reference, ...)",
    Act.FASTER,
    "nothing says that the faster work has the right result",
    lambda s: s.extra.get("launched", True) and not s.extra.get("checked", True),
)

UNCONFIRMED: Final = Doubt(
    "unconfirmed",
    "launches on new data, which another process timed, take more than twice "
    "what the samples say, or could not be timed (`steelyard show RUN CASE` says why): "
    "the work keeps results, skips launches, works outside of them, or changes what "
    "measures it",
    Act.FAIL,
    "its samples are not of the work that new data needs",
)

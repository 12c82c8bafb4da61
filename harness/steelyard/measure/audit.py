"""Does the work do all of its work, each time, while it is timed? Asked once a run.

After the samples, by launches that are not timed for the trial: work that counts its
calls cannot know that the sampling is over. What is certain is an error; what time alone
says is a doubt.
"""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter_ns, sleep
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BenchmarkError
from steelyard.machine.neighbours import spins
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import checking, work
from steelyard.prepare.buffers import Buffers, poison_of
from steelyard_device import memory

WATCHED: Final = 0.005
"""Seconds for which results are watched after the work returned: a thread that it left
behind writes by then, or a checked window has seen nothing written."""

TRIES: Final = 3
"""Times it is done: on a busy machine such a thread may not get a processor at once."""

PAIRS: Final = 7
"""Times that launches on new data and on the same again take turns."""

FEWEST: Final = 3
"""Pairs that say anything."""

LONGEST: Final = 0.1
"""Seconds for all pairs: of slow work there are fewer."""

MOST: Final = 256 << 20
"""Bytes of buffers beyond which nothing is asked: drawing other data would take longer
than all trials of the case."""

PROBED: Final = 256 << 10
"""Bytes of a buffer whose coldness is probed: they fit every private cache."""

DECIDABLE: Final = 64 << 10
"""Bytes below which reading them takes no longer cold than a call does."""

LARGEST: Final = 64 << 20
"""Bytes of the probe's own buffer at most."""

ROUNDS: Final = 7
"""Flushes behind which a buffer is probed at most."""

ENOUGH: Final = 3
"""Slow reads that settle it: what more rounds read cannot make these quick."""

SETTLED: Final = 0.2
"""Share of the way to a cached read below which it is: half of what raises the doubt."""

APART: Final = 1.5
"""How much longer a cold read takes at least than one from cache, or nothing is said."""

Found = dict[str, Any]


def audit(prepared: PreparedCase, flush: Callable[[], None] | None) -> Found:
    """Return what was found of a case, by name; once a case and run.

    ``flush`` makes the caches cold; none where the trial was a warm one.

    Raises:
        BenchmarkError: results are of other data, or come after the work returned.
    """
    found, bound = prepared.audited, prepared.work
    if not prepared.audits or prepared.buffers.nbytes > MOST:
        return {}
    ours = not isinstance(bound, work.DeviceWork)
    if "peak_bytes" not in found:
        with _restored(prepared):
            require_fresh(prepared)
            if ours:
                require_done(prepared)
                found["spins"] = spins()  # no thread of the host does a GPU's work
            found["again"] = again(prepared)
            found |= allocations(prepared)
    if flush is not None and ours and "kept_warm" not in found:
        found["kept_warm"] = kept_warm(prepared, flush)
    return dict(found)


@contextmanager
def _restored(prepared: PreparedCase) -> Iterator[None]:
    """Give inputs and in-place arguments their own data again, whatever happens."""
    try:
        yield
    finally:
        prepared.buffers.draw(prepared.buffers.seed)
        prepared.buffers.poison()


def require_fresh(prepared: PreparedCase) -> None:
    """Look whether results are of the data that is there, and whole.

    Outputs hold an older result first, and poison then: work may look at either.

    Raises:
        BenchmarkError: they are not what the reference expects.
    """
    buffers, described = prepared.buffers, prepared.description
    once(prepared)
    before, seed = buffers.snapshot(), buffers.seed + 1
    check = described.reference
    if check is None or not buffers.draw(seed):
        return  # files or constants: there is no other data
    given = described.handles_of("input", "inout")
    data = {handle.name: buffers.drawn(handle, seed) for handle in given}
    wanted = checking.expected_of(described, data)
    typical = [checking.root_mean_square(r.wanted) for r in prepared.known]
    for older in (True, False):
        buffers.draw(seed)
        if not older:
            buffers.poison()
        prepared.work.launch(1)
        prepared.work.wait()
        left = {handle.name: buffers.read(handle.name) for handle in described.results}
        wrong = checking.wrong_on_new_data(
            left, wanted, check.rtol, check.atol, typical
        )
        if wrong and any(n in left and buffers.same_as({n: before[n]}) for n in before):
            raise BenchmarkError(
                f"the work left in {', '.join(left)} what it had for other data: it "
                "remembers results by where its arguments lie. Compute them each time."
            )
        if wrong:
            raise BenchmarkError(wrong)


def require_done(prepared: PreparedCase) -> None:
    """Look whether results are written after the work returned.

    Raises:
        BenchmarkError: they are.
    """
    places = list(_places(prepared))
    for _ in range(TRIES):
        prepared.buffers.restore()
        prepared.buffers.poison()
        prepared.work.launch(3)  # the first may find poison and take its time
        prepared.work.wait()
        # At once, and without letting Python's other threads go on meanwhile.
        for _name, part, mark in places:
            part[:] = mark
        sleep(WATCHED)
        for name, part, mark in places:
            if (part != mark).any():
                raise BenchmarkError(
                    f"the work changed {name} after it returned: another thread goes "
                    "on with it, and no clock sees that. Wait for it in the call, or "
                    "give the work a wait()."
                )


def _places(
    prepared: PreparedCase,
) -> Iterator[tuple[str, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield the bytes of the first, a middle and the last element of each result."""
    for handle in prepared.description.results:
        array = prepared.buffers.arrays[handle.name]
        mark = np.frombuffer(poison_of(array.dtype), np.uint8)
        raw = array.reshape(-1).view(np.uint8)
        for place in {0, handle.size // 2, handle.size - 1} if handle.size else ():
            first = place * mark.size
            yield handle.name, raw[first : first + mark.size], mark


def again(prepared: PreparedCase) -> list[list[int]]:
    """Time launches on new data into poison, and the same again, in turn.

    The second finds its inputs written anew, with the same, and its results as they
    are: memory is touched alike. Returns pairs of nanoseconds.
    """
    pairs: list[list[int]] = []
    buffers, bound, began = prepared.buffers, prepared.work, perf_counter_ns()
    buffers.draw(buffers.seed)
    for number in range(PAIRS):
        spent = (perf_counter_ns() - began) / 1e9
        if len(pairs) >= FEWEST and spent > LONGEST:
            break
        if not isinstance(bound, work.DeviceWork):
            bound.ready()  # now: it may work on what it finds
        _turned(buffers, number + 1)
        buffers.poison()
        new = timed(prepared)
        left = buffers.snapshot()
        _turned(buffers, number + 1)
        buffers.put(left)
        pairs.append([new, timed(prepared)])
    return pairs


def _turned(buffers: Buffers, by: int) -> None:
    """Write other data to all arguments; those that only have one get that again."""
    buffers.restore()
    buffers.turn(by)


def timed(prepared: PreparedCase) -> int:
    """Return the nanoseconds of one launch, once what is to be there is there."""
    launch, wait = prepared.work.launch, prepared.work.wait
    if prepared.buffers.context:
        prepared.buffers.context.wait_for_all()
    start = perf_counter_ns()
    launch(1)
    wait()
    return perf_counter_ns() - start


def once(prepared: PreparedCase) -> None:
    """Launch on the case's own data into poison."""
    prepared.buffers.restore()
    prepared.buffers.poison()
    prepared.work.launch(1)
    prepared.work.wait()


def allocations(prepared: PreparedCase) -> dict[str, int]:
    """Return what launches allocate through Python and NumPy: one at its peak.

    And what is kept of each, the least of two launches behind the first: what replaces
    an older thing of its size counts for nothing, nor does what is made once.
    """
    if tracemalloc.is_tracing():
        return {"peak_bytes": 0, "kept_bytes": 0}  # another's count would be reset
    tracemalloc.start()
    try:
        seen = []
        for _ in range(3):
            prepared.buffers.restore()
            prepared.work.launch(1)
            prepared.work.wait()
            seen.append(tracemalloc.get_traced_memory())
        kept = min(after - before for (before, _), (after, _) in pairwise(seen))
        return {"peak_bytes": seen[0][1], "kept_bytes": kept}
    finally:
        tracemalloc.stop()


def kept_warm(prepared: PreparedCase, flush: Callable[[], None]) -> float | str:
    """Return how near to cached a buffer is when a cold window begins: 0 cold, 1 cached.

    ``unknown`` where the buffers are too small, or cold and cached are read alike.
    """
    largest = max(
        prepared.buffers.arrays.values(), key=lambda a: a.nbytes, default=None
    )
    if largest is None or largest.nbytes < DECIDABLE:
        return "unknown"
    theirs = _part(largest)
    own = memory.empty((min(largest.nbytes, LARGEST),), np.uint8, offset=memory.LINE)
    own[:] = 1
    control = _part(own)
    rounds: list[Mapping[str, int]] = []
    share: float | str = "unknown"
    while len(rounds) < ROUNDS and not (isinstance(share, float) and share <= SETTLED):
        swap = bool(len(rounds) % 2)
        rounds.append(_round(theirs, control, flush, swap=swap))
        share = share_cached(rounds) if len(rounds) >= ENOUGH else "unknown"
    return share


def share_cached(rounds: Sequence[Mapping[str, int]]) -> float | str:
    """Return the same from readings of each round: ``theirs``, ``cold``, ``cached``.

    Of theirs the slowest but two counts: two rounds are disturbed, the others agree.
    """
    cold = statistics.median(one["cold"] for one in rounds)
    cached = statistics.median(one["cached"] for one in rounds)
    if cold < APART * cached:
        return "unknown"
    theirs = sorted(one["theirs"] for one in rounds)
    return (cold - theirs[-3]) / (cold - cached)


def _round(
    theirs: NDArray[np.uint8],
    control: NDArray[np.uint8],
    flush: Callable[[], None],
    *,
    swap: bool,
) -> dict[str, int]:
    """Read a case's buffer and one of our own behind a flush, in turn the first."""
    target = np.empty_like(control)
    flush()
    arrays = {"theirs": theirs[: control.size], "cold": control}
    found = {}
    for name in sorted(arrays, reverse=swap):
        target[:] = 0
        found[name] = _copied(target, arrays[name])
    found["cached"] = min(_copied(target, control) for _ in range(3))
    return found


def _copied(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> int:
    start = perf_counter_ns()
    target[: source.size] = source
    return perf_counter_ns() - start


def _part(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the first bytes of an array that lies on this machine."""
    return array.reshape(-1).view(np.uint8)[:PROBED]

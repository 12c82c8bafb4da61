"""Compare two stored runs: what differs around them, then ratios with intervals.

It prints and does not judge: two stored runs were not interleaved, so what changed
between them may be the machine's state. A gate measures both sides again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from steelyard.analyse.rows import Row, paired_ratio, rows
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, Run, Trial
from steelyard.errors import SteelyardError

LISTED: Final = ("settings", "versions")
"""Groups of machine facts whose differences are shown; ``identity`` forbids."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that two runs do not share."""

    group: str
    name: str
    base: str
    new: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case in one mode on both sides; a ratio above 1 is slower than the base."""

    case: str
    mode: str
    base: Estimate | None
    new: Estimate | None
    ratio: Estimate | None
    """New over base, from the blocks both runs have; None where they do not compare."""
    note: str = ""
    on_gpu: bool = False

    @property
    def differs(self) -> bool:
        """Whether the ratio's interval leaves 1 out."""
        return self.ratio is not None and not self.ratio.low <= 1 <= self.ratio.high


def compare(base: Sequence[Trial], new: Sequence[Trial]) -> list[Comparison]:
    """Pair the rows of two runs by case and mode; one side alone is listed too."""
    sides = [{(r.case, r.mode): r for r in rows(side)} for side in (base, new)]
    return [_pair(*key, *(s.get(key) for s in sides)) for key in _keys(*sides)]


def beside(
    made: Sequence[Row], run: Run, base: Run, trials: Sequence[Trial]
) -> list[Row]:
    """Add each row's ratio to the same row of a baseline, where the two compare."""
    found = compare(trials, [trial for row in made for trial in row.trials])
    ratios = {
        (one.case, one.mode): one.ratio
        for one in labelled(base, run, found)
        if ACROSS not in one.note
    }
    return [replace(row, relative=ratios.get((row.case, row.mode))) for row in made]


def _keys(
    base: Mapping[tuple[str, str], Row], new: Mapping[tuple[str, str], Row]
) -> Iterator[tuple[str, str]]:
    """Yield the keys of both: those of ``new`` in its order, then those it lacks."""
    yield from new
    yield from (key for key in base if key not in new)


def _pair(case: str, mode: str, base: Row | None, new: Row | None) -> Comparison:
    note = _obstacle(base, new)
    if note is None:
        assert base is not None
        assert new is not None
        ratio = paired_ratio(new.trials, base.trials)
        note = _remark(base, new, ratio)
    else:
        ratio = None
    estimates = [row.estimate if row else None for row in (base, new)]
    on_gpu = any("gpu" in t.extra for row in (base, new) if row for t in row.trials)
    return Comparison(case, mode, estimates[0], estimates[1], ratio, note, on_gpu)


def _obstacle(base: Row | None, new: Row | None) -> str | None:
    """Say why there is no ratio; None where nothing stands against one."""
    for side, row in (("base", base), ("new", new)):
        if row is None:
            return f"missing in {side}"
        if not row.trials:
            return f"failed in {side}"
    assert base is not None
    assert new is not None
    for what, read in METHOD.items():
        seen = [sorted({read(t) for t in row.trials}) for row in (base, new)]
        if seen[0] != seen[1]:
            return (
                f"not comparable: {what} {', '.join(seen[0])} -> {', '.join(seen[1])}"
            )
    return None


METHOD: Final[Mapping[str, Callable[[Trial], str]]] = {
    "method": lambda trial: str(trial.hashes.get("method")),
    "clock": lambda trial: f"{trial.clock.id} {trial.clock.version}",
}
"""What has to be the same for two times to be of the same thing."""


def _remark(base: Row, new: Row, ratio: Estimate | None) -> str:
    """Name what changed, or did not, between two rows that compare."""
    if ratio is None:
        return "not comparable: no block in common"
    old, now = base.trials[-1], new.trials[-1]
    words = [] if ratio.known else ["one pair"]
    words += [
        f"other {what}"
        for what in ("source", "inputs")
        if old.hashes.get(what) != now.hashes.get(what)
    ]
    codes = (old.facts.get("code_hash"), now.facts.get("code_hash"))
    if all(codes):
        words.append("same code" if codes[0] == codes[1] else "other code")
    if old.facts.get("compiler") != now.facts.get("compiler"):
        words.append("other compiler")
    return ", ".join(words)


def around(
    base: Run, new: Run, before: Sequence[Trial], after: Sequence[Trial]
) -> list[Difference]:
    """Return all that differs beside the times of two runs."""
    return [
        *compilers(before, after),
        *differences(base, new),
        *selection(before, after),
        *inputs(before, after),
    ]


def compilers(base: Sequence[Trial], new: Sequence[Trial]) -> list[Difference]:
    """Return the compiler builds that two runs do not share, by target.

    They come first of all: every other difference of a row may be theirs.
    """
    sides = [_compilers(side) for side in (base, new)]
    shared = [target for target in sides[0] if target in sides[1]]
    return list(_facts("compiler", *({t: s[t] for t in shared} for s in sides)))


def _compilers(trials: Sequence[Trial]) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for trial in trials:
        if "compiler" in trial.facts:
            target = str(trial.facts.get("target", "-"))
            found.setdefault(target, {})[str(trial.facts["compiler"])] = None
    return {target: ", ".join(sorted(seen)) for target, seen in found.items()}


def selection(base: Sequence[Trial], new: Sequence[Trial]) -> list[Difference]:
    """Return how far two runs measured different cases or modes.

    The other cases of a process are part of what a case finds: caches, the heap, threads
    that libraries keep.
    """
    sides = [{(t.case, t.mode) for t in side} for side in (base, new)]
    if sides[0] == sides[1]:
        return []
    said = [
        f"{len(own)}, {len(own - other)} of them not in {name}"
        for own, other, name in zip(sides, sides[::-1], ("new", "base"), strict=True)
    ]
    return [Difference("selection", "cases and modes", *said)]


def inputs(base: Sequence[Trial], new: Sequence[Trial]) -> list[Difference]:
    """Return which cases two runs measured on other data or sizes."""
    sides = [{t.case: t.hashes.get("inputs") for t in side} for side in (base, new)]
    both = [case for case in sides[1] if sides[0].get(case) and sides[1][case]]
    others = [case for case in both if sides[0][case] != sides[1][case]]
    if not others:
        return []
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return [Difference("selection", "inputs", "-", f"others of {others[0]}{more}")]


def differences(base: Run, new: Run) -> list[Difference]:
    """Return what differs around two runs, the machine's identity first."""
    found = [
        *_identity(base, new),
        *(d for group in LISTED for d in _group(base, new, group)),
        *_gpu(base, new),
        *_facts("settings of the run", *(_how(side) for side in (base, new))),
    ]
    return list(dict.fromkeys(found))


def _how(run: Run) -> dict[str, Any]:
    """Return how a run measured; how many turns that takes follows from its cases."""
    return {
        n: value for n, value in run.settings.items() if n != "turns" and value != ""
    }


def _group(base: Run, new: Run, group: str) -> Iterator[Difference]:
    return _facts(group, base.machine.get(group, {}), new.machine.get(group, {}))


def _identity(base: Run, new: Run) -> Iterator[Difference]:
    """Yield what differs between two machines; one that is unknown equals no other."""
    known = any(run.machine.get("identity") for run in (base, new))
    if known or base.uid == new.uid:
        yield from _group(base, new, "identity")
    else:
        yield Difference("identity", "machine", UNKNOWN, UNKNOWN)


def _gpu(base: Run, new: Run) -> Iterator[Difference]:
    """Yield what differs between the GPUs of two runs, where both had one."""
    sides = [dict(run.machine.get("gpu", {})) for run in (base, new)]
    if all(sides):
        plain = [{n: v for n, v in side.items() if n != "peaks"} for side in sides]
        yield from _facts("gpu", *plain)


def _facts(
    group: str, base: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in dict.fromkeys((*base, *new)):
        old, now = base.get(name, "-"), new.get(name, "-")
        if old != now:
            yield Difference(group, name, str(old), str(now))


def require_same_machine(base: Run, new: Run) -> None:
    """Refuse runs of two machines.

    Raises:
        SteelyardError: their identities differ, or nothing says what they are.
    """
    found = list(_identity(base, new))
    if any(one.new == one.base for one in found):
        raise SteelyardError(
            f"the machine of runs {base.short} and {new.short} is {UNKNOWN}, and may be "
            "two. Print the ratios with --across-machines."
        )
    if found:
        what = "; ".join(f"{d.name} {d.base} -> {d.new}" for d in found)
        raise SteelyardError(
            f"runs {base.short} and {new.short} are of two machines and do not compare: "
            f"{what}. Measure both on one machine, or print the ratios with --across-machines."
        )


DECIDING: Final = frozenset({"name", "memory", "driver"})
"""Facts of a GPU that its times depend on; others are shown where they differ."""


def deciding(base: Run, new: Run) -> list[Difference]:
    """Return what differs between the GPUs of two runs that their times depend on."""
    return [one for one in _gpu(base, new) if one.name in DECIDING]


def require_same_gpu(base: Run, new: Run, made: Sequence[Comparison]) -> None:
    """Refuse comparisons of cases that ran on two models of GPUs, or two drivers.

    Raises:
        SteelyardError: some of ``made`` did.
    """
    count = sum(one.on_gpu and one.ratio is not None for one in made)
    found = deciding(base, new)
    if count and found:
        what = "; ".join(f"{d.name} {d.base} -> {d.new}" for d in found)
        raise SteelyardError(
            f"{count} rows of runs {base.short} and {new.short} are of two GPUs or "
            f"drivers and do not compare: {what}. Measure both on one, choose other cases "
            "with -k, or print the ratios with --across-machines."
        )


ACROSS: Final = "across machines"


def labelled(base: Run, new: Run, made: Sequence[Comparison]) -> Sequence[Comparison]:
    """Return comparisons whose notes say so where the runs are of two machines."""
    if not (any(_identity(base, new)) or deciding(base, new)):
        return made
    words = ((one, filter(None, (ACROSS, one.note))) for one in made)
    return [replace(one, note=", ".join(said)) for one, said in words]

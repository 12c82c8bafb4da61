"""Numbers of a row as people read them; every table writes them the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from steelyard import units
from steelyard.analyse.rows import Row
from steelyard.analyse.stats import Estimate
from steelyard.analyse.trial import UNKNOWN, Run
from steelyard.prepare.capsule_checks import Check
from steelyard.prepare.capsules import CODE, Capsule
from steelyard.units import NOTHING

SLOW: Final = 1e7
"""Bytes per second below which no rate is written: little but zeros, and of a launch."""

ENDINGS: Final[Mapping[str, str]] = MappingProxyType({"budget": "the budget ended"})
"""States of a run whose word alone does not say what happened."""


def time(row: Row) -> str:
    """Write the estimate: ``3.200 us``."""
    return units.duration(row.estimate.value) if row.estimate else NOTHING


def margin(estimate: Estimate | None) -> str:
    """Write half the interval: ``± 0.4 %``; of one beyond all use only that it is."""
    if estimate is None or not estimate.value:
        return NOTHING
    percent = 100 * estimate.half_width
    if percent >= 100.5:
        return "± > 100 %"
    # Two figures of 99.5 and more would be written with an exponent.
    return f"± {percent:.0f} %" if percent >= 99.5 else f"± {percent:.2g} %"


def ratio(estimate: Estimate | None) -> str:
    """Write a ratio with half its interval: ``1.234 ± 0.5 %``."""
    if estimate is None:
        return NOTHING
    if estimate.low == estimate.high:  # the reference itself
        return units.figures(estimate.value)
    return f"{units.figures(estimate.value)} {margin(estimate)}"


def gigabytes(row: Row) -> str:
    """Write 10^9 bytes per second."""
    rate = row.rate("bytes")
    return units.figures(rate / 1e9, 3) if rate and rate >= SLOW else NOTHING


def rate(row: Row, quantity: str, unit: str) -> str:
    """Write operations or items per second."""
    value = row.rate(quantity)
    return units.rate(value, unit) if value else NOTHING


def axes(values: Mapping[str, Any]) -> str:
    """Write axes as a case id does."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def header(run: Run, done: int | None = None) -> list[str]:
    """Describe a run in four lines: which, where, with what, how; a GPU has a fifth.

    Of an imported run there is what its file says.

    ``done`` is the number of turns it had, where that is known.
    """
    if "imported" in run.settings:
        return [_which(run, done), *_imported(run.machine), f"$ {run.command}"]
    return [
        _which(run, done),
        _where(run.machine),
        *([_gpu(run.machine["gpu"])] if run.machine.get("gpu") else []),
        _with(run.machine),
        f"$ {run.command}",
    ]


def caption(run: Run) -> str:
    """Say in a line where a table of results comes from."""
    if "imported" in run.settings:
        return " ".join(header(run))
    versions = run.machine.get("versions", {})
    driver = run.machine.get("gpu", {}).get("driver")
    words = [
        f"`{run.command}` on {machine(run.machine)}",
        *([f"driver {driver}"] if driver else []),
        f"Python {versions.get('python', UNKNOWN)}",
        f"commit `{run.commit[:10]}`{' with changes' * bool(run.dirty)}",
        *([_partial(run, None)] if run.partial else []),
    ]
    return ", ".join(words)


def machine(facts: Mapping[str, Any]) -> str:
    """Name a machine: its GPU, if the run had one, its processor and its cores.

    A hypervisor may hide which processor it is, but not how large a second cache is.
    """
    identity = facts.get("identity", {})
    caches = identity.get("caches")
    second = caches.get("L2") if isinstance(caches, Mapping) else None
    words = [
        *([facts["gpu"].get("name", UNKNOWN)] if facts.get("gpu") else []),
        identity.get("cpu", UNKNOWN),
        f"{identity.get('cores', UNKNOWN)} cores",
        *([_caches({"L2": second})] if second and not facts.get("gpu") else []),
        f"hypervisor {identity.get('hypervisor', UNKNOWN)}",
    ]
    return ", ".join(words)


def capsule(found: Capsule) -> list[str]:
    """Describe a capsule: what it holds, what a launch of it is, its own tolerances."""
    manifest, launch = found.manifest, found.manifest["launch"]
    code, facts = len(found.members[CODE]), launch["facts"]
    target = facts.get("target") or manifest["device"]
    checked = "known rows of" if manifest["check"] else "nothing known of"
    names = ", ".join(h["name"] for h in manifest["handles"] if h["role"] != "input")
    shape = ", ".join(
        f"{name} {value}"
        for name, value in launch.items()
        if name in {"threads", "grid", "block", "shared"}
    )
    several = launch.get("launches")
    entries = (
        f"{len(several)} launches"
        if several
        else f"entry {launch.get('entry')}; {shape}"
    )
    what = (
        f"capsule of {manifest['case']}: {units.size(code)} of code for {target}, "
        f"{units.size(found.nbytes)} of buffers, {checked} {names}"
    )
    return [
        what,
        f"{entries}; seed {manifest['seed']}",
        *_tolerances(manifest["check"]),
    ]


def _tolerances(check: Check | None) -> list[str]:
    """Say how far results may be off, where whoever made a capsule said so."""
    given = {"rtol": check["rtol"], "atol": check["atol"]} if check else {}
    own = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    if not own:
        return []
    return [f"its results may be off by {', '.join(own)}: its maker's, not the default"]


def _which(run: Run, done: int | None) -> str:
    ended = run.partial and run.state != "running"
    made = run.settings.get("imported")
    dated = f" ({run.settings['dated']})" if "dated" in run.settings else ""
    dirty = " with changes" if run.dirty else ""
    words = [
        f"run {run.short}",
        f"{run.started[:16].replace('T', ' ')} UTC{dated}",
        *([_partial(run, done)] * ended),
        *([f"imported from {made}, not measured here"] if made else []),
        f"commit {run.commit[:10]}{dirty}",
        *([f"tags {', '.join(run.tags)}"] if run.tags else []),
    ]
    return " · ".join(words)


def _partial(run: Run, done: int | None) -> str:
    """Write ``partial: 3 of 8 turns, the budget ended``."""
    asked = run.settings.get("turns")  # older runs did not store it
    known = done is not None and asked is not None
    turns = f"{done} of {asked} turns, " if known else ""
    return f"partial: {turns}{ENDINGS.get(run.state, run.state)}"


def _imported(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a file says of its machine, which may be nothing."""
    for group in ("identity", "gpu", "settings", "versions"):
        said = facts.get(group, {}).items()
        plain = [f"{n} {v}" for n, v in said if not isinstance(v, Mapping)]
        if plain:
            yield " · ".join(plain)


def _where(facts: Mapping[str, Any]) -> str:
    def fact(group: str, name: str) -> Any:
        return facts.get(group, {}).get(name, UNKNOWN)

    cores, mask = fact("identity", "cores"), fact("settings", "affinity")
    if isinstance(mask, list):
        mask = ",".join(map(str, mask))
    words = [
        fact("identity", "cpu"),
        f"{cores} cores (may use {mask})",
        _caches(facts.get("identity", {}).get("caches", {})),
        _size(fact("identity", "memory")),
        f"governor {fact('settings', 'governor')}",
        f"hypervisor {fact('identity', 'hypervisor')}",
        f"load {fact('moment', 'load')}",
    ]
    return " · ".join(words)


def _gpu(facts: Mapping[str, Any]) -> str:
    def fact(name: str) -> Any:
        return facts.get(name, UNKNOWN)

    words = [
        f"{fact('name')} ({fact('uuid')})",
        f"L2 {_size(fact('l2'))}",
        _size(fact("memory")),
        f"driver {fact('driver')}",
        f"power limit {fact('power_limit_w')} W",
        f"ECC {fact('ecc')}",
        f"MIG {fact('mig')}",
        *([facts["peaks"]["problem"]] if "problem" in facts.get("peaks", {}) else []),
    ]
    return " · ".join(words)


def _with(facts: Mapping[str, Any]) -> str:
    versions = facts.get("versions", {})
    system = facts.get("identity", {}).get("system", UNKNOWN)
    kernel = facts.get("settings", {}).get("kernel", UNKNOWN)
    packages = (f"{n} {v}" for n, v in versions.items() if n not in {"commit", "dirty"})
    return " · ".join((f"{system} {kernel}", *packages))


def _caches(caches: Mapping[str, Any] | str) -> str:
    if isinstance(caches, str):  # as a run may have it: see store.shapes
        return f"caches {caches}"
    known = [
        f"{name} {_size(cache['bytes'])}"
        for name, cache in caches.items()
        if isinstance(cache, Mapping)
    ]
    return ", ".join(known) or f"caches {UNKNOWN}"


def _size(value: Any) -> str:
    return units.size(value) if isinstance(value, (int, float)) else str(value)


def shared_axes(group: Sequence[Row]) -> dict[str, Any]:
    """Return the axes that have one value in all of ``group``."""
    first = group[0].axes
    return {
        name: value
        for name, value in first.items()
        if len(group) > 1 and all(r.axes.get(name, _ABSENT) == value for r in group)
    }


_ABSENT: Final = object()
"""No axis has this value."""

"""Made-up trials and runs for the tests of everything behind measuring."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.analyse.trial import ClockFacts, Samples, Trial
from steelyard.clocks import gpu
from steelyard.store import run as runs

FACTS = {
    "identity": {
        "id": "0123456789ab",
        "cpu": "Test CPU",
        "cores": 2,
        "caches": {"L1": {"bytes": 32768, "shared_by": 1}},
        "memory": 24 << 30,
        "hypervisor": "no",
        "system": "Linux x86_64",
    },
    "settings": {"governor": "performance", "affinity": [0, 1], "kernel": "6.1"},
    "versions": {
        "python": "3.11.7",
        "numpy": "2.4.6",
        "llvmlite": "0.50.0",
        "commit": "c0ffee" + 34 * "0",
        "dirty": False,
    },
    "moment": {"load": 0.1, "memory_free": 20 << 30, "mhz": "unknown"},
}


GPU = {
    "name": "NVIDIA H200",
    "uuid": "aabbccddeeff",
    "memory": 141 << 30,
    "l2": 60 << 20,
    "driver": "580.159.04",
    "ecc": "on",
    "peaks": {
        "method": 1,
        "copy": {"warm": {"8192": 1000.0}, "cold": {"8192": 2000.0}},
        "rates": {"float16": {"tensor": 8e14}},
    },
}
"""The facts of a run's GPU."""

STATE = {
    "before": {"temperature_c": 40, "throttle": ["gpu_idle"], "others": []},
    "after": {"temperature_c": 45, "throttle": [], "others": []},
    "energy": {"joules_per_launch": 0.0025, "watts": 510.0},
}
"""What a trial keeps of its GPU."""


def samples(ticks: Sequence[int], launches: int = 1) -> Samples:
    """Return windows of the given ticks, one after the other."""
    starts = [sum(ticks[:i]) for i in range(len(ticks))]
    same = len(ticks)
    return Samples(
        ticks=tuple(ticks),
        starts=tuple(starts),
        launches=(launches,) * same,
        cpu=tuple(ticks),
        preemptions=(0,) * same,
    )


def trial(
    case: str = "copy[n=1024,impl=numpy]",
    ticks: Sequence[int] = tuple(range(1000, 1040)),
    *,
    mode: str = "kernel/warm",
    block: int = 0,
    **changes,
) -> Trial:
    """Return a trial of a case whose axes are read from its id."""
    _, _, inside = case.rstrip("]").partition("[")
    axes = dict(pair.split("=") for pair in inside.split(",")) if inside else {}
    values = {
        "case": case,
        "axes": {k: int(v) if v.isdecimal() else v for k, v in axes.items()},
        "mode": mode,
        "block": block,
        "position": block,
        "worker": 4711,
        "samples": samples(ticks),
        "clock": ClockFacts("perf_counter_ns", 1, 1.0, (20, 21, 20)),
        "floors": {"empty": 20.0, "null": 60.0, "call": 40.0},
        "ledger": {},
        "facts": {"bytes": 8192, "operations": 1024, "code_hash": "aa11"},
        "hashes": {"source": "s1", "inputs": "i1", "method": "1"},
        "doubts": (),
        "error": None,
        "extra": {"wall": 0.1},
    }
    return Trial(**(values | changes))


def clock(name: str, quantum: float = 32.0, **facts) -> ClockFacts:
    """Return what a clock of GPUs says of itself."""
    return ClockFacts(name, 1, quantum, floor=(), **gpu.kind(name).traits, **facts)


def run(command: str = "steelyard run suites", **changes) -> runs.Run:
    """Return a run of this process on a made-up machine."""
    import dataclasses

    new = runs.new(command, {"seed": 0}, facts=FACTS)
    return dataclasses.replace(new, **changes)


def kept(path, made: Sequence[Trial], **changes) -> runs.Run:
    """Store a finished run of these trials; return it."""
    from steelyard.store.store import Store

    new = run(**({"state": "finished"} | changes))
    with Store.open(str(path)) as store:
        store.keep(new, made)
    return new


def seal(path) -> None:
    """Give a store that was changed behind steelyard's back the digests of what it has."""
    import sqlalchemy as sa

    from steelyard.store import schema

    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        for row in connection.execute(sa.select(schema.RUNS)).mappings().all():
            digests = schema._sealed_trials(connection, row["uid"])
            chain = {"trials": len(digests), "chain": schema.chained(digests)}
            schema.update(connection, dict(row) | chain)
    engine.dispose()

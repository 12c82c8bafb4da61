"""What a build says of itself: facts in plain data, for rows and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from steelyard_device.disk import default_directory
from steelyard_kernels import cost
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building import keys
from steelyard_kernels.building.build import tuned
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.targets import device, parse


def facts_of(built: Artifact) -> dict[str, object]:
    """Return what is known of a build without running it.

    Of a GPU's code also what it takes: registers and bytes of stack and spills of a
    thread, bytes of shared memory of a block, and counts of instructions.
    """
    parts = built.parts or (built,)
    times = [built.plan.times(n) if built.plan else 1 for n in range(len(parts))]
    every = [*zip(times, [part.program for part in parts], strict=True)]
    return {
        "target": built.target,
        "strategy": built.strategy,
        "schedule": f"{len(parts)} launches" if built.plan else built.schedule.label,
        "chosen_by": built.chosen_by,
        "bytes": sum(n * cost.bytes_moved(program) for n, program in every),
        "operations": sum(n * cost.operations(program) for n, program in every),
        "compiler": built.code.compiler,
        "compiler_hash": keys.sources(),
        "code_hash": built.code_hash,
        **_resources(built),
        **_launches(built),
    }


def _launches(built: Artifact) -> dict[str, object]:
    """Return what several launches are: each one's reason and facts, and memory between."""
    if built.plan is None:
        return {}
    pairs = enumerate(zip(built.plan.launches, built.parts, strict=True))
    return {
        "launches": [
            {
                "reason": each.reason,
                **(
                    {"times": times} if (times := built.plan.times(number)) != 1 else {}
                ),
                **facts_of(part),
            }
            for number, (each, part) in pairs
        ],
        "partition": built.schedule.label,
        "workspace_bytes": built.plan.size,
        "workspace_bound": built.plan.bound,
    }


def made_of(program: Program, target: str) -> dict[str, object]:
    """Return all that a build under no stated schedule depends on.

    Two builds with the same are the same; nothing is built for it. Raises KernelError
    where there is no such target, or not its compiler.
    """
    where = parse(target)
    found = tuned(program, where, aligned=True)
    return {
        "target": target,
        "compiler_hash": keys.sources(),
        "build_key": keys.key(program, found, where, aligned=True),
    }


def _resources(built: Artifact) -> dict[str, object]:
    made, threads = built.code, built.threads
    found = made.resources
    if found is None:
        return {}
    gpu = device(parse(built.target))
    assert isinstance(gpu, Gpu)
    shared = found.shared + built.shared
    return {
        "registers": found.registers,
        **_estimate(built),
        "stack_bytes": found.stack,
        "spill_bytes": made.spill_stores + made.spill_loads,
        "shared_bytes": shared,
        "code_bytes": found.code_bytes,
        "blocks_resident": gpu.blocks_resident(threads, found.registers, shared),
        "loads_128": found.loads_128,
        "tensor_core": found.tensor_core,
        "local_memory": found.local_loads + found.local_stores,
        "opcodes": dict(found.opcodes),
        "compiler_ns": made.nanoseconds,
    }


def _estimate(built: Artifact) -> dict[str, object]:
    """Return what the model expected; it knows nothing of nothing."""
    if strategies.is_nothing(built.program):
        return {}
    program, schedule = simplify(built.program), built.schedule
    return {"estimated_registers": strategies.estimated_registers(program, schedule)}


def rebuilt(rebuild: Callable[[str], Artifact | Failure], cache: str) -> Artifact:
    """Build with a cache by name, as a harness measures it.

    Raises KernelError with the compiler's sentence, and where builds should come from a
    disk that keeps none: they would be cold ones under another name.
    """
    built = rebuild(cache)
    if cache == "warm-disk" and _is_new(built):
        built = rebuild(cache)  # the first of them is kept for the others
        if _is_new(built):
            raise keeps_nothing(built.program.name)
    if isinstance(built, Failure):
        raise KernelError(built.error) from built.cause
    return built


def _is_new(built: Artifact | Failure) -> TypeGuard[Artifact]:
    return isinstance(built, Artifact) and any(
        name == "emit" for name, _ in built.phases
    )


def keeps_nothing(name: str) -> KernelError:
    """Return the error of builds from a disk that has none of them."""
    return KernelError(
        f"{name} was built anew each time: {default_directory()} keeps nothing; make it "
        "writable and leave room there, or name another folder by STEELYARD_CACHE."
    )


class TargetBuild:
    """A kernel built for a target that this machine need not have, not launched.

    `rebuild` builds with a cache by name (`cache.CACHES`).
    """

    def __init__(self, rebuild: Callable[[str], Artifact | Failure]) -> None:
        self._rebuild = rebuild
        self._built = rebuilt(rebuild, "warm-memory")

    @property
    def text(self) -> str:
        """What the compiler is given."""
        return self._built.text

    def build(self, cache: str) -> None:
        """Build again; raises KernelError with the compiler's sentence."""
        rebuilt(self._rebuild, cache)

    def facts(self) -> dict[str, object]:
        """Return what the build says of itself."""
        return facts_of(self._built)

"""A batch of candidates: those that wait for a compiler, by text, and those done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

from msgspec import Struct
from msgspec.structs import replace

from steelyard_device.errors import CompileError
from steelyard_kernels.artifact import Artifact, Code, Failure
from steelyard_kernels.building.build import Request, failed, loaded, prepare, restore
from steelyard_kernels.building.cache import compiled, remember
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.group.run import Group, Outcome
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import Target


class Candidate(Struct, frozen=True):
    """A program to be built under a schedule, or the heuristic's; `name` is yours.

    Not `aligned`: its arrays lie anywhere, whatever is said of all candidates.
    """

    name: str
    program: Program
    schedule: Schedule | None = None
    aligned: bool = True


class Progress(Struct, frozen=True):
    """How far a batch is; duplicates are built too."""

    built: int
    failed: int
    duplicates: int
    total: int


class Stage(Struct, frozen=True):
    """A stage of all candidates, in nanoseconds: summed over workers, and on the wall.

    What runs beside another stage counts on the wall of both.
    """

    name: str
    nanoseconds: int
    wall: int


class Batch(Struct, frozen=True):
    """What became of all candidates, in their order.

    `duplicates` has, for each candidate whose instructions an earlier one has, that
    one. `groups` are what was compiled together, in the order in which they were done.
    """

    results: tuple[Artifact | Failure, ...]
    duplicates: Mapping[int, int]
    groups: tuple[Group, ...]
    stages: tuple[Stage, ...]
    wall: int

    @property
    def distinct(self) -> tuple[Artifact, ...]:
        """The builds of which no earlier one has the same instructions."""
        return tuple(
            result
            for index, result in enumerate(self.results)
            if isinstance(result, Artifact) and index not in self.duplicates
        )


class Collector:
    """Takes candidates to their texts, and code to what becomes of them."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        target: Target,
        levels: frozenset[str],
        progress: Callable[[Progress], None] | None,
        *,
        aligned: bool,
    ) -> None:
        self.candidates = candidates
        self.target = target
        self.levels = levels
        self.progress = progress
        self.waiting: dict[str, list[int]] = {}
        """Candidates by their text; those of one text are compiled once."""
        self._asked = [
            Request(
                each.program, each.schedule, target, aligned and each.aligned, levels
            )
            for each in candidates
        ]
        self._prepared: dict[int, Artifact] = {}
        self._keys: dict[int, str] = {}
        self._results: dict[int, Artifact | Failure] = {}
        self._compilers: set[str] = set()
        self._kept: set[int] = set()
        self._hashes: set[str] = set()
        self._built = 0

    def prepare(self) -> None:
        """Take all candidates to their texts; those that a cache has are done."""
        for index, asked in enumerate(self._asked):
            try:
                self._prepare(index, asked)
            except Exception as error:  # noqa: BLE001 - a candidate's failure is data
                self._fail(index, error)
        self._tell()

    def _prepare(self, index: int, asked: Request) -> None:
        named, restored = restore(asked)
        if restored is not None:
            self._add(index, restored)
            return
        if named:
            self._keys[index] = named
        made = self._prepared[index] = prepare(asked)
        asked.phases.current = "compile"
        known = compiled().get((made.target, made.text))
        if known is not None and "code" in self.levels:
            self._finish(index, known)
        else:
            self.waiting.setdefault(made.text, []).append(index)

    def settle(self, outcome: Outcome) -> None:
        """Finish the candidates of each text that has its code, or its reason."""
        waiting = list(self.waiting.values())
        for part, code in outcome.made.items():
            self._made(waiting[part], code)
        for part, error in outcome.refused.items():
            for index in waiting[part]:
                self._fail(index, error, lasting=isinstance(error, CompileError))
        self._tell()

    def _made(self, indices: list[int], code: Code) -> None:
        """Finish the candidates of one text."""
        phases = self._asked[indices[0]].phases
        phases.done += code.phases
        self._compilers |= {name for name, _ in code.phases}
        try:
            code = loaded(code, self.target, phases)
        except Exception as error:  # noqa: BLE001 - a candidate's failure is data
            for index in indices:
                self._fail(index, error)
            return
        if "code" in self.levels:
            made = self._prepared[indices[0]]
            compiled()[made.target, made.text] = code
        for index in indices:
            self._finish(index, code)

    def _finish(self, index: int, code: Code) -> None:
        phases = self._asked[index].phases
        done = tuple(phases.done)
        built = replace(self._prepared[index], code=code, phases=done)
        self._add(index, built)
        if index in self._keys:
            image = id(code.image)  # a group's cubin is one object, held by results
            new = image not in self._kept
            self._kept.add(image)
            named = self._keys[index]
            phases.run("keep", lambda: remember(named, built, with_image=new))

    def _fail(self, index: int, error: Exception, *, lasting: bool = False) -> None:
        asked, name = self._asked[index], self.candidates[index].name
        target = str(self.target)
        result = failed(name, asked.schedule, target, asked.phases, error)
        self._results[index] = result
        if lasting and index in self._keys:
            schedule = self._prepared[index].schedule
            remember(self._keys[index], replace(result, schedule=schedule))

    def _add(self, index: int, result: Artifact | Failure) -> None:
        self._results[index] = result
        if isinstance(result, Artifact):
            self._built += 1
            self._hashes.add(result.code_hash)

    def _tell(self) -> None:
        if self.progress is not None:
            failures = len(self._results) - self._built
            duplicates = self._built - len(self._hashes)
            total = len(self.candidates)
            self.progress(Progress(self._built, failures, duplicates, total))

    def batch(self, groups: Sequence[Group], wall: int, started: int) -> Batch:
        """Put the results together; `wall` is what compiling the groups took."""
        results = tuple(self._results[index] for index in range(len(self.candidates)))
        return Batch(
            results,
            duplicates(results),
            tuple(groups),
            self._stages(groups, wall),
            perf_counter_ns() - started,
        )

    def _stages(self, groups: Sequence[Group], wall: int) -> tuple[Stage, ...]:
        """Add up the phases of all candidates, which are this thread's, and groups."""
        sums: dict[str, int] = {}
        for asked in self._asked:
            for name, nanoseconds in asked.phases.done:
                if name not in self._compilers:  # which are in the groups
                    sums[name] = sums.get(name, 0) + nanoseconds
        compiling = Stage("compile", sum(group.wall for group in groups), wall)
        return (*(Stage(name, each, each) for name, each in sums.items()), compiling)


def duplicates(results: Sequence[Artifact | Failure]) -> dict[int, int]:
    """Return the first of the same instructions, for each that is not the first."""
    first: dict[str, int] = {}
    found = {}
    for index, result in enumerate(results):
        if isinstance(result, Artifact):
            other = first.setdefault(result.code_hash, index)
            if other != index:
                found[index] = other
    return found

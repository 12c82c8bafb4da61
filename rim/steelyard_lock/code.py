"""From a case to what its code takes; what was found is kept on disk by its text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from steelyard_device import cubin, processors, sass
from steelyard_device.errors import CompileError, DeviceError
from steelyard_kernels import cost
from steelyard_kernels.artifact import Code, digest
from steelyard_kernels.building.cache import disk
from steelyard_kernels.errors import KernelError, sentence
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.group.build import compile_texts
from steelyard_kernels.group.run import Outcome
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.plan.partition import partition
from steelyard_kernels.schedule.parameters import Lowered
from steelyard_kernels.schedule.strategies import heuristic, is_one, lower
from steelyard_kernels.targets import CPU, parse
from steelyard_kernels.toolchains import toolchain
from steelyard_lock.cases import Case, device
from steelyard_lock.file import NUMBERS, Entry, Lock
from steelyard_lock.terminal import progress

Facts = dict[str, Any]
"""What was found of one text: `code`, `numbers` and `opcodes`, as JSON has them."""

VERSION: Final = 1
"""Of what is read of code: another one forgets what a lock file says of texts."""


class BuildError(KernelError):
    """A kernel of the library that cannot be built."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel on its way to a target's compiler, and what is known before.

    Of several launches together all is: they have `facts`.
    """

    label: str
    target: str
    schedule: str
    text: str
    numbers: Mapping[str, int]
    facts: Facts | None = None

    @property
    def named(self) -> str:
        """The name of what a compiler is given: its build is in it, and its options."""
        what = (VERSION, self.target, _compiled_by(self.target), self.text)
        return digest(json.dumps(what).encode())


def sources(cases: Sequence[Case], targets: Sequence[str]) -> list[Source]:
    """Take every case to its text for every target; raises BuildError."""
    found: list[Source] = []
    for case in cases:
        try:
            program = case.program()
        except Exception as error:
            raise _unbuilt(case.label, "any target", error) from error
        for target in targets:
            if target in case.targets:
                found += _sources(case.label, program, target)
    return found


def _sources(label: str, program: Program, target: str) -> Iterator[Source]:
    """Yield a program's text for one target, or those of its kernels behind their plan."""
    simple = simplify(program)
    try:
        plan = None if is_one(simple) else partition(simple, device(target))
    except Exception as error:
        raise _unbuilt(label, target, error) from error
    if plan is None:
        yield _source(label, simple, target, _moves(program))
        return
    every = [_moves(launch.program) for launch in plan.launches]
    numbers = {name: sum(each[name] for each in every) for name in every[0]}
    numbers |= {"launches": len(every), "workspace": plan.size}
    what = digest(repr(plan.key).encode())
    facts: Facts = {"code": what, "numbers": {}, "opcodes": {}}
    yield Source(label, target, plan.schedule.label, plan.text(), numbers, facts)
    for first, *_ in plan.distinct:
        own = plan.launches[first].program
        yield _source(f"{label} launch {first}", own, target, _moves(own))


def _moves(program: Program) -> dict[str, int]:
    return {
        "bytes": cost.bytes_moved(program),
        "operations": cost.operations(program),
    }


def _source(
    label: str, program: Program, target: str, moves: Mapping[str, int]
) -> Source:
    """Take one kernel to its text for one target, under the heuristic's schedule."""
    try:
        schedule = heuristic(program, device(target), aligned=True)
        lowered = lower(program, schedule, device(target), aligned=True)
        copies = replace(lowered.kernel, copies=program.copies)
        text = _emitted(replace(lowered, kernel=copies), target)
    except Exception as error:
        raise _unbuilt(label, target, error) from error
    return Source(label, target, schedule.label, text, {**_launch(lowered), **moves})


def _unbuilt(label: str, target: str, error: BaseException) -> BuildError:
    said = sentence(error).rstrip(".")
    return BuildError(f"{label} cannot be built for {target}: {said}. Mend it first.")


def _emitted(lowered: Lowered, target: str) -> str:
    kind, _, name = target.partition(":")
    if kind == CPU:
        from steelyard_kernels.emit.llvm import emit

        verify(lowered.kernel, kind)
        return emit(lowered.kernel, processors.PROCESSORS[name])
    where = parse(target)
    verify(lowered.kernel, where.family)
    return toolchain(where).emit(lowered.kernel)


def _launch(lowered: Lowered) -> dict[str, int]:
    """Return what one launch is: a GPU's has blocks, of a CPU the pool has threads."""
    last = lowered.slots[-1] if lowered.slots else None
    extent = last.index if last is not None and last.kind == "extent" else 0
    found = {"launches": 1}
    if lowered.per_block:
        found["blocks"] = -(-extent // lowered.per_block)
    return {**found, "threads": lowered.threads, "extent": extent}


def compilers() -> dict[str, str]:
    """Return the builds of all compilers, by kind of target, loading them."""
    return {kind: toolchain(parse(each)).compiler() for kind, each in _ANY.items()}


_ANY: Final = {"cpu": "cpu", "cuda": "cuda:sm_90a"}


def known(lock: Lock) -> dict[str, Facts]:
    """Return what a lock says of each text, by its name.

    A compiler of the same build makes the same of it; of another one nothing is known.
    """
    if lock.compilers != compilers():
        return {}
    own = NUMBERS["takes"]
    return {
        entry.text: {
            "code": entry.code,
            "numbers": {n: v for n, v in entry.numbers.items() if n in own},
            "opcodes": dict(entry.opcodes),
        }
        for entry in lock.entries.values()
    }


def compiled(found: Sequence[Source], before: Mapping[str, Facts]) -> list[Entry]:
    """Return every source's entry; texts that are the same are compiled once.

    What `before` says of a text, by its name, is believed.
    """
    names = [source.named for source in found]
    facts: dict[str, Facts] = {}
    missing: dict[str, Source] = {}
    for name, source in zip(names, found, strict=True):
        if name not in facts and name not in missing:
            kept = source.facts or before.get(name) or _recalled(name)
            if kept is None:
                missing[name] = source
            else:
                facts[name] = kept

    def keep(name: str, result: Facts | Exception) -> None:
        if isinstance(result, CompileError):
            source = missing[name]
            raise _unbuilt(source.label, source.target, result) from result
        if isinstance(result, Exception):  # not the text's: a lack of memory, say
            raise result
        facts[name] = result
        disk().put(_key(name), json.dumps(result).encode())
        progress("compiled", sum(each in facts for each in missing), len(missing))

    for target in dict.fromkeys(source.target for source in missing.values()):
        texts = {n: s.text for n, s in missing.items() if s.target == target}
        _compile(texts, target, keep)
    return [
        _entry(source, name, facts[name])
        for name, source in zip(names, found, strict=True)
    ]


def _compile(
    texts: Mapping[str, str],
    target: str,
    keep: Callable[[str, Facts | Exception], None],
) -> None:
    """Compile texts for one target, together where its compiler gains by that."""
    kind, _, processor = target.partition(":")
    if kind == CPU:
        for name, text in texts.items():
            keep(name, _assembled(text, processor))
        return
    names = tuple(texts)

    def settle(outcome: Outcome) -> None:
        for place, code in outcome.made.items():
            keep(names[place], _facts(code))
        for place, error in outcome.refused.items():
            keep(names[place], error)

    compile_texts(tuple(texts.values()), parse(target), settle)


def _entry(source: Source, name: str, facts: Facts) -> Entry:
    """Put what was known before and what the code says together."""
    numbers = {**source.numbers, **facts["numbers"]}
    return Entry(
        source.label,
        source.target,
        name,
        facts["code"],
        source.schedule,
        {name: number for name, number in numbers.items() if number},
        facts["opcodes"],
    )


def _assembled(text: str, processor: str) -> Facts | Exception:
    try:
        made = processors.compile(text, processor)
    except DeviceError as error:
        return error
    numbers = {"spilled bytes": made.spill_bytes}
    return {"code": made.code_hash, "numbers": numbers, "opcodes": dict(made.opcodes)}


def _facts(made: Code) -> Facts:
    taken = made.resources
    assert taken is not None, "a cubin says what it takes"
    numbers = {
        "registers": taken.registers,
        "stack bytes": taken.stack,
        "spilled bytes": made.spill_stores + made.spill_loads,
        "shared bytes": taken.shared,
        "wide loads": taken.loads_128,
        "wide stores": taken.stores_128,
    }
    return {"code": made.code_hash, "numbers": numbers, "opcodes": dict(taken.opcodes)}


def _recalled(name: str) -> Facts | None:
    """Return what is known of a text on disk; anything that is not whole is a miss."""
    found = disk().get(_key(name))
    try:
        facts = json.loads(found) if found is not None else None
    except ValueError:
        return None
    whole = isinstance(facts, dict) and {"code", "numbers", "opcodes"} == set(facts)
    return facts if whole else None


def _key(name: str) -> str:
    """Return where a text's facts are kept: also by our sources that read them."""
    return digest(f"{_readers()} {name}".encode())


@cache
def _readers() -> str:
    """Return the hash of the sources that say what is read of code."""
    files = (cubin.__file__, sass.__file__, processors.__file__, __file__)
    return digest(b"".join(Path(str(file)).read_bytes() for file in files))


@cache
def _compiled_by(target: str) -> str:
    """Return the build of a target's compiler and its options."""
    kind = target.partition(":")[0]
    chain = toolchain(parse(_ANY[kind]))
    settings = "" if kind == CPU else chain.settings(parse(target))
    return f"{chain.compiler()} {settings}"

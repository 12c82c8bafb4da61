"""Benchmarks, their axes and their cases: declared, found and selected."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, overload

from steelyard.analyse import expression
from steelyard.declare import mode as modes
from steelyard.declare.axes import Axis, declared, plain, text_of
from steelyard.declare.handles import CPU, Builder, Call, Check, Handle, replaced
from steelyard.errors import BenchmarkError, SteelyardError, suggestion
from steelyard.machine.printable import LONGEST, printable
from steelyard_device.errors import DeviceError

OURS: Final = {"steelyard", "steelyard_device", "steelyard_kernels", "steelyard_lock"}
"""Packages whose lines say nothing to a user about an error."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a case needs: its buffers, its work and what is expected of them."""

    handles: tuple[Handle, ...]
    call: Call
    check: Check | None
    modes: tuple[modes.Mode, ...]
    counts: Mapping[str, float]
    device: str = CPU
    """Where the buffers live: one of `handles.DEVICES`."""

    def handles_of(self, *roles: str) -> tuple[Handle, ...]:
        """Return the handles with one of ``roles``, in order of declaration."""
        return tuple(h for h in self.handles if h.role in roles)

    @property
    def launched(self) -> tuple[Handle, ...]:
        """Return the handles that the launch takes: others move no bytes."""
        taken: set[str] = set()
        given = self.call.args, self.call.out, dict(self.call.scalars)
        replaced(given, lambda handle: taken.add(handle.name))
        return tuple(h for h in self.handles if h.name in taken)

    @property
    def reference(self) -> Check | None:
        """The check that can be asked of any data, if there is one."""
        return self.check if self.check and self.check.function else None

    @property
    def results(self) -> tuple[Handle, ...]:
        """What a launch writes: outputs, then inouts."""
        return self.handles_of("output") + self.handles_of("inout")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named family of cases: one function over handles and axes."""

    function: Callable[..., Call]
    axes: Mapping[str, Axis]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def path(self) -> Path:
        """The file that defines it."""
        return Path(self.function.__code__.co_filename)

    @property
    def line(self) -> int:
        """The line it starts on."""
        return self.function.__code__.co_firstlineno

    @property
    def doc(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def source_hash(self) -> str:
        """Return a hash of its name and its file, which has what the function calls."""
        text = self.name.encode() + self.path.read_bytes()
        return hashlib.blake2b(text, digest_size=8).hexdigest()

    def cases(self, overrides: Mapping[str, Sequence[Any]] | None = None) -> list[Case]:
        """Return the product of the axes, ``overrides`` replacing their values."""
        replaced = overrides or {}
        values = [replaced.get(name, axis.values) for name, axis in self.axes.items()]
        return [
            self.case(dict(zip(self.axes, point, strict=True)))
            for point in itertools.product(*values)
        ]

    def case(self, axes: Mapping[str, Any]) -> Case:
        """Return the point ``axes``, which may have come through a pipe."""
        return Case(self, {name: plain(value) for name, value in axes.items()})


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a benchmark."""

    benchmark: Benchmark = field(repr=False)
    axes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The stable name: ``bias_layernorm[hidden=5140,dtype=float16]``."""
        shown = ",".join(
            f"{name}={text_of(value)}"
            for name, value in self.axes.items()
            if text_of(value) != text_of(self.benchmark.axes[name].default)
        )
        return f"{self.benchmark.name}[{shown}]" if shown else self.benchmark.name

    def modes(self) -> tuple[modes.Mode, ...]:
        """Return the modes it is measured in by default.

        A case that cannot be described has some too: measuring it will say why.
        """
        try:
            description = self.describe()
        except BenchmarkError:
            return modes.DEFAULTS
        default = modes.BUILDS if description.call.built_for else modes.DEFAULTS
        return description.modes or default

    def device(self) -> str:
        """Return where the case's buffers live: one of `handles.DEVICES`.

        Raises:
            BenchmarkError: it cannot be described.
        """
        return self.describe().device

    def describe(self) -> Description:
        """Call the benchmark's function with handles; nothing is allocated.

        Raises:
            BenchmarkError: the function raised, or returned no launch.
        """
        builder = Builder()
        try:
            call = self.benchmark.function(builder, **self.axes)
        except BenchmarkError as error:
            raise BenchmarkError(f"{self.id}: {error}") from None
        except (Exception, SystemExit) as error:
            raise BenchmarkError(f"{self.id} raised {raised(error)}") from error
        if not isinstance(call, Call):
            raise BenchmarkError(
                f"{self.id} returned {call!r}; expected what b.launch gives. "
                "End the function with return b.launch(...)."
            )
        if builder.launches > 1:
            raise BenchmarkError(
                f"{self.id} calls b.launch {builder.launches} times; expected one, as only "
                "what is returned is measured. Do all of it in one function."
            )
        return Description(
            tuple(builder.handles.values()),
            call,
            builder.checked,
            builder.modes,
            builder.counts,
            builder.device,
        )


@dataclass(frozen=True, slots=True)
class Described(Benchmark):
    """A benchmark whose function is elsewhere: it is what somebody says of it."""

    said: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The function's name."""
        return str(self.said["name"])

    @property
    def path(self) -> Path:
        """The file that defines it."""
        return Path(self.said["path"])

    @property
    def line(self) -> int:
        """The line it starts on."""
        return int(self.said["line"])


@dataclass(frozen=True, slots=True)
class DescribedCase(Case):
    """A case of such a benchmark."""

    said: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """The stable name."""
        return str(self.said["id"])


def elsewhere(*_: object) -> NoReturn:
    """Stand for the function of a benchmark that is elsewhere."""
    raise AssertionError("a case is described where its suite is imported")


@overload
def benchmark(function: Callable[..., Call], /) -> Benchmark: ...


@overload
def benchmark(
    **axes: Sequence[Any] | Axis,
) -> Callable[[Callable[..., Call]], Benchmark]: ...


def benchmark(
    function: Callable[..., Call] | None = None, /, **axes: Sequence[Any] | Axis
) -> Benchmark | Callable[[Callable[..., Call]], Benchmark]:
    """Turn a function of ``b`` and axes into a benchmark; axes are its keywords.

    Raises:
        SteelyardError: the function does not take an axis, or an axis has no values,
            two that read the same, or one that is not plain data.
    """
    if function is None:
        return lambda decorated: _benchmark(decorated, axes)
    return _benchmark(function, axes)


def _benchmark(
    function: Callable[..., Call], axes: Mapping[str, Sequence[Any] | Axis]
) -> Benchmark:
    named = {
        name: declared(f"axis {name} of benchmark {function.__name__}", values)
        for name, values in axes.items()
    }
    taken = list(inspect.signature(function).parameters)[1:]
    if set(taken) != set(named):
        raise SteelyardError(
            f"benchmark {function.__name__} takes {', '.join(taken) or 'no axes'} "
            f"but declares {', '.join(named) or 'none'}. Name the same axes in both."
        )
    return Benchmark(function, named)


def select(
    benchmarks: Iterable[Benchmark],
    pattern: str | None = None,
    overrides: Mapping[str, Sequence[Any]] | None = None,
) -> list[Case]:
    """Return the cases whose id ``pattern`` accepts, with ``overrides`` of axes.

    An override applies to the benchmarks that have the axis; benchmarks without it are
    left out, as are values that a benchmark of named choices does not list.

    Raises:
        SteelyardError: an axis or a value is unknown to every benchmark, the pattern
            cannot be read, or nothing matches.
    """
    benchmarks = list(benchmarks)
    replaced = overrides or {}
    known = {name for one in benchmarks for name in one.axes}
    for name in replaced:
        if name not in known:
            raise SteelyardError(
                f"no benchmark has an axis {name!r}; {suggestion(name, sorted(known))}"
            )
    able = [one for one in benchmarks if set(replaced) <= set(one.axes)]
    _check_values(able, replaced)
    accepts = expression.parse(pattern) if pattern else None
    cases = [
        case
        for one in able
        for case in one.cases(_allowed(one, replaced))
        if accepts is None or accepts(case.id)
    ]
    if not cases:
        asked = [f"-k {pattern!r}"] if pattern else []
        asked += [f"-p {n}={','.join(map(str, v))}" for n, v in replaced.items()]
        ids = [case.id for one in benchmarks for case in one.cases()]
        import difflib

        near = difflib.get_close_matches(pattern or "", ids, 1, cutoff=0.3)
        hint = f"The nearest is {near[0]}. " if near else ""
        words = {*modes.CACHES, *itertools.chain(*modes.CACHES.values())}
        if not words.isdisjoint((pattern or "").replace("/", " ").split()):
            hint += "Modes are chosen by --mode. "
        raise SteelyardError(
            f"nothing matched {' '.join(asked) or 'here'} among {len(ids)} cases. "
            f"{hint}See `steelyard list`."
        )
    return cases


BOUND: Final = 2 * LONGEST
"""Characters that are looked at of an exception's text, and returned at most."""


def named(case: str, sentence: str) -> str:
    """Return a sentence that begins with the id of the case it is about."""
    return sentence if sentence.startswith(case) else f"{case}: {sentence}"


FAILURES: Final = (Exception, SystemExit)
"""Whatever the user's work raises."""


def sentence(error: BaseException, *own: type[Exception]) -> str:
    """Say why a case failed: errors of ours, and those of ``own``, say it themselves."""
    if isinstance(error, (SteelyardError, DeviceError, *own)):
        return str(error)
    return f"the work raised {raised(error)}"


def raised(error: BaseException) -> str:
    """Say in one line what was raised and in which line of the user's file.

    Where none of the user's is under way it is the innermost line of a library.
    """
    frames = [
        (_module(frame.f_globals), Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    named = [
        (path, line)
        for name, path, line in frames
        if name.partition(".")[0] not in OURS and not path.name.startswith("<")
    ]
    libraries = {Path(place) for place in sysconfig.get_paths().values()}
    own = [(path, line) for path, line in named if libraries.isdisjoint(path.parents)]
    place = "".join(f" ({path.name}:{line})" for path, line in (own or named)[-1:])
    try:
        message = " ".join(str(error)[:BOUND].split())
    except BaseException as other:  # noqa: BLE001 # whatever the user's exception does
        message = f"its text cannot be had: {type(other).__name__}"
    said = f"{type(error).__name__}{message and f': {printable(message)}'}"
    return printable(said + place, BOUND)


def _module(names: Mapping[str, Any]) -> str:
    """Return a module's name, also of one that is run by ``python -m``."""
    spec = getattr(names.get("__spec__"), "name", None)
    return str(spec or names.get("__name__", ""))


def _allowed(
    one: Benchmark, replaced: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Keep the values that make sense: any number, but only listed choices."""
    return {
        name: [
            value
            for asked in values
            for value in _listed_or_number(_listable(one.axes[name]), asked)
        ]
        for name, values in replaced.items()
    }


def _listable(axis: Axis) -> tuple[Any, ...]:
    return (*axis.values, *axis.others)


def _listed_or_number(listed: Sequence[Any], asked: Any) -> list[Any]:
    """Return what is listed and reads or compares the same, or else a number."""
    for value in listed:
        if text_of(value) == text_of(asked) or (
            value == asked and isinstance(value, bool) == isinstance(asked, bool)
        ):
            return [value]
    numeric = {int, float}
    if set(map(type, listed)) == {int} and isinstance(asked, float):
        asked = int(asked) if asked.is_integer() else asked  # 1e6 of whole numbers
    return [asked] if numeric.issuperset(map(type, (asked, *listed))) else []


def _check_values(able: Sequence[Benchmark], replaced: Mapping[str, Any]) -> None:
    for name, values in replaced.items():
        for value in values:
            if able and not any(_allowed(one, {name: [value]})[name] for one in able):
                known = {text_of(v) for one in able for v in _listable(one.axes[name])}
                raise SteelyardError(
                    f"-p {name}={value}: no benchmark lists this value of axis {name}; "
                    f"expected one of {_listed(known)}."
                )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

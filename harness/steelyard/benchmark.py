"""Benchmarks, their axes and their cases: declared, found and selected."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, overload

from steelyard import expression
from steelyard import mode as modes
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.handles import Builder, Call, Check, Handle

_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one parameter; at its default it does not appear in case ids."""

    values: tuple[Any, ...]
    default: Any = _NONE


def axis(*values: Any, default: Any = _NONE) -> Axis:
    """Declare an axis with a default.

    Old case ids stay what they were when such an axis is added to a benchmark.
    """
    return Axis(values, default)


@dataclass(frozen=True, slots=True)
class Description:
    """What a case needs: its buffers, its work and what is expected of them."""

    handles: tuple[Handle, ...]
    call: Call
    check: Check | None
    modes: tuple[modes.Mode, ...]
    counts: Mapping[str, float]

    def handles_of(self, *roles: str) -> tuple[Handle, ...]:
        """Return the handles with one of ``roles``, in order of declaration."""
        return tuple(h for h in self.handles if h.role in roles)

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
        """Return a hash of the function's source text."""
        return hashlib.blake2b(
            inspect.getsource(self.function).encode(), digest_size=8
        ).hexdigest()

    def cases(self, overrides: Mapping[str, Sequence[Any]] | None = None) -> list[Case]:
        """Return the product of the axes, ``overrides`` replacing their values."""
        replaced = overrides or {}
        values = [replaced.get(name, axis.values) for name, axis in self.axes.items()]
        return [
            Case(self, dict(zip(self.axes, point, strict=True)))
            for point in itertools.product(*values)
        ]


@dataclass(frozen=True, slots=True)
class Case:
    """One point of a benchmark."""

    benchmark: Benchmark = field(repr=False)
    axes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The stable name: ``bias_layernorm[hidden=5140,dtype=float16]``."""
        shown = ",".join(
            f"{name}={value}"
            for name, value in self.axes.items()
            if value != self.benchmark.axes[name].default
        )
        return f"{self.benchmark.name}[{shown}]" if shown else self.benchmark.name

    def modes(self) -> tuple[modes.Mode, ...]:
        """Return the modes it is weighed in by default."""
        return self.describe().modes or modes.DEFAULTS

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
        except Exception as error:
            raise BenchmarkError(f"{self.id} raised {raised(error)}") from error
        if not isinstance(call, Call):
            raise BenchmarkError(
                f"{self.id} returned {call!r}; expected what b.launch gives. "
                "End the function with return b.launch(...)."
            )
        handles = tuple(builder.handles.values())
        return Description(
            handles, call, builder.checked, builder.modes, builder.counts
        )


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
        SteelyardError: the function does not take an axis, or an axis has no values.
    """
    if function is None:
        return lambda decorated: _benchmark(decorated, axes)
    return _benchmark(function, axes)


def _benchmark(
    function: Callable[..., Call], axes: Mapping[str, Sequence[Any] | Axis]
) -> Benchmark:
    declared = {
        name: values if isinstance(values, Axis) else Axis(tuple(values))
        for name, values in axes.items()
    }
    taken = list(inspect.signature(function).parameters)[1:]
    if set(taken) != set(declared):
        raise SteelyardError(
            f"benchmark {function.__name__} takes {', '.join(taken) or 'no axes'} "
            f"but declares {', '.join(declared) or 'none'}. Name the same axes in both."
        )
    for name, one in declared.items():
        if not one.values:
            raise SteelyardError(
                f"axis {name} of benchmark {function.__name__} has no values. "
                "Give it at least one."
            )
    return Benchmark(function, declared)


def select(
    benchmarks: Iterable[Benchmark],
    pattern: str | None = None,
    overrides: Mapping[str, Sequence[Any]] | None = None,
) -> list[Case]:
    """Return the cases whose id ``pattern`` accepts, with ``overrides`` of axes.

    An override applies to the benchmarks that have the axis; benchmarks without it are
    left out, as are values that a benchmark of named choices does not list.

    Raises:
        SteelyardError: an axis is unknown to every benchmark, the pattern cannot be
            read, or nothing matches.
    """
    benchmarks = list(benchmarks)
    replaced = overrides or {}
    known = {name for one in benchmarks for name in one.axes}
    for name in replaced:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}" if near else f"known: {_listed(known)}"
            raise SteelyardError(f"no benchmark has an axis {name!r}; {hint}?")
    accepts = expression.parse(pattern) if pattern else None
    cases = [
        case
        for one in benchmarks
        if set(replaced) <= set(one.axes)
        for case in one.cases(_allowed(one, replaced))
        if accepts is None or accepts(case.id)
    ]
    if not cases:
        asked = [f"-k {pattern!r}"] if pattern else []
        asked += [f"-p {n}={','.join(map(str, v))}" for n, v in replaced.items()]
        ids = [case.id for one in benchmarks for case in one.cases()]
        near = difflib.get_close_matches(pattern or "", ids, 1, cutoff=0.3)
        hint = f"The nearest is {near[0]}. " if near else ""
        raise SteelyardError(
            f"nothing matched {' '.join(asked) or 'here'} among {len(ids)} cases. "
            f"{hint}See `steelyard list`."
        )
    return cases


def parse_override(text: str) -> tuple[str, list[Any]]:
    """Read ``axis=1,2`` or ``axis=2^10:2^20:4x`` (times 4) or ``axis=0:100:10``.

    Raises:
        SteelyardError: it reads as none of these.
    """
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise SteelyardError(
            f"-p {text!r} is not of the form axis=1,2 or axis=2^10:2^20:4x."
        )
    return name, [value for part in values.split(",") for value in _values(text, part)]


def raised(error: BaseException) -> str:
    """Say in one line what was raised and in which line of whose file."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.parent != Path(__file__).parent:
            place = f" ({path.name}:{trace.tb_lineno})"
        trace = trace.tb_next
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}"


def _allowed(
    one: Benchmark, replaced: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Keep the values that make sense: any number, but only listed choices."""
    numeric = (int, float)
    return {
        name: [
            value
            for value in values
            if value in one.axes[name].values
            or (
                isinstance(value, numeric)
                and all(isinstance(v, numeric) for v in one.axes[name].values)
            )
        ]
        for name, values in replaced.items()
    }


def _values(text: str, part: str) -> list[Any]:
    if ":" not in part:
        return [_value(part)]
    try:
        start, stop, step = part.split(":")
        low, high = _number(start), _number(stop)
        grows = step.endswith("x")
        by = _number(step.removesuffix("x"))
    except ValueError:
        raise SteelyardError(
            f"-p {text!r} has the range {part!r}; expected start:stop:step, with an "
            "x behind the step to multiply."
        ) from None
    if by <= (1 if grows else 0) or (grows and low <= 0):
        raise SteelyardError(
            f"-p {text!r}: the range {part!r} never ends. Raise its step."
        )
    values = []
    while low <= high:
        values.append(low)
        low = low * by if grows else low + by
    return values


def _value(text: str) -> Any:
    try:
        return _number(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), text)


def _number(text: str) -> int | float:
    base, power, exponent = text.partition("^")
    if power:
        return _number(base) ** int(exponent)
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

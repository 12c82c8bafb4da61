"""Work: what a case hands the harness to be launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from keyword import iskeyword
from typing import Any, Protocol, runtime_checkable

from steelyard.declare.benchmark import Description
from steelyard.declare.handles import Call, Handle, StreamHandle, replaced
from steelyard.errors import BenchmarkError
from steelyard.machine.decoding import digest
from steelyard.prepare.buffers import Buffers
from steelyard.prepare.cubins import Cubin as Cubin  # noqa: PLC0414 # it is work too
from steelyard.prepare.frameworks import ArrayAdapter, adapter
from steelyard_device import binary, cuda


class Work(Protocol):
    """Anything that can be launched on preallocated buffers."""

    def launch(self, count: int = 1) -> None:
        """Submit ``count`` launches."""
        ...

    def wait(self) -> None:
        """Return when everything submitted is done."""
        ...

    def ready(self) -> None:
        """Wake what sleeps, so that the next window does not pay for it; untimed."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Say what is known: bytes, operations, code_hash, schedule, threads..."""
        ...


@runtime_checkable
class NativeWork(Work, Protocol):
    """Work whose launches and clock run without Python between them."""

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Launch between two reads of CLOCK_MONOTONIC; return both, in nanoseconds."""
        ...

    def null(self) -> NativeWork:
        """Return the same launch of a kernel that does nothing."""
        ...


@runtime_checkable
class Exported(NativeWork, Protocol):
    """Native work whose machine code other processes can launch."""

    def binary(self) -> bytes:
        """Return the code, and all that a launch needs to know: `steelyard_device.binary`."""
        ...


@runtime_checkable
class Recordable(Exported, Protocol):
    """Such work that also says where a launch reads and writes."""

    arrays: Mapping[str, Any]
    """By the names that its binary gives them."""


@runtime_checkable
class Sealed(Work, Protocol):
    """Work of a capsule, which lacks what the process that built it knows."""

    head: Mapping[str, Any]
    """Of its launch, as the capsule has it."""


def launch_hash(bound: Work) -> str | None:
    """Return the hash of all that a launch gives its code, but for addresses.

    That is the slots with their extents and numbers, threads or grid, block and shared
    memory; on a CPU the entry too, for there the code's hash is of all entries. None of
    work that gives no machine code away.
    """
    if isinstance(bound, Sealed):
        head = bound.head
    elif isinstance(bound, Exported):
        head, _ = binary.unpack(bound.binary())
    else:
        return None
    found = []
    for each in binary.launches(head):
        on_cpu = ("threads", "entry") if "threads" in each else ()
        names = ("slots", "grid", "block", "shared", *on_cpu)
        found.append({name: each[name] for name in names if name in each})
    return digest(found if "launches" in head else found[0])


@runtime_checkable
class DeviceWork(Work, Protocol):
    """Work that runs on a GPU's stream after its launches were submitted."""

    context: cuda.Context
    stream: int
    """Handle of the stream that all of it runs on."""


@runtime_checkable
class Buildable(Protocol):
    """Work that can be built again."""

    def build(self, cache: str) -> None:
        """Build with the caches of level ``cache``, as `mode.CACHES` names them."""
        ...


class Build(Buildable, Protocol):
    """What is built and not launched."""

    def facts(self) -> Mapping[str, Any]:
        """Say what is known: compiler, code_hash, registers, spills..."""
        ...


class Targeted(Protocol):
    """A kernel that can be built for a target that this machine need not have."""

    def for_target(self, target: str, *specs: tuple[tuple[int, ...], str]) -> Build:
        """Build it for arrays of these shapes and dtypes."""
        ...


@runtime_checkable
class Foreseen(Protocol):
    """Such a kernel whose builds have a key before they are made."""

    def made_of(
        self, target: str, *specs: tuple[tuple[int, ...], str]
    ) -> Mapping[str, Any]:
        """Say all that a build depends on, compiler_hash among it: nothing is built."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """A compiled kernel: bound to its arguments once, then launched natively."""

    def bind(self, *args: Any, out: Any = None, **scalars: Any) -> Work:
        """Check the arguments and pack them."""
        ...


class BoundOnCall(ABC):
    """A `Bindable` that a call binds and launches once, keeping nothing."""

    __slots__ = ()

    @abstractmethod
    def bind(self, *arrays: Any, **keywords: Any) -> Any:
        """Return the launch on these arguments."""

    def __call__(self, *arrays: Any, **keywords: Any) -> None:
        """Launch it once, as a program that keeps nothing does."""
        self.bind(*arrays, **keywords).launch()


def called(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return a call of a function as its user writes it.

    A partial copies its keywords in each call: 0.2 us more (Python 3.11).
    """
    if not all(name.isidentifier() and not iskeyword(name) for name in keywords):
        return partial(function, *args, **keywords)
    values = [f"_{index}" for index in range(len(args) + len(keywords))]
    named = map("{}={}".format, keywords, values[len(args) :])
    inside = ", ".join([*values[: len(args)], *named])
    made: dict[str, Any] = {}
    exec(f"def bind({', '.join(['_', *values])}): return lambda: _({inside})", made)  # noqa: S102 # of names alone
    bound: Callable[[], Any] = made["bind"](function, *args, *keywords.values())
    return bound


class CallableWork:
    """A Python callable with its arguments."""

    def __init__(
        self, function: Callable[..., Any], /, *args: Any, **keywords: Any
    ) -> None:
        self.called = function, args, keywords
        """What is called, with its arguments by place and by name."""
        self._call = called(function, args, keywords)

    def launch(self, count: int = 1) -> None:
        """Call ``count`` times."""
        call = self._call
        for _ in repeat(None, count):
            call()

    def wait(self) -> None:
        """Nothing is left under way when a call has returned."""

    def ready(self) -> None:
        """Nothing that we know of sleeps."""

    def facts(self) -> Mapping[str, Any]:
        """Return nothing: a callable is opaque."""
        return {}


class BuiltOnly:
    """A kernel for a target that it is not launched on here."""

    def __init__(self, call: Call) -> None:
        kernel: Targeted = call.target
        specs = [(handle.shape, handle.dtype) for handle in call.args]
        self.target = call.built_for
        built = kernel.for_target(self.target, *specs)
        self.build, self.facts = built.build, built.facts

    def launch(self, count: int = 1) -> None:
        """Refuse: the machine may not have the target."""
        raise BenchmarkError(
            f"{count} launches of a kernel that is only built, for {self.target}. Measure "
            "it in build modes, or launch it with b.launch on a machine that has one."
        )

    def wait(self) -> None:
        """Nothing is under way."""

    def ready(self) -> None:
        """Nothing sleeps."""


class DeviceCallable(CallableWork):
    """A Python callable that submits to the stream of a GPU."""

    def __init__(
        self, call: Callable[[], Any], context: cuda.Context, library: str = ""
    ) -> None:
        super().__init__(call)
        self.context, self.stream = context, context.stream
        self.synchronises = False
        """Whether a call waits for the GPU by itself: `stream_check.check_stream` finds out."""
        self._library = library

    def wait(self) -> None:
        """Return when everything on the stream is done."""
        self.context.wait()

    def facts(self) -> dict[str, Any]:
        """Say whose arrays it takes, and whether it waits for the GPU by itself."""
        found: dict[str, Any] = {"synchronises": True} if self.synchronises else {}
        return found | ({"library": self._library} if self._library else {})


def realise(description: Description, buffers: Buffers) -> Work:
    """Give the case's work its buffers.

    Raises:
        BenchmarkError: they cannot be handed over in the form that was asked for.
    """
    if description.call.built_for:
        return BuiltOnly(description.call)
    target = description.call.target
    called = calling(description, buffers)
    if isinstance(target, Bindable):
        return target.bind(*called.args, **called.keywords)
    if buffers.context is None:
        return CallableWork(target, *called.args, **called.keywords)
    library = adapter(description.call.form, buffers.context).library
    return DeviceCallable(called, buffers.context, library)


def allocating(
    description: Description, buffers: Buffers, made: dict[str, Any] | None = None
) -> Callable[[], Any]:
    """Return a call of the work as a user writes it whose outputs are new each time.

    Nothing but allocating and calling happens in it: it is timed. Where ``made`` is
    given, each new output is put there by its name, and it is not for timing.
    """
    call = description.call
    used = adapter(call.form, buffers.context)
    target, scalars = call.target, _streamed(dict(call.scalars), used)

    def given(value: Any) -> Any:
        return _streamed(replaced(value, _array), used)

    def _array(handle: Handle) -> Any:
        return used.convert(buffers.arrays[handle.name])

    def maker(value: Any) -> Callable[[], Any]:
        if isinstance(value, tuple):
            makers = [maker(item) for item in value]
            return lambda: tuple(make() for make in makers)
        if isinstance(value, Handle) and value.role == "output":
            new = allocator(value, buffers, call.form)
            return new if made is None else partial(_noted, made, value.name, new)
        ready = given(value)
        return lambda: ready

    if any(isinstance(a, Handle) and a.role == "output" for a in call.args):
        makers = [maker(value) for value in call.args]
        if call.out is not None:
            out = maker(call.out)
            return lambda: target(*[make() for make in makers], out=out(), **scalars)
        return lambda: target(*[make() for make in makers], **scalars)
    args = [given(value) for value in call.args]
    if call.out is None:
        return partial(target, *args, **scalars)
    new = maker(call.out)
    return lambda: target(*args, out=new(), **scalars)


def _noted(made: dict[str, Any], name: str, new: Callable[[], Any]) -> Any:
    made[name] = array = new()
    return array


def calling(description: Description, buffers: Buffers) -> partial[Any]:
    """Return a call of the work as a user writes it, outputs preallocated."""
    call = description.call
    used = adapter(call.form, buffers.context)
    keywords = dict(call.scalars)
    if call.out is not None:
        keywords["out"] = call.out

    def array(handle: Handle) -> Any:
        return used.convert(buffers.arrays[handle.name])

    args, named = replaced((call.args, keywords), array)
    args, named = _streamed((args, named), used)
    return partial(call.target, *args, **named)


def allocator(
    handle: Handle, buffers: Buffers | None = None, form_name: str = "numpy"
) -> Callable[[], Any]:
    """Return a function that allocates a new array like ``handle``.

    It lies where ``buffers`` do, without any on the CPU.
    """
    context = None if buffers is None else buffers.context
    empty = adapter(form_name, context).empty
    return partial(empty, handle.shape, handle.dtype)


def _streamed(value: Any, used: ArrayAdapter) -> Any:
    """Put the stream where it was asked for."""

    def stream(_: StreamHandle) -> Any:
        if used.stream is None:
            raise BenchmarkError(
                'b.stream is of a GPU and the case is on the cpu. Say b.on("cuda").'
            )
        return used.stream

    return replaced(value, stream, StreamHandle)

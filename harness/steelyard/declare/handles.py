"""What a benchmark's function is given: handles instead of arrays.

Handles let the harness allocate, restore, poison and guard the buffers, rebuild a case
in another process, and list cases without allocating anything.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from steelyard.declare import mode as modes
from steelyard.declare import recipes
from steelyard.errors import BenchmarkError

CPU: Final = "cpu"
CUDA: Final = "cuda"
DEVICES: Final = (CPU, CUDA)
"""Where buffers live and work runs; which GPU is the run's to say."""


@dataclass(frozen=True, slots=True)
class Handle:
    """One buffer of a case, not yet allocated."""

    name: str
    role: str
    """``input``, ``inout`` (restored before each sample) or ``output``."""
    shape: tuple[int, ...]
    dtype: str
    recipe: tuple[tuple[str, Any], ...] = ()
    """How it is filled: ``dist`` and its parameters, or ``file``."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """The stream that the work has to use, not yet made."""


FORMS: Final = ("numpy", "torch", "cupy", "numba")
"""How buffers may be handed over; ``numpy`` is an array of our own on a GPU."""


@dataclass(frozen=True, slots=True)
class Call:
    """The work of a case: ``target(*args, out=out, **scalars)`` over its buffers."""

    target: Any
    """Called with arrays, or bound to them if it offers ``bind``."""
    args: tuple[Any, ...]
    out: Handle | tuple[Handle, ...] | None
    form: str
    """How buffers are handed over: one of `FORMS`."""
    scalars: Mapping[str, Any]
    built_for: str = ""
    """The target it is built for and not launched on; empty for what is launched."""


@dataclass(frozen=True, slots=True)
class Check:
    """A reference: ``function(*args)`` in float64 gives what the outputs should be.

    Where there is none, ``rows`` of what it gave are known, of the case's own data.
    """

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    rtol: float | None
    atol: float | None
    rows: Path | None = None


@dataclass(slots=True)
class Builder:
    """The ``b`` of a benchmark's function: declares buffers, work and expectations."""

    handles: dict[str, Handle] = field(default_factory=dict)
    checked: Check | None = None
    modes: tuple[modes.Mode, ...] = ()
    counts: dict[str, float] = field(default_factory=dict)
    device: str = CPU
    launches: int = 0

    def on(self, device: str) -> None:
        """Say where the buffers live and the work runs: ``cpu``, or ``cuda``, a GPU.

        Which GPU is chosen by who measures. A case on a GPU is left out where there is
        none.

        Raises:
            BenchmarkError: ``device`` is neither.
        """
        if device not in DEVICES:
            raise BenchmarkError(
                f"on got the device {device!r}; expected one of {', '.join(DEVICES)}."
            )
        self.device = device

    @property
    def stream(self) -> StreamHandle:
        """Stand for the GPU's stream that the work has to use, among its arguments.

        PyTorch, Triton and CuPy take it for their current one by themselves.
        """
        return StreamHandle()

    def input(
        self,
        shape: int | Sequence[int],
        dtype: str = "float32",
        *,
        dist: str | None = None,
        name: str | None = None,
        **parameters: float,
    ) -> Handle:
        """Declare a seeded random input; see `recipes.DISTRIBUTIONS` for ``dist``.

        Without ``dist`` floating-point data is normal and integers are 0 to 99. The
        name defaults to the variable the handle is assigned to.
        """
        name = name or _assigned(sys._getframe(1))  # noqa: SLF001 # the caller's variable names the buffer
        recipe = recipes.recipe(name, dist, dtype, parameters)
        return self._add(name, "input", shape, dtype, recipe)

    def inout(
        self,
        shape: int | Sequence[int],
        dtype: str = "float32",
        *,
        dist: str | None = None,
        name: str | None = None,
        **parameters: float,
    ) -> Handle:
        """Declare a buffer that the work updates; as `input`, restored every sample."""
        name = name or _assigned(sys._getframe(1))  # noqa: SLF001 # as above
        recipe = recipes.recipe(name, dist, dtype, parameters)
        return self._add(name, "inout", shape, dtype, recipe)

    def output(
        self,
        shape: int | Sequence[int],
        dtype: str = "float32",
        *,
        name: str | None = None,
    ) -> Handle:
        """Declare a buffer that the work fills; poisoned before it is checked."""
        name = name or _assigned(sys._getframe(1))  # noqa: SLF001 # as above
        return self._add(name, "output", shape, dtype, ())

    def load(
        self, path: str, *, constant: bool = False, name: str | None = None
    ) -> Handle:
        """Declare an input whose shape, dtype and data are those of a ``.npy`` file.

        A file of one repeated value is refused unless ``constant`` says it is meant.
        """
        from steelyard.declare.npy import header

        name = name or _assigned(sys._getframe(1))  # noqa: SLF001 # as above
        shape, dtype = header(path)
        recipe = (("file", str(path)), ("constant", constant))
        return self._add(name, "input", shape, dtype, recipe)

    def launch(
        self,
        target: Callable[..., Any],
        /,
        *args: Any,
        out: Handle | tuple[Handle, ...] | None = None,
        as_: str = "numpy",
        **scalars: Any,
    ) -> Call:
        """Say what the work is; return this from the benchmark's function.

        ``target`` is called with arrays in place of handles. Something that offers
        ``bind`` (a compiled kernel, a `work.Cubin`) is bound once and launched
        natively. ``as_`` says whose arrays: torch, cupy, numba.

        Raises:
            BenchmarkError: calling ``target`` does nothing, or ``as_`` is not known.
        """
        if not callable(target):
            raise BenchmarkError(
                f"launch got {target!r}, which cannot be called. Pass a function or "
                "a kernel first, then its handles."
            )
        if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
            raise BenchmarkError(
                f"launch got {target.__name__}, whose call only makes a coroutine or a "
                "generator and runs none of it. Pass a function that does the work."
            )
        if as_ not in FORMS:
            raise BenchmarkError(
                f"as_={as_!r} is not a form; expected one of {', '.join(FORMS)}."
            )
        self.launches += 1
        return Call(target, args, out, as_, scalars)

    def build(self, kernel: Any, /, *args: Handle, target: str) -> Call:
        """Say which kernel is built for ``target`` and not launched; return this.

        For a target that this machine need not have (``cuda:sm_90a``): the case is
        measured in build modes only, its buffers are never allocated and its result is
        not checked. The kernel offers ``for_target``, see `work.Targeted`.

        Raises:
            BenchmarkError: ``kernel`` is no such kernel.
        """
        if not callable(getattr(kernel, "for_target", None)):
            raise BenchmarkError(
                f"build got {kernel!r}, which cannot be built for {target}. Pass a "
                "compiled kernel first, then its handles; b.launch takes any callable."
            )
        return Call(kernel, args, None, "numpy", {}, built_for=target)

    def check(
        self,
        reference: Callable[..., Any],
        *args: Any,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """Give the reference: a function of float64 arrays.

        It returns what the outputs, then the inouts, hold after one launch, in the
        order of their declaration (one array, or a tuple). Tolerances default to 8
        epsilons of each output's dtype, of each value and of all their mean square.

        Raises:
            BenchmarkError: there is one already, it cannot be called, or a tolerance is
                no finite number from 0 up: any result would be right, or none.
        """
        if self.checked is not None or not callable(reference):
            beside = " beside an earlier one" * (self.checked is not None)
            raise BenchmarkError(
                f"check got {reference!r}{beside}; expected one function, which returns "
                "what all outputs and inouts hold."
            )
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None:
                recipes.require(f"check got {name}", value, recipes.FROM_0)
        self.checked = Check(reference, args, rtol, atol)

    def mode(self, *names: str) -> None:
        """Say in which modes the case is measured unless the command line says so."""
        self.modes += tuple(modes.parse(str(name)) for name in names)

    def count(self, **quantities: float) -> None:
        """State ``bytes``, ``operations`` or ``items`` of one launch.

        Raises:
            BenchmarkError: a quantity is none of these, or not a number from 0 up.
        """
        for name, value in quantities.items():
            if name not in {"bytes", "operations", "items"}:
                raise BenchmarkError(
                    f"count got {name!r}; expected bytes, operations or items."
                )
            recipes.require(f"count got {name}", value, recipes.FROM_0)
            self.counts[name] = float(value)

    def _add(
        self,
        name: str,
        role: str,
        shape: int | Sequence[int],
        dtype: str,
        recipe: tuple[tuple[str, Any], ...],
    ) -> Handle:
        lengths = _lengths(shape)
        if lengths is None or any(length < 0 for length in lengths):
            raise BenchmarkError(
                f"{role} {name} has shape {shape!r}; expected one length or several, "
                "each a whole number from 0 up."
            )
        if not isinstance(name, str):
            raise BenchmarkError(
                f"{role} has name={name!r}; expected a string, or leave it out."
            )
        if name in self.handles:
            raise BenchmarkError(
                f"{role} {name} is declared twice. Give one of them another name=."
            )
        kind = recipes.dtype_of(role, name, dtype).name
        self.handles[name] = Handle(name, role, lengths, kind, recipe)
        return self.handles[name]


def replaced(value: Any, by: Callable[[Any], Any], kind: type = Handle) -> Any:
    """Put ``by(handle)`` for each handle in a value, in tuples, lists and dicts too."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, tuple):
        return tuple(replaced(item, by, kind) for item in value)
    if isinstance(value, list):
        return [replaced(item, by, kind) for item in value]
    if isinstance(value, dict):
        return {key: replaced(item, by, kind) for key, item in value.items()}
    return value


def _assigned(frame: FrameType) -> str:
    """Return the variable that the call under way in ``frame`` is assigned to."""
    code = _instructions(frame.f_code)
    at = min((offset for offset in code if offset > frame.f_lasti), default=-1)
    while at in code and code[at].opname == "JUMP_FORWARD":  # x = call if c else d
        at = code[at].argval
    if at not in code or not code[at].opname.startswith("STORE_"):
        raise BenchmarkError(
            f"a buffer declared on line {frame.f_lineno} of {frame.f_code.co_name} "
            "is not assigned to a variable by itself. Write x = b.input(...), each buffer "
            "in a statement of its own, or give it a name=."
        )
    return str(code[at].argval)


@functools.lru_cache(maxsize=512)  # a benchmark is called for each of its cases
def _instructions(code: CodeType) -> Mapping[int, dis.Instruction]:
    return {each.offset: each for each in dis.get_instructions(code)}


def _lengths(shape: int | Sequence[int]) -> tuple[int, ...] | None:
    """Return a shape in plain integers; None if it holds anything else."""
    try:
        if isinstance(shape, Sequence):
            return tuple(map(operator.index, shape))
        return (operator.index(shape),)
    except TypeError:
        return None

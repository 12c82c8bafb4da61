"""What steelyard's own code takes: commands, calls, spans, and builds before a compiler.

claims.toml bounds each. A command is a process from its start to its end; ``python`` is
the interpreter alone. A build before a compiler is all that happens until the compiler
has the text: tracing, scheduling, lowering, emitting. ``architectures`` builds a kernel
to cubins for every architecture there is.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import Builder, axis, benchmark
from steelyard.declare.handles import Call
from steelyard_device.timings import span, timings
from steelyard_kernels import library
from steelyard_kernels.artifact import Failure
from steelyard_kernels.building.build import Request, prepare
from steelyard_kernels.library import examples
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.targets import parse

from .calls import Calls
from .common import available, cuda_targets
from .dispatch import add

STEELYARD: Final = str(Path(sys.executable).with_name("steelyard"))
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "python": (sys.executable, "-c", "pass"),
    "import": (sys.executable, "-c", "import steelyard"),
    "help": (STEELYARD, "--help"),
}


@benchmark(command=list(COMMANDS))
def overhead_command(b: Builder, command: str) -> Call:
    """Run a command to its end."""
    code = b.output(1, "int32")
    b.check(lambda: np.zeros(1))
    b.mode("latency/warm")

    def run(out: NDArray[np.int32]) -> None:
        done = subprocess.run(COMMANDS[command], check=False, stdout=subprocess.DEVNULL)
        out[0] = done.returncode

    return b.launch(run, out=code)


@benchmark(result=["given", "allocated"], impl=["numpy", "ours"])
def overhead_call(b: Builder, result: str, impl: str) -> Call:
    """Add 16 numbers by a call from Python, into an array or with a new one."""
    x, y, out = b.input(16, name="x"), b.input(16, name="y"), b.output(16)
    b.check(np.add, x, y)
    b.mode("kernel/warm")
    function: Callable[..., Any] = np.add if impl == "numpy" else add
    if result == "given":
        return b.launch(functools.partial(function), x, y, out=out)

    def allocated(x: Any, y: Any, out: Any) -> None:
        out[:] = function(x, y)

    return b.launch(allocated, x, y, out=out)


@benchmark(result=["preallocated", "pooled"], impl=["ours", *available("torch")])
def gpu_overhead_call(b: Builder, result: str, impl: str) -> Call:
    """Add 100 numbers on a GPU by a call from Python, of PyTorch's tensors if it is there."""
    b.on("cuda")
    x, y = b.input(100, name="x"), b.input(100, name="y")
    b.mode("per_launch/warm/1000")
    if result == "preallocated":
        b.check(np.add, x, y)
    out = b.output(100) if result == "preallocated" else b.inout(100)
    form = "torch" if available("torch") else "numpy"
    calls = Calls(add if impl == "ours" else torch_add, result, waits=False)
    return b.launch(calls, x, y, out=out, as_=form)


def torch_add(x: Any, y: Any, out: Any = None) -> Any:
    """Add by PyTorch."""
    import torch

    return torch.add(x, y, out=out)


SPANS: Final = 1000


@benchmark(timings=["off", "on"])
def overhead_span(b: Builder, timings: str) -> Call:
    """Open and close 1000 spans of a program's timings."""
    out = b.output(1)
    b.check(lambda: np.ones(1))
    b.count(bytes=0, operations=0, items=SPANS)
    b.mode("kernel/warm")
    return b.launch(_recorded if timings == "on" else _spans, out=out)


def _spans(out: NDArray[np.float32]) -> None:
    for _ in range(SPANS):
        with span("x"):
            pass
    out[0] = 1


def _recorded(out: NDArray[np.float32]) -> None:
    with timings():
        _spans(out)


class TextBuild:
    """A kernel's text for a target, made again and again and not compiled."""

    def __init__(self, kernel: str, target: str) -> None:
        self._kernel, self._target = getattr(library, kernel), parse(target)
        self._specs = examples.specs(kernel)

    def build(self, cache: str) -> None:
        """Trace, schedule, lower, verify and emit."""
        del cache
        program = self._kernel.program(*self._specs)
        prepare(Request(program, None, self._target))

    def facts(self) -> Mapping[str, Any]:
        """Say what it is for."""
        return {"target": str(self._target)}


class ArchitecturesBuild:
    """A kernel's cubins for every architecture."""

    def __init__(self, kernel: str) -> None:
        self._kernel, self._specs = getattr(library, kernel), examples.specs(kernel)

    def build(self, cache: str) -> None:
        """Build them all."""
        for arch in GPUS:
            built = self._kernel.build(*self._specs, target=f"cuda:{arch}", cache=cache)
            assert not isinstance(built, Failure), built.error

    def facts(self) -> Mapping[str, Any]:
        """Say how many there are."""
        return {"target": "cuda", "architectures": len(GPUS)}


@dataclass(frozen=True, slots=True)
class Text:
    """A kernel's text, for `Builder.build`."""

    kernel: str

    def for_target(self, target: str, *_: object) -> TextBuild:
        """Make it."""
        return TextBuild(self.kernel, target)


@dataclass(frozen=True, slots=True)
class Architectures:
    """All cubins of a kernel, for `Builder.build`."""

    kernel: str

    def for_target(self, target: str, *_: object) -> ArchitecturesBuild:
        """Build them."""
        del target
        return ArchitecturesBuild(self.kernel)


@benchmark(
    kernel=["adam", "bias_layernorm"],
    target=axis("cpu", *cuda_targets(), default="cpu"),
)
def overhead_text(b: Builder, kernel: str, target: str) -> Call:
    """Go as far as a kernel's text: everything before a compiler has it."""
    b.mode("build/cold")
    return b.build(Text(kernel), target=target)


if cuda_targets():

    @benchmark(kernel=list(examples.SHAPES))
    def overhead_architectures(b: Builder, kernel: str) -> Call:
        """Build a kernel for every architecture."""
        b.mode("build/cold")
        return b.build(Architectures(kernel), target="cuda:sm_90a")

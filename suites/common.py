"""What several suites share: peers, and yardsticks with a chosen kind of store."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steelyard import Builder
from steelyard.declare.handles import Call, Handle
from steelyard.prepare.work import BoundOnCall, CallableWork
from steelyard_kernels import KernelFunction, dtypes, library
from steelyard_kernels.building.facts import TargetBuild
from steelyard_kernels.calling.bind import BoundKernel
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import machine

Array = NDArray[Any]
Facts = Mapping[str, Any]

_PACKAGES: Final = {
    "cupy": "cupy",
    "inductor": "torch",
    "inductor_tuned": "torch",
    "jax": "jax",
    "numba": "numba",
    "torch": "torch",
    "torch_eager": "torch",
    "triton": "triton",
}
"""Peers that are measured where their package is installed."""


def available(*names: str) -> list[str]:
    """Return the peers among ``names`` that are installed, importing none of them."""
    return [n for n in names if importlib.util.find_spec(_PACKAGES[n]) is not None]


def cuda_targets() -> list[str]:
    """Return the GPU that is built for where its compiler is installed: no GPU needed."""
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec(
        "cuda.bindings"
    )
    return ["cuda:sm_90a"] if found else []


def target_of(array: Any) -> str:
    """Return the target of the GPU that an array of ours lies on."""
    return f"cuda:{array.context.device.arch}"


def modes_of(n: int) -> tuple[str, ...]:
    """Return the modes of ``n`` elements: cold, a few are cache misses, not a kernel."""
    return ("kernel/cold", "kernel/warm") if n > 1 << 12 else ("kernel/warm",)


def on_all_cores(n: int) -> bool:
    """Say whether ``n`` elements are worth another library's fork and join."""
    return n >= 1 << 16


def copied(
    b: Builder,
    shape: int | tuple[int, ...],
    dtype: str = "float32",
    copy: Callable[..., Any] = library.copy,
) -> Call:
    """Describe a copy, the yardstick of what reads and writes as much."""
    x = b.input(shape, dtype)
    y = b.output(shape, dtype)
    b.check(lambda x: x, x, rtol=0.0, atol=0.0)
    return b.launch(copy, x, out=y)


def scaled(b: Builder, *streams: Handle) -> Call:
    """Describe an update of three streams in place, the yardstick of Adam's.

    The factor is -1 at run time, so that no number of launches makes data collapse.
    """
    b.check(lambda *streams: [-one for one in streams], *streams, rtol=0.0, atol=0.0)
    return b.launch(library.scale, *streams, s=-1.0)


def torch_matmul(x: Any, w: Any, out: Any = None) -> Any:
    """Multiply by PyTorch, on a GPU by cuBLAS."""
    import torch

    return torch.matmul(x, w, out=out)


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of another library, imported and made when its arrays are there."""

    make: Callable[[], Callable[..., Any]]

    def bind(self, *arrays: Any, **keywords: Any) -> CallableWork:
        """Return the work of calling it: nothing of ours stands in between."""
        return CallableWork(self.make(), *arrays, **keywords)

    def __call__(self, *arrays: Any, **keywords: Any) -> Any:
        """Call it once."""
        return self.make()(*arrays, **keywords)


class Made:
    """A function of another library, made when it is first called."""

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        self._made = functools.cache(make)

    def __call__(self, *arrays: Any, **keywords: Any) -> Any:
        """Call it."""
        return self._made()(*arrays, **keywords)


def inductor(function: Callable[..., Any], mode: str | None = None) -> Peer:
    """Return ``torch.compile`` of a function over tensors; its first call compiles.

    PyTorch counts the shapes it has compiled a piece of code for and goes back to eager
    after eight: every case compiles a copy, and going back is an error.
    """
    assert isinstance(function, FunctionType)
    code, names = function.__code__, function.__globals__

    @functools.cache
    def compiled() -> Callable[..., Any]:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        made: Callable[..., Any] = torch.compile(
            FunctionType(code.replace(), names),
            dynamic=False,
            fullgraph=True,
            mode=mode,
        )
        return made

    return Peer(compiled)


@dataclass(frozen=True, slots=True)
class WithStores(BoundOnCall):
    """A kernel with its best predicted schedule of one kind of store.

    The yardstick of a memory-bound kernel is the fastest copy there is, whatever the
    model would choose: stores round the caches win cold and lose warm.
    """

    kernel: KernelFunction
    streaming: bool

    def bind(self, *arrays: Array, **keywords: Any) -> BoundKernel:
        """Bind the kernel under that schedule."""
        ranked = strategies.rank(self.kernel.program(*arrays), machine())
        schedule = next(s for s, _ in ranked if s.streaming is self.streaming)
        return self.kernel.bind(*arrays, schedule=schedule, **keywords)


class BoundSequence:
    """Bound kernels launched one after another, as a program of several does."""

    def __init__(self, works: Sequence[BoundKernel]) -> None:
        self._works = works
        self.wait = works[-1].wait
        self.ready = works[-1].ready

    def launch(self, count: int = 1) -> None:
        """Launch all of them in order, ``count`` times."""
        for _ in range(count):
            for work in self._works:
                work.launch()

    def build(self, cache: str) -> None:
        """Build them all again."""
        for work in self._works:
            work.build(cache)

    def facts(self) -> Mapping[str, Any]:
        """Return the sums of bytes and operations: each kernel reads its arguments."""
        return _added([work.facts() for work in self._works])


class BuildSequence:
    """Builds of several kernels, one after another, for a target."""

    def __init__(self, builds: Sequence[TargetBuild]) -> None:
        self._builds = builds

    def build(self, cache: str) -> None:
        """Build them all again."""
        for one in self._builds:
            one.build(cache)

    def facts(self) -> Mapping[str, Any]:
        """Return sums, and of registers the most that one of them needs."""
        each = [one.facts() for one in self._builds]
        most = max(facts["registers"] for facts in each)
        return {**_added(each), "registers": most}


ADDED: Final = ("bytes", "operations", "spill_bytes", "shared_bytes", "code_bytes")
"""Facts of several kernels that are told as one's by their sum."""

SHARED: Final = ("target", "compiler", "compiler_hash")
JOINED: Final = ("code_hash", "schedule", "threads")
"""Facts that all of them share, and facts that are told one after the other."""


def _added(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sums = {
        name: sum(int(facts[name]) for facts in each)
        for name in ADDED
        if all(name in facts for facts in each)
    }
    shared = {name: each[0][name] for name in SHARED if name in each[0]}
    joined = {
        name: "+".join(str(facts[name]) for facts in each)
        for name in JOINED
        if all(facts.get(name) for facts in each)
    }
    return {**sums, **shared, **joined}


@dataclass(frozen=True, slots=True)
class InTurn(BoundOnCall):
    """Kernels to launch in turn, each on some of the arguments."""

    kernels: tuple[tuple[KernelFunction, tuple[int, ...]], ...]
    """Each kernel with the places of its arguments among those that are given."""

    def bind(self, *arrays: Array) -> BoundSequence:
        """Bind them all."""
        return BoundSequence(
            [one.bind(*(arrays[place] for place in at)) for one, at in self.kernels]
        )

    def for_target(self, target: str, *specs: tuple[tuple[int, ...], str]) -> Any:
        """Build them all for a target."""
        return BuildSequence(
            [
                one.for_target(target, *(specs[place] for place in at))
                for one, at in self.kernels
            ]
        )

    def made_of(self, target: str, *specs: tuple[tuple[int, ...], str]) -> Facts:
        """Return all that their builds depend on."""
        each = [
            one.made_of(target, *(specs[place] for place in at))
            for one, at in self.kernels
        ]
        return {"compiler_hash": each[0]["compiler_hash"], "kernels": each}


def rounded(values: Array, dtype: str) -> Array:
    """Return float64 values as they are after a cast to ``dtype``."""
    return values.astype(np.float32).astype(dtypes.of(dtype).numpy).astype(np.float64)

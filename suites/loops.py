"""A loop of thousands of small iterations, and what launching each one costs (jax#7024).

The thread's program: a network 1 -> 12 -> 1 fed 8000 times with its own output and
noise. ``noisy_mlp`` has a row for each way to launch it, and ``noisy_mlp_gradient`` has
the way back, too; `loop_claims` has what the thread says costs something, `loop_sizes`
where a GPU overtakes a CPU. Names with ``gpu_`` need a GPU; JAX has rows where it is
installed, on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steelyard import Builder, benchmark
from steelyard.declare.handles import Call, Handle
from steelyard.prepare.work import BoundOnCall
from steelyard_kernels import KernelFunction, dtypes, kernel, library, reference
from steelyard_kernels import array as xp
from steelyard_kernels.array import Array as Traced
from steelyard_kernels.library.noisy_mlp import ITERATIONS, force, noise_of

from . import jax_loops
from .common import Array, Peer, available

WIDTH: Final = 1
UNITS: Final = 12
"""The thread's network."""

CHUNK: Final = 100
"""Iterations a launch, as the thread's author would cut his loop."""

TOLERANCE: Final = {"float32": 1e-4, "float64": 1e-11}
"""Of 8000 iterations. Noise enters as it is, what is before is damped: an iteration's
rounding is not seen ten iterations later."""


@kernel
def begin(x: Traced, state: Traced, index: Traced) -> dict[str, Traced]:
    """Have the state begin at x and the index at 0."""
    return {"state": state * 0 + x, "index": index * 0}


@kernel
def chunk(
    x: Traced, index: Traced, key: Traced, w1: Traced, w2: Traced
) -> dict[str, Traced]:
    """Replace x by what it is after CHUNK iterations more."""

    def step(i: Traced, x: Traced) -> Traced:
        return force(x, w1, w2) + noise_of(x, key, index + i)

    return {"x": xp.fori_loop(0, CHUNK, step, x), "index": index + CHUNK}


class Launches:
    """Bound kernels, each launched as often as it says, as one launch of all."""

    def __init__(self, works: Sequence[tuple[Any, int]]) -> None:
        self._works = works
        self.wait, self.ready = works[-1][0].wait, works[-1][0].ready

    def launch(self, count: int = 1) -> None:
        """Launch all of them in order, ``count`` times."""
        for _ in range(count):
            for work, times in self._works:
                work.launch(times)

    def build(self, cache: str) -> None:
        """Build them all again."""
        for work, _ in self._works:
            work.build(cache)

    def facts(self) -> Mapping[str, Any]:
        """Return what the work that is launched most often says."""
        facts: Mapping[str, Any] = self._works[-1][0].facts()
        return facts


class DeviceLaunches(Launches):
    """The same on a GPU, all on one stream."""

    def __init__(self, works: Sequence[tuple[Any, int]]) -> None:
        super().__init__(works)
        self.context, self.stream = works[-1][0].context, works[-1][0].stream


def in_order(*works: tuple[Any, int]) -> Launches:
    """Return bound kernels and how often each is launched as one work, where they run."""
    return (DeviceLaunches if hasattr(works[-1][0], "stream") else Launches)(works)


@dataclass(frozen=True, slots=True)
class Stepped(BoundOnCall):
    """The loop as many launches of a kernel that updates x and counts."""

    kernel: KernelFunction
    times: int

    def bind(self, *arrays: Any, out: Any) -> Launches:
        """Bind the kernel to the output, which every launch begins from x."""
        x, key, w1, w2 = arrays
        index = beside(key)
        started = begin.bind(x, out, index)
        step = self.kernel.bind(out, index, key, w1, w2)
        return in_order((started, 1), (step, self.times))


@dataclass(frozen=True, slots=True)
class Ahead(BoundOnCall):
    """All noise drawn by a kernel of its own, then the loop over it."""

    def bind(self, *arrays: Any, out: Any) -> Launches:
        """Bind both, the noise's memory between them."""
        x, key, w1, w2 = arrays
        noise = beside(x, (ITERATIONS, *x.shape))
        drawn = library.noisy_mlp_noise.bind(x, key, out=noise)
        looped = library.noisy_mlp_ahead.bind(x, noise, w1, w2, out=out)
        return in_order((drawn, 1), (looped, 1))


def beside(array: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return new memory where an array lies, of its dtype and shape or another."""
    shape = array.shape if shape is None else shape
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    from steelyard_device import cuda

    return cuda.Buffer(array.context, shape, array.dtype)


OURS: Final[Mapping[str, Any]] = {
    "launches": Stepped(library.noisy_mlp_step, ITERATIONS),
    "chunks": Stepped(chunk, ITERATIONS // CHUNK),
    "ahead": Ahead(),
    "given": library.noisy_mlp_given,
    "ours": library.noisy_mlp,
}
"""One launch an iteration, one for each hundred, noise ahead of the loop, the number of
iterations given at launch, and one kernel that knows it."""


THEIRS: Final = jax_loops.PEERS if available("jax") else {}


@benchmark(dtype=["float32", "float64"], impl=[*OURS, *THEIRS])
def noisy_mlp(b: Builder, dtype: str, impl: str) -> Call:
    """Iterate the thread's network 8000 times on one core; an item is an iteration."""
    x, key, w1, w2 = network(b, dtype)
    b.mode("kernel/warm")
    y = b.output(WIDTH, dtype)
    noise = noise_by(impl)
    b.check(functools.partial(looped, noise, dtype), x, key, w1, w2, **within(dtype))
    return b.launch({**OURS, **THEIRS}[impl], x, key, w1, w2, out=y)


def noise_by(impl: str) -> Callable[[str, Array, Array], Array]:
    """Return what says which noise an implementation draws, given dtype, x and key."""
    return functools.partial(jax_loops.noise, impl) if impl in THEIRS else our_noise


@benchmark(dtype=["float32", "float64"], impl=[*OURS])
def gpu_noisy_mlp(b: Builder, dtype: str, impl: str) -> Call:
    """Iterate the thread's network on a GPU, one chain; also as one CUDA graph."""
    b.on("cuda")
    x, key, w1, w2 = network(b, dtype)
    b.mode("kernel/warm", "per_launch/warm/1")
    b.mode(*["per_launch/warm/graph/1"] * (impl in {"launches", "chunks"}))
    y = b.output(WIDTH, dtype)
    b.check(
        functools.partial(looped, our_noise, dtype), x, key, w1, w2, **within(dtype)
    )
    return b.launch(OURS[impl], x, key, w1, w2, out=y)


@benchmark(dtype=["float32", "float64"], impl=["ours", *available("jax")])
def noisy_mlp_gradient(b: Builder, dtype: str, impl: str) -> Call:
    """Return the sum of the last x and its gradients by both weights, one core."""
    peer = Peer(jax_loops.differentiated) if impl == "jax" else None
    return _gradient(b, dtype, impl, peer or library.noisy_mlp_backward)


@benchmark(dtype=["float32", "float64"])
def gpu_noisy_mlp_gradient(b: Builder, dtype: str) -> Call:
    """Return the same from one kernel on a GPU."""
    b.on("cuda")
    return _gradient(b, dtype, "ours", library.noisy_mlp_backward)


def _gradient(b: Builder, dtype: str, impl: str, program: Any) -> Call:
    x, key, w1, w2 = network(b, dtype)
    b.mode("kernel/warm")
    out = tuple(
        b.output(shape, dtype, name=name)
        for name, shape in (
            ("value", ()),
            ("by_w1", (WIDTH, UNITS)),
            ("by_w2", (UNITS, WIDTH)),
        )
    )
    oracle = functools.partial(differentiated, noise_by(impl), dtype)
    b.check(oracle, x, key, w1, w2, **within(dtype))
    return b.launch(program, x, key, w1, w2, out=out)


def network(b: Builder, dtype: str) -> tuple[Handle, Handle, Handle, Handle]:
    """Declare the thread's network, of small weights, and a key; count iterations."""
    b.count(items=ITERATIONS)
    x, w1, w2 = parts(b, dtype, (WIDTH,), UNITS)
    return x, b.input((), "int64", name="key"), w1, w2


def parts(
    b: Builder, dtype: str, shape: tuple[int, ...], units: int, of_weights: str = ""
) -> tuple[Handle, Handle, Handle]:
    """Declare where chains begin and both weights, of a dtype of their own if given.

    Without a sigmoid x is multiplied by 0.2 in each iteration: no chain runs away.
    """
    x = b.input(shape, dtype, name="x")
    w1, w2 = (
        b.input(
            shape, of_weights or dtype, name=name, dist="uniform", low=-2.5, high=-1.5
        )
        for name, shape in (("w1", (WIDTH, units)), ("w2", (units, WIDTH)))
    )
    return x, w1, w2


def within(dtype: str) -> dict[str, float]:
    """Return how far a result may be from its reference."""
    return {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}


def looped(
    noise: Callable[[str, Array, Array], Array],
    dtype: str,
    x: Array,
    key: Array,
    *weights: Array,
) -> Array:
    """Return the loop in float64, over the noise of whoever draws it in a dtype."""
    rows = noise(dtype, x, key)
    w1, w2 = (np.log1p(np.exp(w.astype(np.float64))) for w in weights)
    last = x.astype(np.float64)
    for row in rows:
        last = sigmoid(sigmoid(last @ w1) @ w2) + row
    return last


def evaluated(program: KernelFunction, dtype: str, arrays: Sequence[Array]) -> Array:
    """Return the oracle's only output; references are given float64."""
    specs = [
        (array.shape, dtypes.of(dtype if array.dtype.kind == "f" else "int64"))
        for array in arrays
    ]
    given = {"iterations": ITERATIONS}
    return reference.evaluate(program.program(*specs), arrays, given)["out"]


def our_noise(dtype: str, x: Array, key: Array) -> Array:
    """Return the noise that our kernels draw, by the oracle."""
    return evaluated(library.noisy_mlp_noise, dtype, (x, key))


def differentiated(
    noise: Callable[[str, Array, Array], Array],
    dtype: str,
    x: Array,
    key: Array,
    *weights: Array,
) -> tuple[Array, Array, Array]:
    """Return the sum of the loop's last x, and its gradients: by hand, in float64."""
    w1, w2 = (np.log1p(np.exp(w.astype(np.float64))) for w in weights)
    carries, last = [], x.astype(np.float64)
    for row in noise(dtype, x, key):
        hidden = sigmoid(last @ w1)
        force = sigmoid(hidden @ w2)
        carries.append((last, hidden, force))
        last = force + row
    along, by_w1, by_w2 = np.ones_like(last), np.zeros_like(w1), np.zeros_like(w2)
    for before, hidden, force in reversed(carries):
        second = along * force * (1 - force)
        first = w2 @ second * hidden * (1 - hidden)
        by_w2 += np.outer(hidden, second)
        by_w1 += np.outer(before, first)
        along = w1 @ first
    by_w1, by_w2 = (
        by * sigmoid(w.astype(np.float64))
        for by, w in zip((by_w1, by_w2), weights, strict=True)
    )
    return np.asarray(np.sum(last)), by_w1, by_w2


def sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    found: Array = 1 / (1 + np.exp(-x))
    return found

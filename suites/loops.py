"""A loop of thousands of small iterations, and what launching each one costs (jax#7024).

The thread's program: a network 1 -> 12 -> 1 fed 8000 times with its own output and
noise. ``noisy_mlp`` has a row for each way to launch it, ``noisy_mlp_claims`` one for
each thing that the thread says costs something, `CLAIMS`; ``noisy_mlp_sizes`` asks
where a GPU overtakes a CPU. Names with ``gpu_`` need a GPU; JAX has rows where it is
installed, on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from steelyard import Builder, axis, benchmark
from steelyard.handles import Call, Handle
from steelyard_kernels import KernelFunction, dtypes, kernel, library, reference
from steelyard_kernels import array as xp
from steelyard_kernels.array import Array as Traced
from steelyard_kernels.library.noisy_mlp import ITERATIONS, force, iterated, noise_of
from steelyard_kernels.vmap import vmap

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


@dataclass(frozen=True, slots=True)
class Stepped:
    """The loop as many launches of a kernel that updates x and counts."""

    kernel: KernelFunction
    times: int

    def bind(self, *arrays: Any, out: Any) -> Launches:
        """Bind the kernel to the output, which every launch begins from x."""
        x, key, w1, w2 = arrays
        index = beside(key)
        started = begin.bind(x, out, index)
        return Launches(
            [(started, 1), (self.kernel.bind(out, index, key, w1, w2), self.times)]
        )

    def __call__(self, *arrays: Any, out: Any) -> None:
        """Run all launches once."""
        self.bind(*arrays, out=out).launch()


@dataclass(frozen=True, slots=True)
class Ahead:
    """All noise drawn by a kernel of its own, then the loop over it."""

    def bind(self, *arrays: Any, out: Any) -> Launches:
        """Bind both, the noise's memory between them."""
        x, key, w1, w2 = arrays
        noise = beside(x, (ITERATIONS, *x.shape))
        drawn = library.noisy_mlp_noise.bind(x, key, out=noise)
        looped = library.noisy_mlp_ahead.bind(x, noise, w1, w2, out=out)
        return Launches([(drawn, 1), (looped, 1)])

    def __call__(self, *arrays: Any, out: Any) -> None:
        """Run both once."""
        self.bind(*arrays, out=out).launch()


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


@benchmark(dtype=["float32", "float64"], impl=[*OURS, *available("jax")])
def noisy_mlp(b: Builder, dtype: str, impl: str) -> Call:
    """Iterate the thread's network 8000 times on one core; an item is an iteration."""
    x, key, w1, w2 = network(b, dtype)
    b.mode("kernel/warm")
    y = b.output(WIDTH, dtype)
    noise = jax_noise if impl == "jax" else our_noise
    b.check(functools.partial(looped, noise, dtype), x, key, w1, w2, **within(dtype))
    program = Peer(jax_scan) if impl == "jax" else OURS[impl]
    return b.launch(program, x, key, w1, w2, out=y)


@benchmark(dtype=["float32", "float64"], impl=[*OURS])
def gpu_noisy_mlp(b: Builder, dtype: str, impl: str) -> Call:
    """Iterate the thread's network on a GPU, one chain; also as one CUDA graph."""
    b.on("cuda")
    x, key, w1, w2 = network(b, dtype)
    b.mode("kernel/warm", *["per_launch/warm/graph/1"] * (impl == "launches"))
    y = b.output(WIDTH, dtype)
    b.check(
        functools.partial(looped, our_noise, dtype), x, key, w1, w2, **within(dtype)
    )
    return b.launch(OURS[impl], x, key, w1, w2, out=y)


CLAIMS: Final[Mapping[str, str]] = {
    "program": "what the others are compared with",
    "softplus within": '"calling softplus costs 32 %": prepared in each iteration',
    "no softplus": '"calling softplus costs 32 %": left out',
    "no sigmoid": '"sigmoid costs 10 %": left out',
    "count given": '"passing maximum_iterations non-statically costs 43 %"',
    "unroll 2": '"I set unroll to 2 to get the time down 20 %"',
    "unroll 4": "the same, further",
    "no noise": "random numbers, which he draws ahead",
}
"""What the thread says of its listing's parts; its 64 bits cost 50 % are the dtype."""


@benchmark(claim=list(CLAIMS), dtype=["float32", "float64"])
def noisy_mlp_claims(b: Builder, claim: str, dtype: str) -> Call:
    """Change one thing of the program that is said to cost something."""
    x, key, w1, w2 = network(b, dtype)
    y = b.output(WIDTH, dtype)
    b.mode("kernel/warm")
    b.check(functools.partial(evaluated, claim, dtype), x, key, w1, w2, **within(dtype))
    return b.launch(claimed(claim), x, key, w1, w2, out=y)


@functools.cache
def claimed(claim: str) -> KernelFunction:
    """Return the program with that one thing changed."""

    def program(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
        if claim.startswith("unroll"):
            unroll = int(claim.split()[1])
            return iterated(x, key, w1, w2, ITERATIONS, unroll)

        def step(i: Traced, state: Any) -> Any:
            x, w1, w2 = state
            after = network_without(claim, x, w1, w2)
            if claim != "no noise":
                after = after + noise_of(x, key, i)
            return after, w1, w2

        def outside(i: Traced, x: Traced) -> Traced:
            after: Traced = step(i, (x, w1, w2))[0]
            return after

        last: Traced
        if claim == "softplus within":  # a carry that does not change is not moved out
            last, _, _ = xp.fori_loop(0, ITERATIONS, step, (x, w1, w2))
        else:
            last = xp.fori_loop(0, ITERATIONS, outside, x)
        return last

    if claim == "count given":
        return library.noisy_mlp_given
    return library.noisy_mlp if claim == "program" else kernel(program)


def network_without(claim: str, x: Traced, w1: Traced, w2: Traced) -> Traced:
    """Return the network's output without what a claim leaves out."""
    for w in (w1, w2):
        x = x @ (w if claim == "no softplus" else xp.softplus(w))
        x = x if claim == "no sigmoid" else xp.sigmoid(x)
    return x


def evaluated(claim: str, dtype: str, *arrays: Array) -> Array:
    """Return what the oracle makes of a claim's program over arrays of a dtype."""
    return _evaluated(claimed(claim), dtype, arrays)


def _evaluated(program: KernelFunction, dtype: str, arrays: Sequence[Array]) -> Array:
    """Return the oracle's only output; references are given float64."""
    specs = [
        (array.shape, dtypes.of(dtype if array.dtype.kind == "f" else "int64"))
        for array in arrays
    ]
    given = {"iterations": ITERATIONS}
    return reference.evaluate(program.program(*specs), arrays, given)["out"]


SIZES: Final = (1, 12, 64, 256)
CHAINS: Final = (1, 64, 1024, 4096)
LAST: Final = 200
"""Iterations of a network whose size is asked about: enough to tell, on a CPU too."""


@kernel
def many(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
    """Return each chain's x after LAST iterations."""

    def one(x: Traced, key: Traced, w1: Traced, w2: Traced) -> Traced:
        return iterated(x, key, w1, w2, LAST)

    chains: Traced = vmap(one, (0, 0, None, None))(x, key, w1, w2)
    return chains


@benchmark(
    units=axis(12, others=[one for one in SIZES if one != 12]),
    chains=axis(1, 1024, others=[one for one in CHAINS if one not in {1, 1024}]),
    dtype=axis("float32", default="float32", others=["float64"]),
)
def noisy_mlp_sizes(b: Builder, units: int, chains: int, dtype: str) -> Call:
    """Iterate as many chains as are asked for, of as many units, on all cores."""
    return _sizes(b, units, chains, dtype)


@benchmark(
    units=axis(12, others=[one for one in SIZES if one != 12]),
    chains=axis(1, 1024, others=[one for one in CHAINS if one not in {1, 1024}]),
    dtype=axis("float32", default="float32", others=["float64"]),
)
def gpu_noisy_mlp_sizes(b: Builder, units: int, chains: int, dtype: str) -> Call:
    """Iterate the same chains on a GPU."""
    b.on("cuda")
    return _sizes(b, units, chains, dtype)


def _sizes(b: Builder, units: int, chains: int, dtype: str) -> Call:
    x, w1, w2 = parts(b, dtype, (chains, WIDTH), units)
    key = b.input(chains, "int64", name="key")
    b.mode("kernel/warm")
    b.count(items=chains * LAST)

    y = b.output((chains, WIDTH), dtype)

    def oracle(*arrays: Array) -> Array:
        return _evaluated(many, dtype, arrays)

    b.check(oracle, x, key, w1, w2, **within(dtype))
    return b.launch(many, x, key, w1, w2, out=y)


def network(b: Builder, dtype: str) -> tuple[Handle, Handle, Handle, Handle]:
    """Declare the thread's network, of small weights, and a key; count iterations."""
    b.count(items=ITERATIONS)
    x, w1, w2 = parts(b, dtype, (WIDTH,), UNITS)
    return x, b.input((), "int64", name="key"), w1, w2


def parts(
    b: Builder, dtype: str, shape: tuple[int, ...], units: int
) -> tuple[Handle, Handle, Handle]:
    """Declare where chains begin and both weights.

    Without a sigmoid x is multiplied by 0.2 in each iteration: no chain runs away.
    """
    x = b.input(shape, dtype, name="x")
    w1, w2 = (
        b.input(shape, dtype, name=name, dist="uniform", low=-2.5, high=-1.5)
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
        hidden = 1 / (1 + np.exp(-(last @ w1)))
        last = 1 / (1 + np.exp(-(hidden @ w2))) + row
    return last


def our_noise(dtype: str, x: Array, key: Array) -> Array:
    """Return the noise that our kernels draw, by the oracle."""
    return _evaluated(library.noisy_mlp_noise, dtype, (x, key))


def jax_noise(dtype: str, x: Array, key: Array) -> Array:
    """Return the noise that JAX draws ahead of its scan."""
    import jax

    with jax.enable_x64(True):
        drawn = jax.random.normal(
            jax.random.PRNGKey(int(key)), (ITERATIONS, *x.shape), dtype
        )
    return np.asarray(drawn, np.float64)


@functools.cache
def jax_scan() -> Callable[..., Any]:
    """Return the thread's second listing, which draws ahead, without haiku."""
    import jax
    import jax.numpy as jnp
    from jax.nn import sigmoid, softplus

    @jax.jit
    def infer(x: Any, key: Any, w1: Any, w2: Any) -> Any:
        noise = jax.random.normal(
            jax.random.PRNGKey(key), (ITERATIONS, *x.shape), x.dtype
        )

        def step(x: Any, row: Any) -> Any:
            hidden = sigmoid(jnp.dot(x, softplus(w1)))
            return sigmoid(jnp.dot(hidden, softplus(w2))) + row, None

        return jax.lax.scan(step, x, noise, unroll=2)[0]

    def run(x: Array, key: Array, w1: Array, w2: Array, out: Array) -> None:
        with jax.enable_x64(True):
            out[...] = infer(x, key, w1, w2)

    return run

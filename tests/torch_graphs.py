"""Models as PyTorch exported them, with its results: tests of them need no PyTorch.

Arguments and weights are random numbers that their names say; of large results some
elements are kept. `torch_cases` writes the file.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.from_torch.graph import Call, Graph, GraphInput, Ref, TensorType

FILE = Path(__file__).with_name("torch_graphs.json")
KEPT = 24  # elements of a result


@dataclass(frozen=True)
class Given:
    """An argument, `2x3:float32`, of numbers from low to high, both among integers."""

    spec: str
    low: float = -2
    high: float = 2
    place: object = 0

    @property
    def kind(self):
        """Its shape and dtype."""
        shape, _, dtype = self.spec.partition(":")
        extents = tuple(map(int, shape.split("x"))) if shape else ()
        return TensorType(extents, dtype or "float64")


@dataclass(frozen=True)
class Case:
    """A model with its arguments by name, and PyTorch's results, as `sample` has them."""

    graph: Graph
    given: dict[str, Given]
    results: tuple[tuple[list[int], str, list[float]], ...]

    def arrays(self):
        """Return what a launch takes."""
        return [
            values(self.given[e.name])
            if e.name in self.given
            else weight(e.weight, e.type)
            for e in self.graph.inputs
        ]


def values(given):
    """Return the numbers of an argument."""
    kind, seed = given.kind, zlib.crc32(f"{given.place}".encode())
    random = np.random.RandomState(seed)  # its stream is frozen
    dtype = dtypes.of(kind.dtype)
    if dtype.kind == "bool":
        return random.rand(*kind.shape) < 0.5
    if dtype.kind == "int":
        ends = int(given.low), int(given.high) + 1
        return random.randint(*ends, kind.shape).astype(dtype.numpy)
    return np.asarray(random.uniform(given.low, given.high, kind.shape)).astype(
        dtype.numpy
    )


def weight(name, kind):
    """Return the numbers of a weight; a variance is positive."""
    spec = f"{'x'.join(map(str, kind.shape))}:{kind.dtype}"
    return values(Given(spec, 0.1 if "var" in name else -0.5, 0.5, name))


def sample(result):
    """Return shape, dtype and some elements of a result."""
    flat = np.asarray(result).reshape(-1)
    step = max(1, len(flat) // KEPT)
    kept = flat[::step]
    wide = kept.astype(np.float64) if kept.dtype.name == "bfloat16" else kept
    return [*result.shape], result.dtype.name, wide.tolist()


def encoded(argument):
    """Return an argument of a call as JSON has it."""
    if isinstance(argument, Ref):
        return {"ref": argument.name}
    return [*map(encoded, argument)] if isinstance(argument, tuple) else argument


def decoded(argument):
    """Return what `encoded` was given."""
    if isinstance(argument, dict):
        return Ref(argument["ref"])
    return tuple(map(decoded, argument)) if isinstance(argument, list) else argument


def write(cases):
    """Write cases, a line each."""
    lines = [
        json.dumps([case.graph.name, dumped(case)], separators=(",", ":"))
        for case in cases
    ]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def dumped(case):
    """Return a case as JSON has it."""
    graph = case.graph
    return {
        "inputs": [
            [e.name, e.type.shape, e.type.dtype, e.weight] for e in graph.inputs
        ],
        "calls": [
            [
                call.name,
                call.operation,
                encoded(call.args),
                {key: encoded(each) for key, each in call.keywords.items()},
                [e and [e.shape, e.dtype] for e in call.results],
            ]
            for call in graph.calls
        ],
        "outputs": encoded(graph.outputs),
        "given": {k: [e.spec, e.low, e.high, e.place] for k, e in case.given.items()},
        "results": case.results,
    }


def read():
    """Return the cases of the file, by name."""
    return {name: loaded(name, found) for name, found in json.loads(FILE.read_text())}


def loaded(name, found):
    """Return what `dumped` was given."""

    def kind(pair):
        return pair and TensorType(tuple(pair[0]), pair[1])

    inputs = [GraphInput(n, kind((s, d)), w) for n, s, d, w in found["inputs"]]
    calls = [
        Call(
            n,
            o,
            tuple(map(decoded, args)),
            {k: decoded(e) for k, e in named.items()},
            tuple(map(kind, r)),
        )
        for n, o, args, named, r in found["calls"]
    ]
    graph = Graph(
        name, tuple(inputs), tuple(calls), tuple(map(decoded, found["outputs"]))
    )
    given = {key: Given(*each) for key, each in found["given"].items()}
    return Case(graph, given, tuple(tuple(each) for each in found["results"]))

"""Models as PyTorch exported them, with its results: tests of them need no PyTorch.

Arguments and weights are random numbers that their names say; of large results some
elements are kept. `torch_cases` writes the file.
"""

import json
import zlib
from pathlib import Path

import numpy as np
from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.from_torch.graph import Call, Graph, GraphInput, Ref, TensorType

FILE = Path(__file__).with_name("torch_graphs.json")
KEPT = 24  # elements of a result


class Given(Struct, frozen=True):
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


class Case(Struct, frozen=True):
    """A model with its arguments by name, and PyTorch's results, as `sample` has them."""

    graph: Graph
    given: dict[str, Given]
    results: tuple[tuple[tuple[int, ...], str, tuple[float, ...]], ...]

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
    return tuple(result.shape), result.dtype.name, tuple(wide.tolist())


KINDS = {each.__name__: each for each in (Call, Case, Given, Graph, GraphInput, Ref)}
KINDS["TensorType"] = TensorType


def encoded(value):
    """Return a value as JSON has it: of these kinds the fields, by the kind's name."""
    if type(value) in KINDS.values():
        own = [encoded(getattr(value, name)) for name in value.__struct_fields__]
        return {type(value).__name__: own}
    if isinstance(value, dict):
        return {key: encoded(each) for key, each in value.items()}
    return [*map(encoded, value)] if isinstance(value, tuple) else value


def decoded(value):
    """Return what `encoded` was given."""
    if isinstance(value, dict):
        made = {key: decoded(each) for key, each in value.items()}
        kinds = KINDS.keys() & made
        return KINDS[kinds.pop()](*made.popitem()[1]) if kinds else made
    return tuple(map(decoded, value)) if isinstance(value, list) else value


def write(cases):
    """Write cases, a line each."""
    lines = [json.dumps(encoded(case), separators=(",", ":")) for case in cases]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def read():
    """Return the cases of the file, by name."""
    return {
        case.graph.name: case for case in map(decoded, json.loads(FILE.read_text()))
    }

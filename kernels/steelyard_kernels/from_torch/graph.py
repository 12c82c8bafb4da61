"""A model as plain data: the calls of ATen's operations that PyTorch exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor, by the dtype's name without `torch.`."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Ref:
    """The value that an input, or a call, of this name gives."""

    name: str


Argument: TypeAlias = "Ref | float | int | bool | str | tuple[Argument, ...] | None"
"""Of a call: dtypes are names."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """What the model is given: an argument, or a weight by its name in the model."""

    name: str
    type: TensorType
    weight: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: `aten.add.Tensor`, or `getitem` of those with many results.

    `results` are None for a part that is no tensor. `where` is the place in the user's
    source that asked for it, FILE:LINE; "" if not known.
    """

    name: str
    operation: str
    args: tuple[Argument, ...]
    keywords: Mapping[str, Argument]
    results: tuple[TensorType | None, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A model for arguments of fixed shapes: its inputs, calls in order, and results."""

    name: str
    inputs: tuple[GraphInput, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Argument, ...]

    def live(self) -> Graph:
        """Return the model without calls and weights of which nothing is used."""
        needed = set(refs(self.outputs))
        kept: list[Call] = []
        for call in reversed(self.calls):
            if call.name in needed:
                kept.append(call)
                needed.update(refs((call.args, tuple(call.keywords.values()))))
        inputs = tuple(each for each in self.inputs if each.name in needed)
        return Graph(self.name, inputs, tuple(kept[::-1]), self.outputs)


def refs(argument: Argument) -> Iterator[str]:
    """Return the names of the values that an argument refers to."""
    if isinstance(argument, Ref):
        yield argument.name
    elif isinstance(argument, tuple):
        for each in argument:
            yield from refs(each)


def at(*places: str) -> str:
    """Return " at FILE:LINE" of places that are known, each once; "" of none."""
    known = dict.fromkeys(filter(None, places))
    return f" at {', '.join(known)}" if known else ""

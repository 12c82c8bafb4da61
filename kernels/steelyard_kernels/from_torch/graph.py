"""A model as plain data: the calls of ATen's operations that PyTorch exported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace


class Size(int):
    """An extent that a call knows: as it was in the example, and SymPy's expression."""

    expression: Any

    def __new__(cls, value: int, expression: Any) -> Self:
        """Return it with both."""
        made = super().__new__(cls, value)
        made.expression = expression
        return made

    @property
    def symbol(self) -> str:
        """Its name; "" of one that follows from others."""
        return str(self.expression) if self.expression.is_Symbol else ""

    def at(self, known: Mapping[str, int]) -> int:
        """Return it where symbols are known."""
        every = self.expression.free_symbols
        return int(self.expression.subs({each: known[str(each)] for each in every}))


class TensorType(Struct, frozen=True):
    """Shape and dtype of a tensor, by the dtype's name without `torch.`."""

    shape: tuple[int, ...]
    dtype: str

    def has(self, shape: Sequence[int]) -> bool:
        """Say whether a tensor of a shape is one, if extents of a call are as they may be."""
        fits = (
            isinstance(n, Size) or n == m
            for n, m in zip(self.shape, shape, strict=False)
        )
        return len(shape) == len(self.shape) and all(fits)


class Ref(Struct, frozen=True):
    """The value that an input, or a call, of this name gives."""

    name: str


Argument: TypeAlias = "Ref | float | int | bool | str | tuple[Argument, ...] | None"
"""Of a call: dtypes are names."""


class GraphInput(Struct, frozen=True):
    """What the model is given: an argument, or a weight by its name in the model."""

    name: str
    type: TensorType
    weight: str = ""


class Call(Struct, frozen=True):
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


class Graph(Struct, frozen=True):
    """A model for the example's shapes: its inputs, calls in order, and results.

    `bounds` are the most of those extents, by their symbols, that are each call's own.
    """

    name: str
    inputs: tuple[GraphInput, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Argument, ...]
    bounds: Mapping[str, int] = field(default_factory=dict)

    def symbols(self, shapes: Iterable[Sequence[int]]) -> dict[str, int]:
        """Return the extents of a call by symbols, of its inputs' shapes."""
        return {
            size.symbol: extent
            for each, shape in zip(self.inputs, shapes, strict=True)
            for size, extent in zip(each.type.shape, shape, strict=True)
            if isinstance(size, Size)
        }

    def at(self, known: Mapping[str, int]) -> Graph:
        """Return the model for other extents."""
        if not self.bounds:
            return self
        calls = tuple(
            replace(
                call,
                args=_at(call.args, known),
                keywords={key: _at(each, known) for key, each in call.keywords.items()},
                results=_at(call.results, known),
            )
            for call in self.calls
        )
        inputs = tuple(replace(e, type=_at(e.type, known)) for e in self.inputs)
        return Graph(self.name, inputs, calls, self.outputs)

    def live(self) -> Graph:
        """Return the model without calls and weights of which nothing is used.

        An argument whose extents are each call's own is one that says them.
        """
        needed = set(refs(self.outputs))
        kept: list[Call] = []
        for call in reversed(self.calls):
            if call.name in needed:
                kept.append(call)
                needed.update(refs((call.args, tuple(call.keywords.values()))))
        inputs = tuple(
            each
            for each in self.inputs
            if each.name in needed or any(isinstance(n, Size) for n in each.type.shape)
        )
        return replace(self, inputs=inputs, calls=tuple(kept[::-1]))


def _at(value: Any, known: Mapping[str, int]) -> Any:
    """Return what there is of an argument, or a type, at known extents."""
    if isinstance(value, Size):
        return value.at(known)
    if isinstance(value, TensorType):
        return replace(value, shape=_at(value.shape, known))
    if isinstance(value, tuple):
        return tuple(_at(each, known) for each in value)
    return value


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

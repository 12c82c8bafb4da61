"""Nested tuples, lists, dicts and None as their leaves and their structure, as in JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from steelyard_kernels.errors import KernelError


class Tree(Struct, frozen=True):
    """A structure: the kind of a node, what its children are called, the children.

    A leaf has no kind; None is a node without children.
    """

    kind: type | None
    names: tuple[str | int, ...] = ()
    children: tuple[Tree, ...] = ()

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return the structure with these leaves, as many as it has."""
        return _taken(self, iter(leaves))

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inside = ", ".join(map(str, self.children))
        if self.kind is dict:
            pairs = zip(self.names, self.children, strict=True)
            return "{" + ", ".join(f"{name!r}: {child}" for name, child in pairs) + "}"
        if self.kind is type(None):
            return "None"
        if self.kind is list:
            return f"[{inside}]"
        name = "" if self.kind is tuple else self.kind.__name__
        return f"{name}({inside}{',' * (len(self.children) == 1)})"


def _taken(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree.kind is None:
        return next(leaves)
    if tree.kind is type(None):
        return None
    found = [_taken(child, leaves) for child in tree.children]
    if tree.kind is dict:
        return dict(zip(tree.names, found, strict=True))
    if hasattr(tree.kind, "_fields"):  # a named tuple
        return tree.kind(*found)
    return tree.kind(found)


def flatten(tree: object) -> tuple[list[Any], Tree]:
    """Return a structure's leaves in order (of dicts: by sorted key), and itself."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: object, leaves: list[Any]) -> Tree:
    if tree is None:
        return Tree(type(None))
    if isinstance(tree, dict):
        names = _sorted(tree)
        return Tree(dict, names, tuple(_flatten(tree[name], leaves) for name in names))
    if isinstance(tree, tuple | list):
        children = tuple(_flatten(child, leaves) for child in tree)
        return Tree(type(tree), tuple(range(len(children))), children)
    leaves.append(tree)
    return Tree(None)


def _sorted(names: Iterable[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(names))
    except TypeError:
        kinds = ", ".join(sorted({type(name).__name__ for name in names}))
        raise KernelError(
            f"a dict has keys of the types {kinds}, expected some that can be sorted; "
            "use strings."
        ) from None


def paths(tree: Tree, root: str) -> list[str]:
    """Return how each leaf is reached, as code: root[0]['momentum']."""
    if tree.kind is None:
        return [root]
    pairs = zip(tree.names, tree.children, strict=True)
    return [path for name, child in pairs for path in paths(child, f"{root}[{name!r}]")]

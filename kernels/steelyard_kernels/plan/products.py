"""Products of a program: their factors, and the arrays that tensor cores read of these."""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import product
from math import prod
from typing import Final

from steelyard_kernels.dtypes import HALVES, TENSOR, DType, float32, widens
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rewrite import rewritten
from steelyard_kernels.schedule.contraction import EXACT, keeps, multiplies
from steelyard_kernels.schedule.gpu import Gpu

WIDER: Final = (*HALVES, float32)
"""Dtypes that factors may be widened to, float32 as tf32, the cheapest first."""
_SHOWN: Final = (expr.View, expr.Broadcast, expr.Cast, expr.Reshape)  # asked often
REUSED: Final = 16  # times that each element is multiplied of factors of tiles by FMA


def factors_of(node: Node) -> tuple[Node, ...]:
    """Return the two factors whose products a node adds up; none of another one.

    Each has fewer elements than there are products.
    """
    if isinstance(node, expr.Dot):
        return node.a, node.b
    if not isinstance(node, expr.Reduce) or node.op != "sum":
        return ()
    arg = multiplied(node)
    if not isinstance(arg, expr.Apply) or arg.op != "multiply":
        return ()
    fewer = all(_distinct(factor) < prod(arg.shape) for factor in arg.args)
    return arg.args if fewer else ()


def multiplied(node: expr.Reduce) -> Node:
    """Return what a sum adds up, not widened."""
    return node.arg.arg if isinstance(node.arg, expr.Cast) else node.arg


def is_product(node: Node) -> bool:
    """Say whether a node is a sum of products."""
    return bool(factors_of(node))


def _distinct(node: Node) -> int:
    """Return how many elements a node has that may differ."""
    least = prod(node.shape)
    while isinstance(node, _SHOWN):
        node = node.arg
        least = min(least, prod(node.shape))
    return least


def arrays_of(node: Node, gpu: Gpu, memory: Container[int] = ()) -> tuple[Node, ...]:
    """Return what tensor cores read of a product's factors, the narrowest; none of others.

    What lies in `memory` is read there.
    """
    every = [_levels(factor, memory) for factor in factors_of(node)]
    pairs = [pair for pair in product(*every) if pair and _multiply(pair, gpu)]
    return min(pairs, key=lambda pair: pair[0].dtype.bytes, default=())


def tiles_of(node: Node, gpu: Gpu, memory: Container[int] = ()) -> tuple[Node, ...]:
    """Return what tiles read of a product's factors: tensor cores, or threads by FMA.

    Threads read what is computed as often where few others of its row are multiplied by it.
    """
    arrays, factors = arrays_of(node, gpu, memory), factors_of(node)
    if arrays or not factors:
        return arrays
    if isinstance(node, expr.Dot):
        products = prod(node.shape) * node.b.shape[0]
    else:
        products = prod(expr.operands(node)[0].shape)
    if any(products < REUSED * _distinct(factor) for factor in factors):
        return ()
    every = [_levels(factor, memory, exact=True) for factor in factors]
    pairs = [
        (a, b) for a, b in product(*every) if multiplies(a.dtype, b.dtype, node.dtype)
    ]
    return min(pairs, key=lambda pair: sum(x.dtype.bytes for x in pair), default=())


def _levels(node: Node, memory: Container[int], *, exact: bool = False) -> list[Node]:
    """Return what a factor is made of that has its elements, the narrowest first.

    As tensor cores read it, or `exact`, as threads do.
    """
    found, cut = list[Node](), False
    while True:
        tensor = node.dtype in TENSOR and (cut or node.dtype is not float32)
        if tensor or (exact and node.dtype in EXACT):
            found.insert(0, node)
        cut |= isinstance(node, expr.Apply)
        if exact and cut:
            return found
        shown = keeps(node) or isinstance(node, expr.Broadcast | expr.Reshape)
        if node.number in memory or not shown:
            return found
        assert isinstance(node, (expr.Apply, *_SHOWN))
        node = node.args[0] if isinstance(node, expr.Apply) else node.arg


def _multiply(pair: tuple[Node, ...], gpu: Gpu) -> bool:
    """Say whether tensor cores multiply two arrays."""
    kinds = {node.dtype for node in pair}
    alike = len(kinds) == 1 or all(kind.bytes == 1 for kind in kinds)
    one = len({kind.kind for kind in kinds}) == 1
    return alike and one and all(gpu.multiplies(kind) for kind in kinds)


def widened(program: Program, gpu: Gpu) -> Program:
    """Return a program whose factors pass through a dtype that tensor cores multiply.

    It has all numbers of both, where these are of two or of none that they multiply.
    """
    wanted: dict[int, DType] = {}
    for node in program.nodes:
        factors = factors_of(node)
        if factors and node.dtype in WIDER and not arrays_of(node, gpu):
            kinds = [_narrowest(factor) for factor in factors]
            fits = [x for x in WIDER if all(k is x or widens(k, x) for k in kinds)]
            if fits and (fits[0] is not float32 or float32 not in kinds):
                own = multiplied(node) if isinstance(node, expr.Reduce) else node
                wanted[own.number] = fits[0]

    def rule(graph: Graph, node: Node, made: Mapping[int, Node]) -> Node | None:
        dtype = wanted.get(node.number)
        if dtype is None:
            return None
        args = [_through(graph, made[arg.number], dtype) for arg in expr.operands(node)]
        return (
            graph.dot(*args)
            if isinstance(node, expr.Dot)
            else graph.apply("multiply", *args)
        )

    return rewritten(program, rule) if wanted else program


def _narrowest(node: Node) -> DType:
    """Return the dtype of what a factor widens."""
    while keeps(node) or isinstance(node, expr.Broadcast | expr.Reshape):
        if isinstance(node, expr.Apply):
            return node.dtype
        assert isinstance(node, expr.Cast | expr.View | expr.Broadcast | expr.Reshape)
        node = node.arg
    return node.dtype


def _through(graph: Graph, node: Node, dtype: DType) -> Node:
    """Return a node whose numbers another dtype has, as that and then as they were."""
    if dtype is float32:
        return graph.apply("tf32", node)
    return graph.cast(graph.cast(node, dtype), node.dtype, folds=False)

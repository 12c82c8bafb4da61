"""Gradients of functions over arrays, taken while a kernel is traced.

    @kernel
    def fitted(w, x, y):
        loss, slope = value_and_grad(error)(w, x, y)
        return w - 0.1 * slope, loss

    backward = kernel(grad(error, argnums=(0, 1)))

Functions may be kernels. They are functions over arrays like those they are of: within loops, vmap and other
gradients too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

from steelyard_kernels import dtypes
from steelyard_kernels.array import Array, pytrees
from steelyard_kernels.array import bitcast as _bitcast
from steelyard_kernels.array.value import as_array, lift
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Input, Node
from steelyard_kernels.grad import loops
from steelyard_kernels.grad.iteration import zeros
from steelyard_kernels.grad.reverse import Reverse, again
from steelyard_kernels.ops.row import SAME_WIDTH

MEMORY: Final = 64 << 20  # bytes


def vjp(
    function: Callable[..., Any], *primals: Any, memory: int = MEMORY
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return function(*primals), and what takes its cotangent to those of the primals.

    Primals are floating arrays in nested tuples, lists, dicts and None; what the
    function reads besides them is constant to it. The pullback takes a cotangent of
    the result's structure, shapes and dtypes (of integers it is not looked at) and
    returns one for each primal. A scan keeps its carries in at most `memory` bytes,
    over all chains, where it can: it keeps fewer, and computes the others again.
    Raises KernelError for primals that are not floating, and for loops whose number
    of iterations is not known when the kernel is traced.
    """
    if not hasattr(memory, "__index__") or memory < 0:
        raise KernelError(
            f"a gradient's memory is {memory!r}, expected an int of bytes, 0 or more; "
            "leave it out for 64 MiB."
        )
    leaves, tree = pytrees.flatten(primals)
    given = [as_array(leaf, "vjp") for leaf in leaves]
    if not given:
        raise KernelError("vjp got no arrays to differentiate by; pass one or more.")
    graph = given[0].graph
    inputs = [
        _stand_in(each, name)
        for each, name in zip(given, pytrees.paths(tree, "primals"), strict=True)
    ]
    results, shape = pytrees.flatten(function(*tree.unflatten(_arrays(inputs, given))))
    outs = [as_array(leaf, "vjp") for leaf in results]
    seeds = [graph.input("cotangent", -1, each.shape, each.dtype) for each in outs]
    reverse = Reverse(graph, memory, loops.passed)
    adjoint = reverse.adjoint([o.node for o in outs], seeds, inputs)
    cotangents = [
        zeros(graph, node, bar)
        for node, bar in zip(inputs, adjoint.cotangents, strict=True)
    ]
    made = {o.number: n.node for o, n in zip(inputs, given, strict=True)}
    roots = [*(each.node for each in outs), *cotangents]
    nodes = again(graph, roots, made, adjoint.replaced)
    values = _arrays(nodes[: len(outs)], outs)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        bars = _fitting(pytrees.flatten(cotangent), shape, values)
        put = {o.number: n.node for o, n in zip(seeds, bars, strict=True)}
        found = again(graph, nodes[len(outs) :], put, {})
        return tuple(tree.unflatten(_arrays(found, given)))

    return shape.unflatten(values), pullback


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    memory: int = MEMORY,
) -> Callable[..., tuple[Array, Any]]:
    """Return a function that gives a function's value and its gradient.

    The gradient is by the argument of number `argnums`, or a tuple by each of several;
    the value is one floating number, of shape () or with extents of 1. The function is
    computed once. `memory` is as in `vjp`, which says what is raised.
    """
    places = _places(argnums)

    @wraps(function, updated=())
    def both(*args: Any, **scalars: Any) -> tuple[Array, Any]:
        beyond = [place for place in places if not -len(args) <= place < len(args)]
        if beyond:
            raise KernelError(
                f"a gradient by argument {beyond[0]}, but {len(args)} were given; name "
                "positional arguments by numbers from 0."
            )

        if len({place % len(args) for place in places}) < len(places):
            raise KernelError(
                f"a gradient by arguments {places}, two of which are one; name each "
                "once."
            )

        def chosen(*primals: Any) -> Any:
            every = list(args)
            for place, primal in zip(places, primals, strict=True):
                every[place] = primal
            return function(*every, **scalars)

        value, pullback = vjp(chosen, *(args[place] for place in places), memory=memory)
        found = pullback(_one(value))
        return value, found[0] if isinstance(argnums, int) else found

    return both


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    memory: int = MEMORY,
) -> Callable[..., Any]:
    """Return a function that gives a function's gradient; see `value_and_grad`."""
    both = value_and_grad(function, argnums, memory=memory)

    @wraps(function, updated=())
    def gradient(*args: Any, **scalars: Any) -> Any:
        return both(*args, **scalars)[1]

    return gradient


def stop_gradient(tree: Any) -> Any:
    """Return the same values, as constants to every gradient."""
    leaves, shape = pytrees.flatten(tree)
    arrays = [as_array(leaf, "stop_gradient") for leaf in leaves]
    return shape.unflatten([_stopped(each) for each in arrays])


def _stopped(x: Array) -> Array:
    """Return x, over its bits, which pass nothing back."""
    if x.dtype.kind != "float":
        return x
    wide = x if x.dtype in SAME_WIDTH else x.astype(dtypes.float32)
    same = _bitcast(_bitcast(wide, SAME_WIDTH[wide.dtype]), wide.dtype)
    return Array(x.graph, x.graph.cast(same.node, x.dtype), x.weak)


def _arrays(nodes: Sequence[Node], like: Sequence[Array]) -> list[Array]:
    """Return nodes as arrays, weak where others are."""
    pairs = zip(nodes, like, strict=True)
    return [Array(each.graph, node, each.weak) for node, each in pairs]


def _stand_in(primal: Array, name: str) -> Input:
    """Return what stands for a primal while the function is traced.

    It is one of its own even where primals are the same, or the function reads one
    that it was not given.
    """
    if primal.dtype.kind != "float":
        raise KernelError(
            f"{primal.graph.kernel}: a gradient by {name} of {primal.dtype.name}, "
            "expected a floating dtype; leave it out of argnums, or cast it."
        )
    return primal.graph.input(name, -1, primal.shape, primal.dtype)


def _places(argnums: Any) -> tuple[int, ...]:
    places = (argnums,) if isinstance(argnums, int) else argnums
    if isinstance(places, Sequence) and all(isinstance(p, int) for p in places):
        return tuple(places)
    raise KernelError(
        f"a gradient by argnums {argnums!r}, expected an int or a tuple of ints; name "
        "positional arguments by numbers from 0."
    )


def _one(value: object) -> Array:
    """Return the cotangent 1 of a scalar result."""
    if not isinstance(value, Array):
        raise KernelError(
            f"a gradient of a {type(value).__name__}, expected a function of one array; "
            "return its value alone, or use vjp."
        )
    if math.prod(value.shape) != 1 or value.dtype.kind != "float":
        raise KernelError(
            f"{value.graph.kernel}: a gradient of {value.dtype.name} {value.shape}, "
            "expected one floating number; sum it, or use vjp."
        )
    one = value.graph.constant(1, value.dtype)
    return Array(value.graph, value.graph.broadcast(one, value.shape))


def _fitting(
    given: tuple[list[Any], pytrees.Tree], shape: pytrees.Tree, values: Sequence[Array]
) -> list[Array]:
    """Return cotangents that fit the results' structure, shapes and dtypes."""
    leaves, tree = given
    kernel = values[0].graph.kernel if values else "vjp"
    if tree != shape:
        raise KernelError(
            f"{kernel}: a cotangent is {tree}, but the result is {shape}; give it the "
            "same structure."
        )
    found = []
    for leaf, value in zip(leaves, values, strict=True):
        bar = as_array(leaf, "a pullback")
        if value.dtype.kind != "float":
            found.append(value)  # not looked at
            continue
        if bar.weak:
            node = lift(bar.graph, "a pullback", bar, value.dtype, strong=True)
            bar = Array(bar.graph, node)
        if bar.shape != value.shape or bar.dtype is not value.dtype:
            raise KernelError(
                f"{kernel}: a cotangent is {bar.dtype} {bar.shape}, but the result is "
                f"{value.dtype} {value.shape}; give it the result's."
            )
        found.append(bar)
    return found

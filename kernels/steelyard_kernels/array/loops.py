"""Loops: a function of the carry is run many times within one kernel.

    def step(x, noise):                       # carry, element -> carry, element
        x = xp.tanh(x) + noise
        return x, x

    last, every = xp.scan(step, x, noises)

The body is traced once (again where a number in `init` takes the dtype of what the
body makes of it); what no iteration changes is computed before the loop. Carries and
elements are arrays in nested tuples, lists, dicts and None, as in JAX.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from steelyard_kernels import dtypes
from steelyard_kernels.array import pytrees
from steelyard_kernels.array.pytrees import Tree
from steelyard_kernels.array.tracing import current
from steelyard_kernels.array.value import Array, as_array, lift, whole
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Constant, Node
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.rows import row

MOST_UNROLL: Final = 64  # of iterations that are written out one after another


class Step(Struct, frozen=True):
    """What one iteration gives: the next carry, what is stacked, whether it runs."""

    carry: Any
    stacked: Sequence[Array] = ()
    condition: Node | None = None


def scan(
    body: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: Array | int | None = None,
    *,
    reverse: bool = False,
    unroll: int = 0,
) -> tuple[Any, Any]:
    """Return the last carry and what every iteration gave, stacked.

    `body(carry, x) -> (carry, y)` is run for every row x of xs, arrays of the same
    first extent; `reverse` begins at the last row, and stacks there. Without xs there
    are `length` iterations, an int or a runtime scalar (y is None then). `unroll` is
    how many iterations one turn of the loop holds, 0 lets the schedule choose; the
    count is exact with any. Raises KernelError where the carry changes its structure,
    a shape or a dtype.
    """
    graph = current("scan")
    _check_takes(graph, "the body of a scan", body, "carry", "x")
    elements, shape_of_xs = pytrees.flatten(xs)
    arrays = [as_array(leaf, "scan") for leaf in elements]
    count = _count(graph, arrays, length)
    made: list[Tree] = []

    def step(carry: Any, index: Node) -> Step:
        at = index
        if reverse and isinstance(count, int):
            last = graph.constant(count - 1, index.dtype)
            at = graph.apply("subtract", last, index)
        rows = [Array(graph, row(graph, array.node, at)) for array in arrays]
        returned = body(carry, shape_of_xs.unflatten(rows))
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise KernelError(
                f"{graph.kernel}: the body of a scan returned {_shown(returned)}, "
                "expected (carry, y); return None for y if nothing is kept."
            )
        leaves, tree = pytrees.flatten(returned[1])
        made.append(tree)
        return Step(returned[0], [as_array(leaf, "scan") for leaf in leaves])

    carry, stacked = _looped(
        graph, "scan", count, init, step, reverse=reverse, unroll=unroll
    )
    return carry, made[-1].unflatten(stacked)


def while_loop(
    cond: Callable[[Any], Array],
    body: Callable[[Any], Any],
    init: Any,
    max_iterations: Array | int,
    *,
    unroll: int = 0,
) -> Any:
    """Return the carry at the end of at most max_iterations while cond(carry) holds.

    `cond` gives one bool and is asked before each iteration, `body(carry) -> carry`;
    max_iterations is an int or a runtime scalar, `unroll` as in `scan`. Raises
    KernelError where the carry changes its structure, a shape or a dtype.
    """
    graph = current("while_loop")
    _check_takes(graph, "the condition of a while_loop", cond, "carry")
    _check_takes(graph, "the body of a while_loop", body, "carry")

    def step(carry: Any, _: Node) -> Step:
        goes_on = as_array(cond(carry), "while_loop")
        return Step(body(carry), condition=goes_on.node)

    count = _count(graph, [], max_iterations)
    return _looped(graph, "while_loop", count, init, step, unroll=unroll)[0]


def fori_loop(
    lower: Array | int,
    upper: Array | int,
    body: Callable[[Array, Any], Any],
    init: Any,
    *,
    unroll: int = 0,
) -> Any:
    """Return the carry after `body(i, carry) -> carry` for i from lower to upper - 1.

    The bounds are ints or runtime scalars, i is int64 of shape (); none where upper is
    not above lower. `unroll` as in `scan`. Raises KernelError where the carry changes
    its structure, a shape or a dtype.
    """
    graph = current("fori_loop")
    _check_takes(graph, "the body of a fori_loop", body, "i", "carry")
    first = _bound(graph, lower)

    def step(carry: Any, index: Node) -> Step:
        zero = isinstance(first, Constant) and first.value == 0
        at = index if zero else graph.apply("add", index, first)
        return Step(body(Array(graph, at), carry))

    count: int | Node
    begin, end = whole(lower), whole(upper)
    if begin is not None and end is not None:
        count = max(end - begin, 0)
    else:
        count = graph.apply("subtract", _bound(graph, upper), first)
        count = graph.apply("maximum", count, graph.constant(0, dtypes.int64))
    return _looped(graph, "fori_loop", count, init, step, unroll=unroll)[0]


def _bound(graph: Graph, bound: Array | int) -> Node:
    """Return an end of a fori_loop as int64."""
    if isinstance(bound, Array):
        return _runtime(graph, bound)
    known = whole(bound)
    if known is None:
        raise KernelError(
            f"{graph.kernel}: a bound of a fori_loop is {bound!r}, expected an int or a "
            "runtime scalar; give the first i, and the one after the last."
        )
    return graph.constant(known, dtypes.int64)


def _check_takes(
    graph: Graph, what: str, function: Callable[..., Any], *names: str
) -> None:
    """Raise KernelError for a function that cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*names)
    except ValueError:  # one of C's, that says nothing of itself
        return
    except TypeError as error:
        raise KernelError(
            f"{graph.kernel}: {what} is given ({', '.join(names)}), but {error}; write it "
            "with these parameters."
        ) from None


def _looped(
    graph: Graph,
    what: str,
    count: int | Node,
    init: Any,
    step: Callable[[Any, Node], Step],
    *,
    reverse: bool = False,
    unroll: int,
) -> tuple[Any, list[Array]]:
    """Return the carry at the end of a loop, `what` in errors, and the stacked arrays."""
    if unroll not in range(MOST_UNROLL + 1):
        raise KernelError(
            f"{graph.kernel}: unroll of a {what} is {unroll!r}, expected an int "
            f"from 0 to {MOST_UNROLL}; 0 lets the schedule choose."
        )
    leaves, tree = pytrees.flatten(init)
    inits = [as_array(leaf, what) for leaf in leaves]
    while True:  # ends: every turn makes a weak carry wider or strong
        parameters = graph.parameters([each.node for each in inits])
        carries = [
            Array(graph, carry, each.weak)
            for carry, each in zip(parameters[0], inits, strict=True)
        ]
        made = step(tree.unflatten(carries), parameters[1])
        nexts = _nexts(graph, what, tree, made.carry)
        grown = [_grown(a, b) for a, b in zip(inits, nexts, strict=True)]
        if all(a is b for a, b in zip(inits, grown, strict=True)):
            break
        inits = grown
    results = graph.loop(
        count,
        [each.node for each in inits],
        parameters,
        _fitting(what, tree, carries, nexts),
        [each.node for each in made.stacked],
        condition=made.condition,
        unroll=int(unroll),
        reverse=reverse,
    )
    ends = [
        Array(graph, node, each.weak)
        for node, each in zip(results, inits, strict=False)
    ]
    stacked = [Array(graph, node) for node in results[len(inits) :]]
    return tree.unflatten(ends), stacked


def _nexts(graph: Graph, what: str, tree: Tree, carry: Any) -> list[Array]:
    leaves, returned = pytrees.flatten(carry)
    if returned != tree:
        raise KernelError(
            f"{graph.kernel}: the carry of a {what} begins as {tree} "
            f"and its body returns {returned}; return the same structure."
        )
    return [as_array(leaf, what) for leaf in leaves]


def _grown(init: Array, new: Array) -> Array:
    """Return a weak init as what the body makes of it: strong, or of a wider kind."""
    if not init.weak or (new.weak and new.dtype is init.dtype):
        return init
    wider = ("bool", "int", "float").index
    if new.weak and wider(new.dtype.kind) < wider(init.dtype.kind):
        return init
    if wider(new.dtype.kind) < wider(init.dtype.kind):
        return Array(init.graph, init.node)  # strong, which `_fitting` refuses
    return Array(init.graph, init.graph.cast(init.node, new.dtype), new.weak)


def _fitting(
    what: str, tree: Tree, carries: Sequence[Array], nexts: Sequence[Array]
) -> list[Node]:
    """Return the nodes of the next carries, of the carries' shapes and dtypes."""
    found = []
    names = pytrees.paths(tree, "carry")
    for name, carry, new in zip(names, carries, nexts, strict=True):
        graph, node = carry.graph, new.node
        if new.weak:
            node = lift(graph, f"{name} of {what}", new, carry.dtype, strong=True)
        if node.shape != carry.shape or node.dtype is not carry.dtype:
            raise KernelError(
                f"{graph.kernel}: {name} of a {what} begins as {carry.dtype} "
                f"{carry.shape} and goes on as {node.dtype} {node.shape}; return what it "
                "began as, or begin with that."
            )
        found.append(node)
    return found


def _count(
    graph: Graph, arrays: Sequence[Array], length: Array | int | None
) -> int | Node:
    """Return the number of iterations: of xs, or as given."""
    extents = {array.shape[:1] for array in arrays}
    if len(extents) > 1 or () in extents:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise KernelError(
            f"{graph.kernel}: scan over arrays of shapes {shapes}, expected the same "
            "first extent of all; index what does not change within the body."
        )
    if isinstance(length, Array):
        if not extents:
            return _runtime(graph, length)
        raise KernelError(
            f"{graph.kernel}: scan over rows with a length given at launch, expected "
            "one or the other; leave length out, or index arrays within the body."
        )
    if length is not None:
        known = whole(length)
        if known is None:
            raise KernelError(
                f"{graph.kernel}: a loop's length is {length!r}, expected an int; give "
                "the number of iterations."
            )
        extents.add((known,))
    if len(extents) != 1:
        seen = " and ".join(str(extent) for (extent,) in sorted(extents))
        raise KernelError(
            f"{graph.kernel}: scan over {seen or 'nothing'} rows, expected one number "
            "of iterations; pass xs, or its length."
        )
    ((count,),) = extents
    return count


def _runtime(graph: Graph, length: Array) -> Node:
    """Return a runtime count as int64."""
    if length.dtype.kind == "int":
        return graph.cast(length.node, dtypes.int64)
    raise KernelError(
        f"{graph.kernel}: a loop's length is {length.dtype} {length.shape}, expected "
        "one int; declare the scalar as an int: *, iterations=100."
    )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"one {type(value).__name__}"

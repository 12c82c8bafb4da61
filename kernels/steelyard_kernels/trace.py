"""A plain Python function over arrays becomes a program.

Positional parameters are arrays. Keyword-only parameters are runtime scalars, given
at each launch: `*, lr=1e-3`. The function returns one array (the output "out"), a
tuple (out0, out1, ...) or a dict of names; a name that is also a parameter's means
that this parameter is updated in place.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any, Final, TypeAlias

from msgspec import Struct

from steelyard_device.timings import span
from steelyard_kernels import dtypes
from steelyard_kernels.array.tracing import current, tracing
from steelyard_kernels.array.value import Array, as_array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.graph import Graph
from steelyard_kernels.expression.structure import reachable

Spec: TypeAlias = tuple[expr.Shape, DType]

MAX_ELEMENTS: Final = 2**31 - 1  # issue 2; leaves room in every int64 byte offset


# Keywords of a kernel's call and bind, which a scalar of that name would hide.
RESERVED: Final = frozenset({"constant", "out", "schedule", "stream"})


class ScalarParameter(Struct, frozen=True):
    """A runtime scalar of the signature; `default` is None where it must be given."""

    name: str
    dtype: DType
    default: float | int | bool | None


class Signature(Struct, frozen=True):
    """The parameters of a kernel: its arrays' names and its runtime scalars."""

    name: str
    arrays: tuple[str, ...]
    scalars: tuple[ScalarParameter, ...]

    def part(self, program: Program) -> Signature:
        """Return the signature of a part of the kernel."""
        taken = {node.name for node in program.scalars}
        scalars = [each for each in self.scalars if each.name in taken]
        arrays = tuple(node.name for node in program.inputs)
        return Signature(program.name, arrays, tuple(scalars))


def signature(function: Callable[..., Any]) -> Signature:
    """Read a function's parameters; raises KernelError for kinds a kernel has not."""
    try:
        name, found = function.__name__, inspect.signature(function)
    except (AttributeError, TypeError, ValueError):  # of builtins that tell of none
        raise KernelError(
            f"a kernel is made of a {type(function).__name__}, expected a function with "
            "a name; write it with def."
        ) from None
    arrays, scalars = [], []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            if parameter.default is not parameter.empty:
                raise KernelError(
                    f"{name}: parameter {parameter.name} has a default, but positional "
                    "parameters are arrays; put * before it to make it a runtime "
                    "scalar."
                )
            arrays.append(parameter.name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            scalars.append(_scalar_parameter(name, parameter))
        else:
            raise KernelError(
                f"{name}: parameter {parameter} is {parameter.kind.description}, "
                "expected named arrays and keyword-only scalars; name each one."
            )
    return Signature(name, tuple(arrays), tuple(scalars))


def shape_of(kernel: str, name: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of a (shape, dtype) pair; raises KernelError for what is none."""
    try:
        found = tuple([operator.index(extent) for extent in shape])
    except TypeError:
        found = (-1,)
    if min(found, default=0) < 0:
        raise KernelError(
            f"{kernel}: {name} has shape {shape!r}, expected extents of 0 or more; pass "
            "(shape, dtype), as ((3, 4), 'float32')."
        )
    return found


_TYPES: Final[dict[Any, DType]] = {
    float: dtypes.float64,
    int: dtypes.int64,
    bool: dtypes.bool_,
    "float": dtypes.float64,
    "int": dtypes.int64,
    "bool": dtypes.bool_,
}


def _scalar_parameter(kernel: str, parameter: inspect.Parameter) -> ScalarParameter:
    """Type a scalar by its annotation, else by its default, else as float64."""
    if parameter.name in RESERVED:
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is named like an argument of every "
            f"call ({', '.join(sorted(RESERVED))}); give it another name."
        )
    default = None if parameter.default is parameter.empty else parameter.default
    kind = parameter.annotation
    if kind is parameter.empty:
        kind = float if default is None else type(default)
    if kind not in _TYPES:
        raise KernelError(
            f"{kernel}: scalar {parameter.name} is a {kind}, expected float, int or "
            "bool; pass arrays positionally."
        )
    return ScalarParameter(parameter.name, _TYPES[kind], default)


def trace(
    function: Callable[..., Any], signature: Signature, specs: Sequence[Spec]
) -> Program:
    """Run the function once over arrays of these shapes and dtypes.

    Raises KernelError where the program is not defined.
    """
    name = signature.name
    _check_count(signature, len(specs))
    graph = Graph(name)
    inputs = tuple(
        _input(graph, index, parameter, spec)
        for index, (parameter, spec) in enumerate(
            zip(signature.arrays, specs, strict=True)
        )
    )
    scalars = tuple(
        graph.scalar(parameter.name, parameter.dtype) for parameter in signature.scalars
    )
    given = [Array(graph, node) for node in inputs]
    named = {node.name: Array(graph, node, weak=True) for node in scalars}
    with span("function"), tracing(graph):
        try:
            result = function(*given, **named)
        except RecursionError as error:
            raise KernelError(
                f"{name}: its function, or one that it calls, calls itself deeper than "
                "Python's stack while it is traced; have it end, or scan over the steps."
            ) from error
    outputs = _outputs(graph, inputs, result)
    nodes = reachable(output.value for output in outputs)
    _check(graph, outputs, nodes)
    hidden = _hidden(graph, signature, outputs, nodes)
    if hidden:
        outputs += hidden
        nodes = reachable(output.value for output in outputs)
    used = {node.number for node in nodes}
    return Program(
        name,
        inputs,
        tuple(node for node in scalars if node.number in used),
        outputs,
        nodes,
        graph.chains,
        _form(result),
    )


def inlined(
    function: Callable[..., Any],
    signature: Signature,
    arrays: Sequence[Array],
    scalars: Mapping[str, Any],
) -> Any:
    """Return what a kernel's function gives of values of the kernel that is being traced.

    They are what it gives by itself of arrays of their shapes and dtypes: `scalars` take
    the dtype of what they meet, results and `arrays` have their own. Raises KernelError
    where it would, and for values of other kernels.
    """
    _check_count(signature, len(arrays))
    graph = current(signature.name)
    nodes = {
        parameter.name: graph.cast(
            as_array(scalars[parameter.name], parameter.name).node, parameter.dtype
        )
        for parameter in signature.scalars
    }
    result = function(
        *(Array(graph, each.node) for each in arrays),
        **{name: Array(graph, node, weak=True) for name, node in nodes.items()},
    )
    inputs = [
        expr.Input(0, each.shape, each.dtype, name, index)
        for index, (name, each) in enumerate(zip(signature.arrays, arrays, strict=True))
    ]
    outputs = _outputs(graph, inputs, result)
    values = [Array(graph, output.value) for output in outputs]
    form = _form(result)
    if form == "dict":
        return {o.name: value for o, value in zip(outputs, values, strict=True)}
    return values[0] if form == "one" else tuple(values)


def _check_count(signature: Signature, count: int) -> None:
    if count != len(signature.arrays):
        raise KernelError(
            f"{signature.name}: got {count} arrays, expected {len(signature.arrays)} "
            f"({', '.join(signature.arrays)}); pass one for each."
        )


def _check(graph: Graph, outputs: Sequence[expr.Output], nodes: Sequence[Node]) -> None:
    """Raise KernelError for what left its loop, or a chain that is not by itself."""
    for node in nodes:
        if isinstance(node, expr.Parameter):
            raise KernelError(
                f"{graph.kernel}: a value of a loop's body, made of its {node.role} of "
                f"shape {node.shape}, is used outside of the loop; return it from the "
                "body, in the carry or stacked."
            )
        if isinstance(node, expr.Input) and node.index < 0:
            raise KernelError(
                f"{graph.kernel}: a value of what is differentiated, made of {node.name} "
                f"of shape {node.shape}, is used outside of it; return it from the "
                "function, from vjp's beside others."
            )
        for arg in expr.operands(node):
            if isinstance(arg, expr.Chains):
                raise KernelError(
                    f"{graph.kernel}: what vmap gave, of shape {arg.shape}, is computed "
                    "with, expected it to be returned; chains are independent: compute "
                    "within the mapped function, or in another kernel."
                )
    for output in outputs if graph.chains else ():
        if not isinstance(output.value, expr.Chains):
            raise KernelError(
                f"{graph.kernel}: output {output.name} of shape {output.value.shape} is "
                f"of no chain, but others are of {graph.chains}; return it from the "
                "mapped function, or from another kernel."
            )


def _hidden(
    graph: Graph,
    signature: Signature,
    outputs: Sequence[expr.Output],
    nodes: Sequence[Node],
) -> tuple[expr.Output, ...]:
    """Return memory for what loops stack and others read, but no output has."""
    shown = {output.each.number for output in outputs}
    read = {arg.number: arg for node in nodes for arg in expr.operands(node)}
    kept = [
        node
        for number, node in sorted(read.items())
        if isinstance(node, expr.Result) and node.stacks and number not in shown
    ]
    taken = {*signature.arrays, *(p.name for p in signature.scalars)}
    taken |= {output.name for output in outputs}
    names = (name for i in count() if (name := f"kept{i}") not in taken)
    for node in kept:
        check_size(graph.kernel, "what a loop keeps", node.shape)
    values = [graph.chains_of(node) if graph.chains else node for node in kept]
    return tuple(
        expr.Output(name, value, None, hidden=True)
        for name, value in zip(names, values, strict=False)
    )


def _input(graph: Graph, index: int, name: str, spec: Spec) -> expr.Input:
    shape, dtype = spec
    check_size(graph.kernel, name, shape)
    return graph.input(name, index, shape, dtype)


def check_size(kernel: str, name: str, shape: expr.Shape) -> None:
    """Raise KernelError for what has more elements than kernels count."""
    if prod(shape) > MAX_ELEMENTS:
        raise KernelError(
            f"{kernel}: {name} of shape {shape} has {prod(shape)} elements, at most "
            f"{MAX_ELEMENTS} are supported; split it along its first axis."
        )


def _outputs(
    graph: Graph, inputs: Sequence[expr.Input], result: object
) -> tuple[expr.Output, ...]:
    parameters = {node.name: node for node in inputs}
    named: dict[str, object]
    if result is None and not inputs:
        named = {}  # nothing asked, nothing returned
    elif isinstance(result, dict):
        named = result
    else:  # under names of ours, which update nothing
        if isinstance(result, tuple | list):
            values, names = list(result), [f"out{i}" for i in range(len(result))]
        else:
            values, names = [result], ["out"]
        while not parameters.keys().isdisjoint(names):
            names = [f"{name}_" for name in names]
        named = dict(zip(names, values, strict=True))
    return tuple(
        _output(graph, name, value, parameters.get(name))
        for name, value in named.items()
    )


def _form(result: object) -> str:
    """Return what a call is to give: "one" array, a "tuple" of them, or a "dict"."""
    if isinstance(result, dict):
        return "dict"
    return "tuple" if result is None or isinstance(result, tuple | list) else "one"


def _output(
    graph: Graph, name: str, value: object, updated: expr.Input | None
) -> expr.Output:
    if not str(name).isidentifier():
        raise KernelError(
            f"{graph.kernel}: an output is named {name!r}, expected a Python name; "
            "rename it."
        )
    if not isinstance(value, Array) or value.graph is not graph:
        raise KernelError(
            f"{graph.kernel}: output {name} is of type {type(value).__name__}, expected "
            "an array of this kernel; return arrays, a tuple or a dict of them."
        )
    node = value.node
    check_size(graph.kernel, name, node.shape)
    if updated is None:
        return expr.Output(name, node, None)
    if node.dtype is not updated.dtype or node.shape != updated.shape:
        raise KernelError(
            f"{graph.kernel}: {name} is updated in place with {node.dtype} "
            f"{node.shape}, but the parameter is {updated.dtype} {updated.shape}; "
            "return the parameter's own dtype and shape, or another name."
        )
    return expr.Output(name, node, updated.index)

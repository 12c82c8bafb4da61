"""What `torch.export` says of a model becomes plain data: `graph.Graph`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.from_torch.graph import (
    Argument,
    Call,
    Graph,
    GraphInput,
    Ref,
    Size,
    TensorType,
    at,
)

WHOLE: Final = (
    "detach",
    "layer_norm",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
)
"""Operations of ATen's that are translated as they are, and not taken apart."""

APART: Final = (
    "addmv.default",
    "dist.default",
    "grid_sampler_2d.default",
    "linalg_vector_norm.default",
    "upsample_bilinear2d.vec",
    "upsample_linear1d.vec",
    "upsample_trilinear3d.vec",
)
"""Core operations that are taken apart all the same, as PyTorch's own compilers do."""

_FRAME: Final = re.compile(r'File "(.+?)", line (\d+)')
_PLACED: Final = ("device", "layout", "memory_format")
"""Types of arguments that say where a tensor lies: a kernel's values lie nowhere."""


def exported(
    model: Any, args: tuple[Any, ...], keywords: Mapping[str, Any], dynamic: Any = None
) -> Any:
    """Return PyTorch's exported program, of core ATen operations and `WHOLE`."""
    import torch
    from torch.utils import _pytree as pytree

    program = model
    if isinstance(model, torch.nn.Module):
        # One tensor given twice would be one argument.
        given = (args, dict(keywords))
        args, named = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)
        try:
            with torch.no_grad():
                program = torch.export.export(
                    model, args, named, dynamic_shapes=dynamic, strict=False
                )
        except Exception as error:
            if not type(error).__module__.startswith("torch."):
                raise
            said = " ".join(str(error).split())[:400].rstrip(".")
            raise Unsupported(
                f"{type(model).__name__}: torch.export cannot have it as one graph: "
                f"{said}. Change what it names."
            ) from error
    table = torch.export.default_decompositions()
    for name in WHOLE:
        table.pop(getattr(torch.ops.aten, name).default, None)
    apart = [attrgetter(name)(torch.ops.aten) for name in APART]
    table.update(torch._decomp.get_decompositions(apart))  # noqa: SLF001 - as documented
    return program.run_decompositions(table)


def name_of(model: Any, program: Any) -> str:
    """Return the name of the model's class."""
    import torch

    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    for node in program.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return str(getattr(kind, "__name__", kind)).rpartition(".")[2]
    return "model"


def weights_of(
    program: Any, graph: Graph, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the weights that a graph needs, by name: those given, or the model's own.

    Of those given a weight may have any of the names that it has in the model. What is
    no state of the model, such as a mask that it makes once, is always its own.
    Raises KernelError for one that is missing.
    """
    own = {**program.constants, **program.state_dict}
    found: dict[str, Any] = {}
    for each in graph.inputs:
        if not each.weight:
            continue
        if given is None or each.weight not in program.state_dict:
            found[each.weight] = own[each.weight]
            continue
        tensor = own[each.weight]
        names = [each.weight, *(name for name in own if own[name] is tensor)]
        known = [name for name in names if name in given]
        if not known:
            raise KernelError(
                f"{graph.name}: the weights have no {each.weight}, which the model has "
                f"{tuple(tensor.shape)}; add it."
            )
        found[each.weight] = given[known[0]]
    return found


def graph_of(program: Any, name: str) -> Graph:
    """Return an exported program as plain data.

    Raises KernelError for extents that are neither known nor bounded, and for a program that
    writes to its weights or arguments.
    """
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind.name not in {"USER_OUTPUT", "LOSS_OUTPUT"}:
            raise Unsupported(
                f"{name}: the model writes to {spec.target}, expected it to return all "
                "that it computes; call model.eval() first, or return the new value."
            )
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    inputs, calls = [], []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in specs:
            spec = specs[node.name]
            kind = _type(name, node, node.meta.get("val"))
            if kind is not None:
                inputs.append(GraphInput(node.name, kind, spec.target or ""))
        elif node.op == "call_function" and not _is_extent(node):
            calls.append(_call(name, node))
    (last,) = program.graph.find_nodes(op="output")
    outputs = _argument(last.args[0])
    assert isinstance(outputs, tuple)
    arguments = [each for each in inputs if not each.weight]
    weights = [each for each in inputs if each.weight]
    bounds = _bounds(name, arguments, program.range_constraints)
    return Graph(name, (*arguments, *weights), tuple(calls), outputs, bounds)


def _bounds(
    name: str, arguments: Iterable[GraphInput], ranges: Mapping[Any, Any]
) -> dict[str, int]:
    """Return the most of each extent that arguments have."""
    most = {str(symbol): each.upper for symbol, each in ranges.items()}
    found: dict[str, int] = {}
    for each in arguments:
        for axis, size in enumerate(each.type.shape):
            if not isinstance(size, Size):
                continue
            bound = most.get(size.symbol)
            if not size.symbol or not bound or not bound.is_Integer:
                raise Unsupported(
                    f"{name}: axis {axis} of {each.name} is {size.expression}, expected "
                    "an extent of its own with a bound; export with "
                    "torch.export.Dim(NAME, max=N)."
                )
            found[size.symbol] = int(bound)
    return found


def _is_extent(node: Any) -> bool:
    """Say whether a call only computes an extent, or asks something of one."""
    import torch

    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)


def _call(name: str, node: Any) -> Call:
    target = node.target
    operation = str(target) if hasattr(target, "_schema") else target.__name__
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return Call(
        node.name,
        operation,
        tuple(_argument(each) for each in node.args),
        {
            key: _argument(each)
            for key, each in node.kwargs.items()
            if type(each).__name__ not in _PLACED and key != "pin_memory"
        },
        tuple(_type(name, node, each) for each in values),
        _place(node),
    )


def _type(name: str, node: Any, value: Any) -> TensorType | None:
    """Return what is known of a value; None for what is no tensor."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    shape = tuple(map(_extent, value.shape))
    if None in shape:
        raise Unsupported(
            f"{name}: {node.name}{at(_place(node))} has shape {tuple(value.shape)}, "
            "expected extents that follow from those of the arguments; write it so that "
            "they do not depend on values."
        )
    return TensorType(shape, _dtype(value.dtype))


def _extent(extent: Any) -> Any:
    """Return an extent as plain data; None of one that depends on values."""
    if type(extent) is int:
        return extent
    hint = extent.node.hint
    return None if hint is None else Size(hint, extent.node.expr)


def _argument(value: Any) -> Argument:
    """Return an argument of a call as plain data."""
    import torch

    if isinstance(value, torch.fx.Node):
        own = value.meta.get("val")
        found = _extent(own) if isinstance(own, torch.SymInt) else None
        return Ref(value.name) if found is None else found
    if isinstance(value, list | tuple):
        return tuple(_argument(each) for each in value)
    if isinstance(value, torch.dtype):
        return _dtype(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _place(node: Any) -> str:
    """Return the innermost line of a call's stack that is not PyTorch's own."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for file, line in reversed(frames):
        if not file.startswith((_torch(), "<")):
            return f"{file}:{line}"
    return ""


@cache
def _torch() -> str:
    """Return the folder of PyTorch's own code."""
    import torch

    return str(Path(str(torch.__file__)).parent)

"""A model as plain data becomes the function that a kernel is traced from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.errors import CompilerBug, KernelError, Unsupported
from steelyard_kernels.extents import Extent, runtime
from steelyard_kernels.from_torch import (
    elementwise,
    norms,
    shapes,
    sums,
    windows,
    writes,
)
from steelyard_kernels.from_torch.call import Row, Site, converted, of_lines
from steelyard_kernels.from_torch.graph import (
    Argument,
    Call,
    Graph,
    Ref,
    Size,
    TensorType,
    at,
)
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.imported import identifier

_ROWS: Final[Mapping[str, Row]] = {
    **elementwise.ROWS,
    **norms.ROWS,
    **shapes.ROWS,
    **sums.ROWS,
    **windows.ROWS,
    **writes.ROWS,
}
_OF_LINES: Final = """
    _log_softmax _softmax amax amin any argmax argmin cummax cummin cumprod cumsum flip
    gather index_reduce index_select kthvalue logcumsumexp max.dim mean median min.dim
    nanmedian prod scatter scatter.reduce scatter.value_reduce scatter_add
    scatter_reduce.two sort sum topk unfold var var_mean
"""
"""Operations along axes, of which tensors without any have one."""

ROWS: Final[Mapping[str, Row]] = {
    **_ROWS,
    **{name: of_lines(_ROWS[name]) for name in _OF_LINES.split()},
}
"""What is done for each operation of ATen's: by its name, or its overload's."""


def parameters(graph: Graph) -> tuple[str, ...]:
    """Return the Python name of each input: of weights that in the model."""
    found: list[str] = []
    for each in graph.inputs:
        found.append(identifier(each.weight or each.name, found))
    return tuple(found)


def specs(graph: Graph) -> list[tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of each input, as a launch takes them."""
    return [(e.type.shape, dtypes.of(e.type.dtype).numpy) for e in graph.inputs]


def function_of(graph: Graph) -> Callable[..., Any]:
    """Return what `@kernel` traces: a function of all inputs, by name.

    Raises Unsupported for every operation that is not in the table, with its place.
    """
    _check_known(graph)

    def run(*arrays: Array) -> Array | tuple[Array, ...]:
        extents = graph.symbols(array.shape for array in arrays)
        here = graph.at(extents)
        known: dict[str, Any] = {
            each.name: array for each, array in zip(graph.inputs, arrays, strict=True)
        }
        for call in here.calls:
            try:
                known[call.name] = _translated(graph.name, call, known)
            except CompilerBug as error:
                beyond = [n for n, most in graph.bounds.items() if extents[n] > most]
                raise KernelError(str(error)) if beyond else error from None
        found = tuple(_read(known, each) for each in here.outputs if each is not None)
        return found[0] if len(found) == 1 else found

    run.__name__ = graph.name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = [inspect.Parameter(name, kind) for name in parameters(graph)]
    vars(run)["__signature__"] = inspect.Signature(signature)
    return run


def kernel_of(graph: Graph) -> KernelFunction:
    """Return the kernel of a model, at all extents that a call may have."""
    whole = KernelFunction(function_of(graph))
    if not graph.bounds:
        return whole
    extents = {
        size.symbol: Extent(f"{each.name}_{axis}", graph.bounds[size.symbol])
        for each in reversed(graph.inputs)  # named as the first that has it
        for axis, size in enumerate(each.type.shape)
        if isinstance(size, Size)
    }
    axes = {
        name: [extents.get(getattr(n, "symbol", "")) for n in each.type.shape]
        for name, each in zip(whole.signature.arrays, graph.inputs, strict=True)
    }
    return runtime(whole, **axes)


def row_of(operation: str) -> Row | None:
    """Return the row of `aten.add.Tensor`: of its overload, or of all of them."""
    overload = operation.removeprefix("aten.")
    return ROWS.get(overload) or ROWS.get(overload.partition(".")[0])


def _check_known(graph: Graph) -> None:
    missing: dict[str, list[str]] = {}
    for call in graph.calls:
        if row_of(call.operation) is None:
            missing.setdefault(call.operation, []).append(call.where)
    if missing:
        listed = "; ".join(
            f"{operation}{at(*places)}" for operation, places in missing.items()
        )
        raise Unsupported(
            f"{graph.name}: PyTorch's {listed} {'is' if len(missing) == 1 else 'are'} "
            "not supported; from_torch.OPERATIONS are those that are: write it with them."
        )


def _read(known: Mapping[str, Any], argument: Argument) -> Any:
    """Return what stands for an argument: values for names, also inside of tuples."""
    if isinstance(argument, Ref):
        return known[argument.name]
    if isinstance(argument, tuple):
        return tuple(_read(known, each) for each in argument)
    return argument


def _translated(kernel: str, call: Call, known: Mapping[str, Any]) -> Any:
    row, site = row_of(call.operation), Site(kernel, call)
    assert row is not None
    given = [_read(known, each) for each in call.args]
    keywords = {key: _read(known, each) for key, each in call.keywords.items()}
    try:
        inspect.signature(row).bind(site, *given, **keywords)
    except TypeError as error:  # an overload, or an option, that the row has not
        raise site.refusal(f"is called as is not supported: {error}") from None
    try:
        found = row(site, *given, **keywords)
    except Unsupported:
        raise
    except KernelError as error:
        raise site.refusal(f"cannot be had: {error}") from None
    if not isinstance(found, tuple):
        return _fitted(site, found, call.results[0])
    pairs = zip(found, call.results, strict=False)
    return tuple(_fitted(site, value, result) for value, result in pairs)


def _fitted(site: Site, value: Any, result: TensorType | None) -> Any:
    """Return a result in the dtype, and of the shape, that PyTorch says it has."""
    if result is None or not isinstance(value, Array):
        return value
    if value.shape != result.shape:
        raise CompilerBug(
            f"from_torch: {site.call.operation} gave {value.shape}, expected "
            f"{result.shape}"
        )
    return converted(value, dtypes.of(result.dtype))

"""`from_torch`: a model written for PyTorch becomes one kernel, called as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from steelyard_device import install
from steelyard_kernels.calling.bind import on_gpu
from steelyard_kernels.calling.cpu_bind import CpuKernel
from steelyard_kernels.errors import KernelError
from steelyard_kernels.from_torch.arguments import (
    Structure,
    Weights,
    given_back,
    read,
    taken,
)
from steelyard_kernels.from_torch.export import exported, graph_of, name_of, weights_of
from steelyard_kernels.from_torch.graph import Graph
from steelyard_kernels.from_torch.interpret import kernel_of, specs
from steelyard_kernels.imported import ImportedKernel, identifier
from steelyard_kernels.schedule.schedule import Schedule

if TYPE_CHECKING:
    from steelyard_kernels.calling.cuda_bind import CudaKernel, CudaSeries


class TorchKernel(ImportedKernel):
    """A model of PyTorch's as a kernel: call it, build it, bind it.

    `kernel` takes the inputs of `graph`, what PyTorch exported: tensors among the
    model's arguments and, behind them, `weights`, by their names in the model: another
    kernel, to which these are parameters, calls it. Arguments and results have the
    model's own structure.
    """

    def __init__(
        self, graph: Graph, weights: Mapping[str, Any], structure: Structure
    ) -> None:
        self.name, self.graph, self.weights = graph.name, graph, weights
        self.kernel = kernel_of(graph)
        self._structure = structure

    def __repr__(self) -> str:
        return f"<kernel {self.name} from PyTorch>"

    def __call__(self, *args: Any, out: Any = None, **keywords: Any) -> Any:
        """Run once; return what the model does.

        Results are NumPy's arrays where arguments are, else tensors. On a GPU it
        is submitted and not waited for. `out` are tensors or arrays that have room for
        the results, in a list where there are several.
        """
        result = self.kernel(*self.arrays(*args, **keywords), out=_room(out))
        results: list[Any] = list(result) if isinstance(result, tuple) else [result]
        if self._structure.has_tensors(args, keywords):
            results = [given_back(each) for each in results]
        return self._structure.result(results)

    def bind(
        self,
        *args: Any,
        out: Any = None,
        schedule: Schedule | None = None,
        stream: int | None = None,
        constant: bool | None = None,
        **keywords: Any,
    ) -> CpuKernel | CudaKernel | CudaSeries:
        """Check the arguments and pack them, for many launches; `out` as of a call.

        Where weights are `constant` they are read now, products' factors packed, and read
        again by `refresh` alone. None: on a CPU, unless a schedule is given, which is of
        the whole kernel, or extents are the call's, of which all have one build; a GPU
        reads factors as they lie, and their memory is not kept twice.
        """
        arrays = self.arrays(*args, **keywords)
        if constant is None:
            own = (
                schedule or self.graph.bounds or on_gpu(arrays[-1] if arrays else None)
            )
            constant = not own
        return self.kernel.bind(
            *arrays,
            out=_room(out),
            schedule=schedule,
            stream=stream,
            constant=self._constants(arrays) if constant else (),
        )

    def _constants(self, arrays: list[Any]) -> list[str]:
        """Put weights as they lie into arrays, so that writes to them can be read again."""
        names = []
        pairs = zip(self.graph.inputs, self.kernel.signature.arrays, strict=True)
        for place, (each, name) in enumerate(pairs):
            if each.weight:
                names.append(name)
                arrays[place] = taken(self.weights[each.weight], copies=False)
        return names

    def translation(self, *_: Any) -> TorchKernel:
        """Return the kernel itself: it is of the shapes that were exported."""
        return self

    def specs(self) -> list[Any]:
        """Return shape and dtype of everything that a launch takes."""
        return specs(self.graph)

    def arrays(self, *args: Any, **keywords: Any) -> list[Any]:
        """Return what a launch takes: the arguments' tensors and the weights.

        Raises KernelError for another structure, shape or dtype than was exported.
        """
        leaves, arrays = self._structure.leaves(args, keywords), []
        for each in self.graph.inputs:
            array = taken(
                self.weights[each.weight] if each.weight else leaves[each.name]
            )
            kind = tuple(array.shape), str(array.dtype).removeprefix("torch.")
            if kind[1] != each.type.dtype or not each.type.has(kind[0]):
                raise KernelError(
                    f"{self.name}: {each.weight or each.name} is of {kind[1]} {kind[0]}, "
                    f"expected {each.type.dtype} {each.type.shape} as it was exported; "
                    "call from_torch with such arguments."
                )
            arrays.append(array)
        return arrays


def _room(out: Any) -> Any:
    """Return outputs that the caller gave as a launch takes them: in their memory."""
    if isinstance(out, Sequence):
        return tuple(_room(each) for each in out)
    if out is not None and not getattr(out, "is_contiguous", lambda: True)():
        raise KernelError("out is not contiguous, expected results; allocate it so.")
    return out if out is None else taken(out)


def from_torch(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: Weights | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
) -> TorchKernel:
    """Make a kernel of a model of PyTorch's, by what `torch.export` says of it.

        model = BertModel(config).eval()
        fast = from_torch(model, (ids, mask))
        hidden = fast(ids, mask)

    `model` is a `torch.nn.Module`, exported with the example arguments, or what
    `torch.export.export` gave; the kernel is for arguments of their shapes and dtypes.
    `dynamic_shapes`, as that takes them, are axes as long as each call says, up to the
    `max` of their `torch.export.Dim`: all are one build (`extents.runtime`). `weights` replace the model's: a mapping by their names in
    the model, or a safetensors file. `name` is the kernel's, by default the class's.

    Raises:
        KernelError: operations of ATen's are not supported, each with its name and the
            lines of the model that ask for it; a weight is missing; an extent has no
            bound; or PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise KernelError(
            f"from_torch needs PyTorch, which is not installed: {install.command('torch')}."
        )
    program = exported(model, args, kwargs or {}, dynamic_shapes)
    name = name or identifier(name_of(model, program))
    graph = graph_of(program, name).live()
    given = None if weights is None else read(name, weights)
    return TorchKernel(
        graph, weights_of(program, graph, given), Structure(program, name)
    )

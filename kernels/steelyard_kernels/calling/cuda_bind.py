"""A built kernel bound to arrays of a GPU: checked, packed once, for many launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import asdict, replace

from steelyard_device import binary, cuda
from steelyard_device.cuda import tensors
from steelyard_device.timings import span
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.bind import BoundKernel, Outputs
from steelyard_kernels.calling.convention import Convention, Fresh
from steelyard_kernels.calling.cuda_arrays import Placed, placed
from steelyard_kernels.calling.cuda_strides import OnGpu
from steelyard_kernels.errors import CompilerBug, KernelError
from steelyard_kernels.ir.loops import Tensor
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.parameters import Slot
from steelyard_kernels.targets import parse

if TYPE_CHECKING:
    from steelyard_kernels.calling.cuda_stamped import Stamped

REMEMBERED: Final = 1024


def slots(
    convention: Convention,
    context: int,
    addresses: Sequence[int],
    scalars: Mapping[str, float],
) -> list[int | bytes]:
    """Return the words of a launch's slots, and the bytes of its tensors."""
    words: list[int | bytes] = [*binding.packed(convention, addresses, scalars)]
    for place, number, tensor in convention.tensors:
        at = convention.words[place]  # in the workspace
        words[place] = encoded(tensor, context, addresses[number] + at)
    return words


@functools.lru_cache(maxsize=REMEMBERED)
def encoded(tensor: Tensor, context: int, address: int) -> bytes:
    """Return the driver's CUtensorMap of a tensor in a context's array at an address.

    Raises:
        CUDAError: the driver refuses it.
    """
    return tensors.encoded(context, address, **described(tensor))


def described(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor but its array's name, as the device layer takes it."""
    return {name: value for name, value in asdict(tensor).items() if name != "name"}


class Packed(NamedTuple):
    """The arguments of one launch, checked; `others` are streams that use them too."""

    convention: Convention
    context: cuda.Context
    stream: int
    others: set[int]
    arrays: tuple[Placed, ...]
    addresses: list[int]
    scalars: Mapping[str, float]

    @property
    def given(self) -> list[Any]:
        """The arrays as they were given, or allocated."""
        return [each.given for each in self.arrays]

    def slots(self) -> list[int | bytes]:
        """Return what the launch's slots get."""
        handle = self.context.handle
        return slots(self.convention, handle, self.addresses, self.scalars)


def function_of(built: Artifact, context: cuda.Context) -> cuda.Function:
    """Load a build's code on a GPU, once a process, and return its entry there."""
    return cuda.load(context, built.code.image).function(built.code.entry)


def launch_of(
    built: Artifact, context: cuda.Context, stream: int, slots: Sequence[int | bytes]
) -> Any:
    """Return a launch of a build, or of all its parts, with what its slots get."""
    if built.parts:
        ends = [0, *accumulate(len(part.slots) for part in built.parts)]
        launches = [
            launch_of(part, context, stream, slots[end - len(part.slots) : end])
            for part, end in zip(built.parts, ends[1:], strict=True)
        ]
        return chain_of(built, launches, slots[ends[-1] :])
    return cuda.Launch(
        function_of(built, context),
        slots,
        grid=built.grid,
        block=built.threads,
        shared=built.shared,
        stream=stream,
    )


def workspace_of(convention: Convention, packed: Packed) -> Packed:
    """Return the arguments with memory between launches, for their stream alone."""
    found = [
        _new(convention.built.program.name, each, packed.context)
        for each in convention.hidden
    ]
    packed.context.wait()  # it was taken from the pool in another stream's order
    arrays = *packed.arrays, *[each._replace(stream=packed.stream) for each in found]
    addresses = [*packed.addresses, *[each.address for each in found]]
    return packed._replace(arrays=arrays, addresses=addresses)


def chain_of(
    built: Artifact,
    launches: Sequence[cuda.Launch],
    words: Sequence[Any],
    before: Sequence[cuda.Launch] = (),
    after: Sequence[cuda.Launch] = (),
) -> cuda.Chain | cuda.Series:
    """Return a build's launches as one, with others around them: a graph if none repeats.

    `words` are those of its order.
    """
    if not built.order:
        return cuda.Chain([*before, *launches, *after])
    return cuda.Series(launches, built.order, words, before=before, after=after)


class CudaSeries(BoundKernel):
    """Launches bound to arrays of a GPU: of several a graph; all work runs on `stream`.

    `copies` are of arrays of other strides, which are copied before the kernel and after it.
    """

    def __init__(
        self,
        packed: Packed,
        rebuild: Callable[[str], Artifact | Failure],
        copies: OnGpu | None = None,
    ) -> None:
        convention = packed.convention
        self.context, self.stream = packed.context, packed.stream
        self._slots, self._copies = packed.slots(), copies
        graph = launch_of(convention.built, self.context, self.stream, self._slots)
        if copies is not None:
            own = graph.launches if convention.built.parts else (graph,)
            given = packed.given
            before = copies.before(
                self.stream, given[: len(convention.built.program.inputs)]
            )
            after = copies.after(self.stream, [given[n] for n in convention.outputs])
            words = self._slots[sum(len(launch.slots) for launch in own) :]
            graph = chain_of(convention.built, own, words, before, after)
            packed = packed._replace(arrays=tuple(map(copies.owner, packed.arrays)))
        null = functools.partial(cuda.null, self.context, self.stream)
        super().__init__(convention, packed.given, graph, null, rebuild)


class CudaKernel(CudaSeries):
    """A kernel bound to arrays of a GPU, as one launch that another process can make."""

    def binary(self) -> bytes:
        """Return the cubin, its launch and its facts, for another process."""
        built = self.built
        head = {
            "entry": built.code.entry,
            "slots": [
                [slot.kind, slot.name, _said(slot, word)]
                for slot, word in zip(built.slots, self._slots, strict=True)
            ],
            "facts": self.facts(),
            "grid": built.blocks,
            "block": built.threads,
            "shared": built.shared,
        }
        return binary.pack(head, built.code.image)

    def facts(self) -> dict[str, object]:
        """Return what is known of the work without running it.

        Raises CompilerBug where the driver does not find what was read in the cubin.
        """
        function = function_of(self.built, self.context)
        return {**super().facts(), **facts_of_launch(self.built, function)}

    def stamped(self) -> Stamped:
        """Return the same launch of a build that writes down when its blocks ran."""
        from steelyard_kernels.calling.cuda_stamped import Stamped

        return Stamped(self.built, self.context, self.stream, self._slots)


def _said(slot: Slot, word: int | bytes) -> Any:
    """Return what another process has to know of a slot: see `binary`."""
    if slot.tensor is not None:
        return described(slot.tensor)
    return 0 if slot.kind in binary.ADDRESSED else word


def outputs_of(
    convention: Convention, out: Outputs, context: cuda.Context
) -> list[Placed]:
    """Return the arrays of the fresh outputs in order: given, or of our pool.

    What several launches need between them is not among these: see `workspace_of`.
    """
    kernel = convention.built.program.name
    own = () if convention.built.parts else convention.hidden
    hidden = [_new(kernel, each, context) for each in own]
    if out is None:
        return [*[_new(kernel, each, context) for each in convention.fresh], *hidden]
    found = []
    for each, array in zip(
        convention.fresh, binding.given_outputs(convention, out), strict=True
    ):
        name = each.output.name
        at = placed(kernel, name, array)
        if at.shape != each.shape or at.dtype != each.dtype:
            binding.check_fits(kernel, each.output, at.shape, at.dtype)
        binding.check_writeable(kernel, name, writeable=at.writeable)
        found.append(at)
    return [*found, *hidden]


def _new(kernel: str, fresh: Fresh, context: cuda.Context) -> Placed:
    """Return memory of our pool for an output."""
    buffer = cuda.Buffer(context, fresh.shape, fresh.dtype)
    return placed(kernel, fresh.output.name, buffer)


def check_one_gpu(kernel: str, names: Sequence[str], arrays: Sequence[Placed]) -> None:
    """Raise KernelError for arrays of two GPUs."""
    context = arrays[0].context
    for name, array in zip(names, arrays, strict=True):
        if array.context is context:
            continue
        seen, expected = array.context.device.index, context.device.index
        if seen != expected:
            raise KernelError(
                f"{kernel}: {name} lies on GPU {seen}, expected GPU {expected} as "
                f"{names[0]} does; copy it there."
            )


def loaded(built: Artifact | Failure, cache: str, packed: Packed) -> Artifact | Failure:
    """Load what was just built, as its first use does: the phase behind the compiler."""
    if isinstance(built, Failure) or built.parts or cache == "warm-memory":
        return built
    return with_load(built, packed.context)


def facts_of_launch(built: Artifact, function: cuda.Function) -> dict[str, object]:
    """Return how a launch is cut, and how many of its blocks a multiprocessor holds.

    Raises CompilerBug where the driver does not find what was read in the cubin.
    """
    resident = function.occupancy(built.threads, built.shared)
    check_agrees(built, function.attributes, resident)
    return {
        "grid": built.blocks,
        "block": built.threads,
        "blocks_per_multiprocessor": resident,
    }


def check_agrees(built: Artifact, said: cuda.Attributes, resident: int) -> None:
    """Raise CompilerBug where driver and cubin differ: facts would be another's."""
    read = built.code.resources
    assert read is not None  # of code for a GPU
    gpu = GPUS[parse(built.target).arch]
    shared = read.shared + built.shared
    expected = gpu.blocks_resident(built.threads, read.registers, shared)
    for what, seen, known in (
        ("registers", said.registers, read.registers),
        ("bytes of shared memory", said.shared, read.shared),
        ("blocks on a multiprocessor", resident, expected),
    ):
        if seen != known:
            raise CompilerBug(
                f"{built.program.name} on {built.target}: the driver says {seen} {what}, "
                f"expected {known} by its cubin; report it with its schedule "
                f"{built.schedule.label}."
            )


def with_load(built: Artifact, context: cuda.Context) -> Artifact:
    """Return a build with the time of loading it, which is done for that alone."""
    started = perf_counter_ns()
    with span("load"):
        unload = cuda.load_again(context, built.code.image, built.code.entry)
    taken = perf_counter_ns() - started
    unload()
    return replace(built, phases=(*built.phases, ("load", taken)))

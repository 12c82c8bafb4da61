"""Calls of a kernel on a GPU's arrays, one launch at a time, and what they remember.

What is called twice with arrays in the same places is checked and packed no more; where
the arrays are our own, which do not change, it is known by them as long as they live, and
costs a lookup more than the launch. Others are checked and packed each time, into one
launch for all calls of their build on a stream.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import or_
from typing import Any, Final, Protocol, TypeAlias

from steelyard_device import cuda
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling import strides, wholes
from steelyard_kernels.calling.bind import Outputs, Result
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.calling.cuda_arrays import DiscontiguousError, Placed, placed
from steelyard_kernels.calling.cuda_bind import (
    CudaKernel,
    CudaSeries,
    Packed,
    check_one_gpu,
    loaded,
    outputs_of,
    workspace_of,
)
from steelyard_kernels.calling.cuda_packing import Caller
from steelyard_kernels.calling.cuda_strides import OnGpu
from steelyard_kernels.schedule.gpu import VECTOR_BYTES
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CUDA
from steelyard_kernels.trace import Signature

REMEMBERED: Final = 1024
"""Calls whose packed launches are kept at most: half a megabyte of small objects."""


class Conventions(Protocol):
    """Gives a build's convention for arrays, from what is remembered or new."""

    def __call__(
        self,
        arrays: tuple[Any, ...],
        schedule: Schedule | None,
        target: str,
        *,
        aligned: bool,
    ) -> Convention:
        """Build if need be; raises what failed."""
        ...


class Calls:
    """The calls of one kernel on GPUs, and what is remembered of them.

    `conventions` and `rebuild` are the kernel's own ways to a build; `offer` is told of
    calls with other libraries' arrays, into outputs that were given.
    """

    def __init__(
        self,
        signature: Signature,
        conventions: Conventions,
        rebuild: Callable[..., Artifact | Failure],
        offer: Callable[[Packed, Caller], None],
    ) -> None:
        self._offer = offer
        self.known: dict[int, Remembered] = {}
        self._signature = signature
        self._conventions = conventions
        self._rebuild = rebuild
        self._defaults = binding.defaults_of(signature)
        self._callers: dict[tuple[int, int, int], Caller] = {}
        self._workspaces: dict[tuple[int, int, int], tuple[Placed, ...]] = {}
        self._once: set[Places] = set()
        self._often: dict[Places, Remembered | Allocating] = {}
        self._watched: dict[int, object] = {}

    def forget(self) -> None:
        """Forget what was packed: there is another build."""
        for each in (self.known, self._callers, self._once, self._often):
            each.clear()
        self._workspaces.clear()
        self._watched.clear()

    def call(
        self, arrays: tuple[Any, ...], out: Outputs, scalars: Mapping[str, float]
    ) -> Result:
        """Run once, in the order of the arrays' streams."""
        try:
            return self._call(arrays, out, scalars)
        except DiscontiguousError:  # nothing was launched yet
            pass
        copies = OnGpu(self._signature.name, now=True)

        def call(*arrays: Any, out: Outputs, **scalars: float) -> Result:
            return self._call(arrays, out, scalars)

        name = self._signature.name
        found = strides.called(name, call, arrays, out, scalars, copies=copies)
        copies.end()
        return found

    def _call(
        self, arrays: tuple[Any, ...], out: Outputs, scalars: Mapping[str, float]
    ) -> Result:
        """Run once on contiguous arrays; raises DiscontiguousError for others."""
        inputs = self._inputs(arrays)
        outputs = given_output(self._signature.name, out)
        places = tuple([each[2:] for each in (*inputs, *outputs)]), len(outputs)
        found = self._often.get(places) if out is None or outputs else None
        if found is None:
            return self._first(inputs, out, places, scalars)
        if isinstance(found, Allocating):
            return found.call(arrays, scalars)
        found.launch(scalars)
        every = arrays if out is None else (*arrays, out)
        if all(isinstance(each, cuda.View) for each in every):
            self._remember(key_of(arrays, out), every, found)
        result: Result = found.result(every)
        return result

    def _first(
        self,
        inputs: tuple[Placed, ...],
        out: Outputs,
        places: Places,
        scalars: Mapping[str, float],
    ) -> Result:
        """Check, pack and run; what comes to the same places again is kept."""
        packed = self._packed(inputs, out, None, None, scalars)
        given = len(packed.arrays)
        if packed.convention.built.parts:
            packed = self._with_workspace(packed)
        caller = self._caller(packed)
        if out is None and packed.convention.fresh:
            self._note(places, partial(Allocating, packed, caller, len(inputs)))
        if packed.others:
            with ordered(packed.context, packed.stream, packed.others):
                caller.launch(packed.addresses, packed.scalars)
        else:
            caller.launch(packed.addresses, packed.scalars)
            if len(places[0]) == given:
                defaults = wholes.fitting(packed.convention.computed, self._defaults)
                self._note(places, partial(Remembered, packed, caller, defaults))
            if not any(isinstance(each, cuda.View) for each in packed.given):
                self._offer(packed, caller)
        result: Result = packed.convention.result(packed.given)
        return result

    def _note(
        self, places: Places, make: Callable[[], Remembered | Allocating]
    ) -> None:
        """Keep what is made for these places, from the second time on."""
        for kept in (self._once, self._often):
            if len(kept) >= REMEMBERED:
                kept.clear()
        if places in self._once:
            self._often[places] = make()
        self._once.add(places)

    def bind(
        self,
        arrays: tuple[Any, ...],
        out: Outputs,
        schedule: Schedule | None,
        stream: int | None,
        scalars: Mapping[str, float],
    ) -> CudaKernel | CudaSeries:
        """Check the arguments and pack them for a stream, by default the arrays'."""
        copies: OnGpu | None = None
        try:
            packed = self._packed(self._inputs(arrays), out, schedule, stream, scalars)
        except DiscontiguousError:
            copies = OnGpu(self._signature.name, now=False)
            inputs = self._inputs(tuple(map(copies.made, arrays)))
            into = strides.mapped(out, copies.made)
            packed = self._packed(inputs, into, schedule, stream, scalars)
            written = [packed.arrays[number] for number in packed.convention.outputs]
            views = [copies.view(copies.owner(each).given) for each in written]
            strides.check_apart(self._signature.name, views)
        if packed.convention.built.parts:
            packed = workspace_of(packed.convention, packed)
        if packed.others and stream is None:
            with ordered(packed.context, packed.stream, packed.others):
                pass  # what was under way by now; from here on the caller orders
        specs = [(each.shape, each.dtype) for each in packed.arrays[: len(arrays)]]
        built = packed.convention.built
        again = functools.partial(
            self._rebuild,
            *specs,
            schedule=schedule,
            target=built.target,
            aligned=packed.convention.aligned,
        )

        def rebuild(cache: str) -> Artifact | Failure:
            return loaded(again(cache=cache), cache, packed)

        if built.parts or copies is not None:
            return CudaSeries(packed, rebuild, copies)
        return CudaKernel(packed, rebuild)

    def _inputs(self, arrays: tuple[Any, ...]) -> tuple[Placed, ...]:
        """Return where the arrays lie."""
        name, names = self._signature.name, self._signature.arrays
        if len(arrays) > len(names):  # they are counted where the function is traced
            names = (*names, *map("array {}".format, range(len(arrays))))
        return tuple([placed(name, n, a) for n, a in zip(names, arrays, strict=False)])

    def _packed(
        self,
        inputs: tuple[Placed, ...],
        out: Outputs,
        schedule: Schedule | None,
        stream: int | None,
        scalars: Mapping[str, float],
    ) -> Packed:
        """Check the arguments; raises KernelError with one sentence."""
        name = self._signature.name
        context = inputs[0].context
        target = f"{CUDA}:{context.device.arch}"
        convention = self._conventions(inputs, schedule, target, aligned=True)
        every = (*inputs, *outputs_of(convention, out, context))
        addresses = [each.address for each in every]
        if functools.reduce(or_, addresses) % VECTOR_BYTES:
            convention = self._conventions(inputs, schedule, target, aligned=False)
        for number in convention.updated:
            writeable = every[number].writeable
            binding.check_writeable(name, convention.names[number], writeable=writeable)
        check_one_gpu(name, convention.names[: len(every)], every)
        binding.check_overlap(convention, addresses)
        values = self._defaults
        if scalars or values is None:
            values = binding.scalar_values(self._signature, scalars)
        streams = {each.stream for each in every}
        if stream is None:
            stream = inputs[0].stream if len(streams) == 1 else context.stream
        streams.discard(stream)
        return Packed(convention, context, stream, streams, every, addresses, values)

    def _with_workspace(self, packed: Packed) -> Packed:
        """Return the arguments with memory that all calls on their stream share."""
        spare = packed.convention.spare  # one list for all extents of a build
        key = id(spare), packed.context.handle, packed.stream
        if key not in self._workspaces:
            made = workspace_of(packed.convention, packed)
            self._workspaces[key] = made.arrays[len(packed.arrays) :]
        found = self._workspaces[key]
        return packed._replace(
            arrays=(*packed.arrays, *found),
            addresses=[*packed.addresses, *[each.address for each in found]],
        )

    def _caller(self, packed: Packed) -> Caller:
        """Return what calls of one build on one stream share."""
        key = id(packed.convention), packed.context.handle, packed.stream
        caller = self._callers.get(key)
        if caller is None:
            values = functools.partial(binding.scalar_values, self._signature)
            caller = self._callers[key] = Caller(packed, values)
        return caller

    def _remember(self, key: int, arrays: tuple[Any, ...], found: Remembered) -> None:
        """Know a launch by these very arrays as long as all of them live."""
        known, watched = self.known, self._watched
        if len(known) >= REMEMBERED:
            known.clear()
            watched.clear()

        def forget(_: object) -> None:
            known.pop(key, None)
            watched.pop(key, None)

        known[key] = found
        watched[key] = [weakref.ref(array, forget) for array in arrays]


Places: TypeAlias = tuple[tuple[tuple[object, ...], ...], int]
"""Where the arrays of a call lie, and how many of them are outputs that were given."""


def given_output(kernel: str, out: Outputs) -> tuple[Placed, ...]:
    """Return where an output lies, if one array was given for it."""
    if out is None or isinstance(out, Sequence | Mapping):
        return ()
    return (placed(kernel, "out", out),) if binding.on_gpu(out) else ()


def key_of(arrays: tuple[Any, ...], out: Outputs) -> int:
    """Return what a call is remembered by: its arrays' identities, mixed to 64 bits.

    That takes a quarter of the time of a tuple of them. Of as many calls as are
    remembered two have the same in one process of 10**13.
    """
    return hash(arrays if out is None else (out, arrays))


class Remembered:
    """A packed launch of arrays in their places; it does not keep them.

    `submit` runs it with the scalars' defaults, as a launch's does, and `failure` makes
    an error of its code; `result` is the convention's.
    """

    __slots__ = ("_addresses", "_caller", "_kept", "failure", "result", "submit")

    def __init__(
        self, packed: Packed, caller: Caller, defaults: Mapping[str, float] | None
    ) -> None:
        self._caller, self._addresses = caller, packed.addresses
        self.result = packed.convention.result
        values = packed.scalars if defaults is None else defaults
        self.submit, self._kept = caller.submitting(packed._replace(scalars=values))
        self.failure = caller.failure
        if defaults is None:
            self.submit = self._lacks

    def _lacks(self, _count: int) -> int:
        """Raise the KernelError that names the scalar without a default that will do."""
        self._caller.launch(self._addresses, self._caller.values({}))
        return 0

    def launch(self, scalars: Mapping[str, float]) -> None:
        """Run once more, with scalars of this call."""
        if scalars:
            self._caller.launch(self._addresses, self._caller.values(scalars))
        elif code := self.submit(1):
            raise self.failure(code)


class Allocating:
    """A call of inputs in their places whose outputs are allocated each time."""

    __slots__ = ("_caller", "_inputs", "_packed")

    def __init__(self, packed: Packed, caller: Caller, inputs: int) -> None:
        self._packed, self._caller, self._inputs = packed, caller, inputs

    def call(self, arrays: tuple[Any, ...], scalars: Mapping[str, float]) -> Result:
        """Run once more, on arrays that lie where they did."""
        packed, caller = self._packed, self._caller
        convention, first = packed.convention, self._inputs
        new = outputs_of(convention, None, packed.context)
        addresses = list(packed.addresses)
        addresses[first : first + len(new)] = [each.address for each in new]
        values = caller.values(scalars)
        if packed.others:
            with ordered(packed.context, packed.stream, packed.others):
                caller.launch(addresses, values)
        else:
            caller.launch(addresses, values)
        result: Result = convention.result([*arrays, *[each.given for each in new]])
        return result


@contextmanager
def ordered(context: cuda.Context, stream: int, others: set[int]) -> Iterator[None]:
    """Have a stream wait for others, and then them for what is submitted meanwhile."""
    mark = cuda.Event(context)
    for other in others:
        mark.record(other)
        mark.hold(stream)
    yield
    mark.record(stream)
    for other in others:
        mark.hold(other)

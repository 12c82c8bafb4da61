"""Calls of a kernel on a GPU's arrays, one launch at a time, and what they remember.

A call of arrays that are our own and were seen together before costs a lookup more than
the launch: what was packed for them is remembered as long as they live. Others are
checked and packed again, into one launch for all calls of their build on a stream.
"""

from __future__ import annotations

import functools
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import or_
from typing import TYPE_CHECKING, Any, Final, Protocol

from steelyard_device import cuda
from steelyard_kernels import bind as binding
from steelyard_kernels.binary import Built, Failed
from steelyard_kernels.bind import Outputs, Result
from steelyard_kernels.convention import Convention
from steelyard_kernels.cuda_arrays import placed
from steelyard_kernels.cuda_bind import (
    CudaKernel,
    Packed,
    check_one_gpu,
    launch_of,
    loaded,
    outputs_of,
)
from steelyard_kernels.schedule.gpu import VECTOR_BYTES
from steelyard_kernels.targets import CUDA
from steelyard_kernels.trace import Signature

if TYPE_CHECKING:
    from steelyard_kernels.schedule.strategies import Schedule

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

    `conventions` and `rebuild` are the kernel's own ways to a build.
    """

    def __init__(
        self,
        signature: Signature,
        conventions: Conventions,
        rebuild: Callable[..., Built | Failed],
    ) -> None:
        self.known: dict[int, Remembered] = {}
        self._signature = signature
        self._conventions = conventions
        self._rebuild = rebuild
        self._defaults = binding.defaults_of(signature)
        self._callers: dict[tuple[int, int, int], Caller] = {}

    def forget(self) -> None:
        """Forget what was packed: there is another build."""
        self.known.clear()
        self._callers.clear()

    def call(
        self, arrays: tuple[Any, ...], out: Outputs, scalars: Mapping[str, float]
    ) -> Result:
        """Run once, in the order of the arrays' streams."""
        packed = self._packed(arrays, out, None, None, scalars)
        caller = self._caller(packed)
        if packed.others:
            with ordered(packed.context, packed.stream, packed.others):
                caller.launch(packed.addresses, packed.scalars)
        else:
            caller.launch(packed.addresses, packed.scalars)
            if is_ours(arrays, out, packed.convention):
                self._remember(arrays, out, packed, caller)
        result: Result = packed.convention.result(packed.given)
        return result

    def bind(
        self,
        arrays: tuple[Any, ...],
        out: Outputs,
        schedule: Schedule | None,
        stream: int | None,
        scalars: Mapping[str, float],
    ) -> CudaKernel:
        """Check the arguments and pack them for a stream, by default the arrays'."""
        packed = self._packed(arrays, out, schedule, stream, scalars)
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
        return CudaKernel(
            packed, lambda cache: loaded(again(cache=cache), cache, packed)
        )

    def _packed(
        self,
        arrays: tuple[Any, ...],
        out: Outputs,
        schedule: Schedule | None,
        stream: int | None,
        scalars: Mapping[str, float],
    ) -> Packed:
        """Check the arguments; raises KernelError with one sentence."""
        name = self._signature.name
        # More arrays than parameters are counted where the function is traced.
        names = (*self._signature.arrays, *map("array {}".format, range(len(arrays))))
        inputs = tuple(
            [placed(name, n, a) for n, a in zip(names, arrays, strict=False)]
        )
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
        check_one_gpu(name, convention.names, every)
        binding.check_overlap(convention, addresses)
        values = self._defaults
        if scalars or values is None:
            values = binding.scalar_values(self._signature, scalars)
        streams = {each.stream for each in every}
        if stream is None:
            stream = inputs[0].stream if len(streams) == 1 else context.stream
        streams.discard(stream)
        return Packed(convention, context, stream, streams, every, addresses, values)

    def _caller(self, packed: Packed) -> Caller:
        """Return what calls of one build on one stream share."""
        key = id(packed.convention), packed.context.handle, packed.stream
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = Caller(packed)
        return caller

    def _remember(
        self, arrays: tuple[Any, ...], out: Outputs, packed: Packed, caller: Caller
    ) -> None:
        """Keep a launch of these very arrays as long as all of them live."""
        known = self.known
        if len(known) >= REMEMBERED:
            known.clear()
        key = key_of(arrays, out)

        def forget(_: object) -> None:
            known.pop(key, None)

        watched = [weakref.ref(each.given, forget) for each in packed.arrays]
        known[key] = Remembered(
            packed, caller, self._signature, self._defaults, watched
        )


def key_of(arrays: tuple[Any, ...], out: Outputs) -> int:
    """Return what a call is remembered by: its arrays' identities, mixed to 64 bits.

    That takes a quarter of the time of a tuple of them. Of as many calls as are
    remembered two have the same in one process of 10**13.
    """
    return hash(arrays if out is None else (out, arrays))


def is_ours(arrays: tuple[Any, ...], out: Outputs, convention: Convention) -> bool:
    """Say whether a call's arrays are all there and all ours: those never change."""
    if out is None:
        given, lacking = arrays, len(convention.fresh)
    else:
        given, lacking = (*arrays, out), len(convention.fresh) - 1
    return not lacking and all(isinstance(each, cuda.View) for each in given)


class Remembered:
    """A packed launch of arrays that are still alive, known by their identities.

    The arrays are not kept: with the first of them that is dropped this is forgotten.
    `submit` runs it with the scalars' defaults, as a launch's does, and `failure` makes
    an error of its code; `result` is the convention's.
    """

    __slots__ = (
        "_addresses",
        "_caller",
        "_kept",
        "_signature",
        "failure",
        "result",
        "submit",
    )

    def __init__(
        self,
        packed: Packed,
        caller: Caller,
        signature: Signature,
        defaults: Mapping[str, float] | None,
        watched: object,
    ) -> None:
        self._caller, self._signature = caller, signature
        self._addresses = packed.addresses
        self.result = packed.convention.result
        values = packed.scalars if defaults is None else defaults
        slots = binding.packed(packed.convention, packed.addresses, values)
        where = packed.convention.built, packed.context, packed.stream
        launch = launch_of(*where, slots)
        self.submit, self.failure = launch.submit, launch.failure
        self._kept = watched, launch
        if defaults is None:
            self.submit = self._lacks

    def _lacks(self, _count: int) -> int:
        """Raise the KernelError that names the scalar without a default."""
        binding.scalar_values(self._signature, {})
        return 0

    def launch_with(self, scalars: Mapping[str, float]) -> None:
        """Run once more, with scalars of this call."""
        values = binding.scalar_values(self._signature, scalars)
        self._caller.launch(self._addresses, values)


class Caller:
    """One build on one GPU and stream: a launch that every call packs anew."""

    __slots__ = ("_convention", "_launch", "_layout", "_lock")

    def __init__(self, packed: Packed) -> None:
        convention = self._convention = packed.convention
        binary = convention.built.binary
        self._launch = launch_of(
            convention.built, packed.context, packed.stream, packed.slots()
        )
        self._layout = struct.Struct("<" + "".join(_LAID[s.code] for s in binary.slots))
        self._lock = threading.Lock()

    def launch(self, addresses: Sequence[int], scalars: Mapping[str, float]) -> None:
        """Run once with these arguments."""
        convention = self._convention
        words: list[float] = list(convention.words)
        for place, number in convention.addressed:
            words[place] = addresses[number]
        for place, name, _ in convention.scalars:
            words[place] = scalars[name]
        with self._lock:  # nobody else packs before the driver has copied them
            try:
                self._layout.pack_into(self._launch.words, 0, *words)
            except (struct.error, OverflowError):
                binding.packed(convention, addresses, scalars)  # says what does not fit
                raise
            self._launch.launch()


_LAID: Final = {"q": "q", "d": "d", "i": "i4x", "?": "?7x"}
"""How a slot lies in a launch's words, by its code; an address is a "q" too."""


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

"""Which calls of a kernel native code recognises: what a build's convention says of them.

A call is remembered when it comes a second time. What is not recognised goes the way of
every first call, through `bind` or `cuda_calls`, which check and say what is wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steelyard_device import cpu, series
from steelyard_device.dispatch import Array, Dispatch, Exchange, Record, Scalar
from steelyard_kernels import cost
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling import wholes
from steelyard_kernels.calling.convention import Convention
from steelyard_kernels.calling.cpu_bind import step_of, threads_of
from steelyard_kernels.expression.expr import loops

if TYPE_CHECKING:
    from steelyard_kernels.calling.cuda_bind import Packed

LINE: Final = 64
"""Bytes; outputs that start on a multiple may be streamed to."""

QUICK: Final = 8192
"""Bytes and operations up to which a launch keeps the interpreter's lock: some hundred
nanoseconds, less than what another thread that took the lock would cost the caller."""


class Recent:
    """The calls of one kernel that are recognised; ``call`` is what its users call.

    Other calls go to ``function``. ``defaults`` are the scalars', None if one has none.
    """

    def __init__(
        self, function: Callable[..., Any], defaults: Mapping[str, float] | None
    ) -> None:
        self._dispatch: Dispatch | None = None
        self._function, self._defaults = function, defaults
        self._seen: dict[tuple[int, ...], list[object]] = {}

    def again(self, convention: Convention, *key: int) -> bool:
        """Say whether a call of a convention came for the second time."""
        seen = self._seen.setdefault((id(convention), *key), [convention])
        if len(seen) > 2:
            return False
        seen.append(None)
        return len(seen) > 2

    def forget(self) -> None:
        """Recognise nothing: there is another build."""
        self._seen.clear()
        if self._dispatch is not None:
            self._dispatch.forget()

    def remember(self, record: Record) -> Callable[..., Any]:
        """Recognise such calls, and return what recognises them."""
        if self._dispatch is None:
            self._dispatch = Dispatch(self._function)
        self._dispatch.remember(record)
        return self._dispatch.call

    def on_host(
        self, convention: Convention, arrays: Sequence[Any], *, given: bool
    ) -> Record | None:
        """Return the record of a call with NumPy's arrays, None of one that is rare."""
        built, threads = convention.built, threads_of(convention.built)
        hidden = [] if built.parts else convention.hidden
        if hidden or (convention.streams and not given and convention.fresh):
            return None
        every = [*arrays, *convention.fresh]
        code = series.function() if built.parts else built.code.function
        assert code is not None
        streams = convention.streams or not convention.aligned
        program = built.program
        head, memory = [], None
        if built.parts:
            head = series.table([step_of(each) for each in built.parts], built.order)
            memory = [binding.allocated(e, convention) for e in convention.hidden]
        return self._record(
            convention,
            tuple(
                Array(
                    np.ndarray,
                    array.shape,
                    # The object that arrays of it have: ml_dtypes' has no letter.
                    of if (of := array.dtype).isbuiltin == 2 else np.dtype(of.char),
                    written=number in convention.outputs,
                    counts=number in convention.outputs,
                )
                for number, array in enumerate(every)
            ),
            given=given,
            alignment=(LINE - 1 if streams else 0, not convention.aligned),
            head=head,
            memory=memory or None,
            function=code.address,
            pool=cpu.pool().address if threads > 1 and not built.parts else 0,
            quick=threads == 1
            and not built.parts
            and not any(True for _ in loops(program.nodes))
            and max(cost.bytes_moved(program), cost.operations(program)) <= QUICK,
        )

    def on_gpu(
        self, packed: Packed, batch: bytes, kernel: bytes, function: int, mask: int
    ) -> Record | None:
        """Return the record of a call with tensors of one library and stream.

        None where the library has no DLPack exchange functions, or where one of the
        arrays was allocated, or where bulk copies read one.
        """
        convention = packed.convention
        tensors = packed.given
        functions = exchange_of(type(tensors[0])) if tensors else None
        if (
            functions is None
            or convention.hidden
            or convention.tensors
            or packed.others
        ):
            return None
        if any(exchange_of(type(tensor)) != functions for tensor in tensors):
            return None
        try:
            described = [describe(functions[0], tensor) for tensor in tensors]
        except Exception:  # noqa: BLE001 # the library's own, for what is no plain memory
            return None
        devices = {device for device, _ in described}
        if len(devices) != 1:
            return None
        return self._record(
            convention,
            tuple(
                Array(type(each.given), tuple(each.shape), dtype, False, True)
                for each, (_, dtype) in zip(packed.arrays, described, strict=True)
            ),
            given=bool(convention.fresh),
            alignment=(mask, not convention.aligned),
            function=function,
            exchange=Exchange(*functions, packed.stream, devices.pop()),
            batch=batch,
            kernel=kernel,
        )

    def _record(
        self,
        convention: Convention,
        arrays: tuple[Array, ...],
        *,
        head: Sequence[int] = (),
        memory: Sequence[Any] | None = None,
        **rest: Any,
    ) -> Record:
        """Return a record: `head` is before a launch's words, `memory` its workspace."""
        words, first = [*head, *convention.words], len(head)
        places = []
        defaults = wholes.fitting(convention.computed, self._defaults)
        for place, number in convention.addressed:
            if memory and number == len(convention.names) - 1:
                words[first + place] += binding.address(memory[0])
            else:
                places.append((first + place, number))
        for place, name, code in convention.scalars:
            if defaults is not None:
                words[first + place] = cpu.slot(defaults[name], code)
        kind, numbers, keys = _handed(convention)
        computed = {name for each in convention.computed for name in each.names}
        return Record(
            arrays=arrays,
            outputs=len(convention.fresh),
            pairs=convention.pairs,
            words=words,
            places=places,
            memory=memory,
            scalars=tuple(
                Scalar(name, first + place, code)
                for place, name, code in convention.scalars
                if code in {"d", "q"} and name not in computed
            ),
            needed=len({name for _, name, _ in convention.scalars})
            if defaults is None
            else 0,
            result=kind,
            results=numbers,
            keys=keys,
            **rest,
        )


def _handed(convention: Convention) -> tuple[str, list[int], list[str]]:
    """Return how results are handed over, which arrays they are, and a dict's keys."""
    handed: Any = convention.result(range(len(convention.names)))
    if isinstance(handed, int):
        return "array", [handed], []
    if isinstance(handed, tuple):
        return "tuple", list(handed), []
    if isinstance(handed, dict):
        return "dict", list(handed.values()), list(handed)
    return "none", [], []


_EXCHANGE: Final = "__dlpack_c_exchange_api__"
_MAJOR: Final = 1
_OVERRIDES: Final = ("__torch_dispatch__", "data_ptr")
"""Of a subclass that is not what its memory says."""


def exchange_of(kind: type) -> tuple[int, int] | None:
    """Return DLPack's functions of a type that fill in a tensor and say its stream.

    None for a type without, and for a subclass whose operations may be anything. The
    struct is `DLPackExchangeAPI` of dlpack.h 1.2.
    """
    owner = next((each for each in kind.__mro__ if _EXCHANGE in vars(each)), None)
    if owner is None or any(
        getattr(kind, name, None) != getattr(owner, name, None) for name in _OVERRIDES
    ):
        return None
    capsule = vars(owner)[_EXCHANGE]
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    word = (ctypes.c_size_t * 7).from_address(pointer(capsule, b"dlpack_exchange_api"))
    if word[0] & 0xFFFFFFFF != _MAJOR or not word[5] or not word[6]:
        return None
    return word[5], word[6]


def describe(function: int, tensor: Any) -> tuple[int, int]:
    """Return a tensor's device and dtype, as they lie in DLPack's struct."""
    seen = (ctypes.c_uint64 * 6)()
    fill = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(function)
    if fill(tensor, ctypes.addressof(seen)):
        raise BufferError  # the library has set its own
    return seen[1], seen[2] >> 32

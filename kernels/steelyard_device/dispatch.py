"""Calls from Python that native code recognises: compared, packed and launched there.

A remembered call is a `Record` of plain words. The builtin that `Dispatch` makes goes
through the records and calls a Python function where none is of this call, which says
what is wrong with it, or does what is rare. `dispatch_native` has the native half.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct

from steelyard_device import dispatch_native, native_call
from steelyard_device.native_language import own
from steelyard_device.threads import Once

MOST: Final = 16
"""Calls that one function remembers; others go to the Python function."""

RESULTS: Final = ("array", "tuple", "dict", "none")
"""How results are handed over, in the order of their numbers."""

_FAST: Final = 0x80 | 0x2
"""METH_FASTCALL | METH_KEYWORDS: arguments in an array, and the names of the last."""

_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400


class Array(Struct, frozen=True):
    """What an array must be to be a remembered call's."""

    type: type
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | int
    """Of a tensor DLPack's: code, bits and lanes as they lie in memory."""
    written: bool
    counts: bool
    """Whether its address must suit the alignment."""


class Scalar(Struct, frozen=True):
    """A number that is passed by name: its place among the words, and its format."""

    name: str
    place: int
    code: str


class Exchange(Struct, frozen=True):
    """DLPack's exchange functions of a tensor library, and where the tensors lie."""

    tensor: int
    stream_of: int
    stream: int
    device: int
    """DLPack's kind and, in the upper half, the device's number."""


class Record(Struct, frozen=True):
    """One call, ready to be recognised and launched.

    ``arrays`` are the parameters, then ``outputs`` fresh ones: given as ``out``, or
    allocated. ``alignment`` is (mask, whether some address is off it). ``pairs`` are
    (one, other, bytes, bytes) that must not overlap; ``places`` are (word, array), whose
    address is added to the word;
    ``needed`` scalars have to be given. ``function`` is launched on ``pool`` (0: by the
    caller alone, with the interpreter's lock if it is ``quick``), or takes a copy of
    ``batch`` with one kernel. ``keys`` are the names of a dict's results. ``memory`` is
    what words have addresses of: one call at a time works there, others go to Python.
    """

    arrays: tuple[Array, ...]
    outputs: int
    given: bool
    alignment: tuple[int, bool]
    pairs: Sequence[tuple[int, int, int, int]]
    words: Sequence[int]
    places: Sequence[tuple[int, int]]
    scalars: tuple[Scalar, ...]
    needed: int
    function: int
    result: str
    results: Sequence[int]
    keys: Sequence[str] = ()
    pool: int = 0
    quick: bool = False
    exchange: Exchange | None = None
    batch: bytes = b""
    kernel: bytes = b""
    memory: object = None


class Dispatch:
    """The calls that one function remembers.

    ``call`` is what Python calls: a builtin where NumPy's arrays are as expected, else
    ``function`` itself. What was remembered is kept as long as this is, because a call
    may be under way in another thread.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._table = (ctypes.c_int64 * (1 + MOST))()
        self._alive: list[object] = []
        self.call = function
        if (method := _method()) is not None:
            host = _host()
            words = ctypes.addressof(self._table), ctypes.addressof(host)
            itself = (struct.pack("<QQ", *words), function, self._table, self._alive)
            self.call = native_call.builtin(method, itself)

    @property
    def native(self) -> bool:
        """Whether calls are recognised at all on this machine."""
        return _method() is not None

    def remember(self, record: Record) -> None:
        """Recognise such calls from now on, if there is room."""
        count = self._table[0]
        if count == MOST:
            return
        packed = _Packed(record)
        self._alive.append(packed)
        self._table[1 + count] = packed.address
        self._table[0] = count + 1

    def forget(self) -> None:
        """Recognise nothing that was remembered so far."""
        self._table[0] = 0


class _Packed:
    """A record's words, with all that they point to."""

    def __init__(self, record: Record) -> None:
        self._alive: list[object] = [record]
        arrays = [word for array in record.arrays for word in self._array(array)]
        scalars = [
            word
            for scalar in record.scalars
            for word in (self._name(scalar.name), scalar.place, "dq".index(scalar.code))
        ]
        exchange = record.exchange or Exchange(0, 0, 0, 0)
        mask, off = record.alignment
        self.address = self._words(
            [
                record.exchange is not None,
                len(record.arrays) - record.outputs,
                record.outputs,
                record.given,
                self._words(arrays),
                mask,
                off,
                self._words([word for pair in record.pairs for word in pair]),
                len(record.pairs),
                self._words(record.words),
                len(record.words),
                self._words([word for place in record.places for word in place]),
                len(record.places),
                self._words(scalars),
                len(record.scalars),
                record.needed,
                record.function,
                record.pool,
                record.quick,
                RESULTS.index(record.result),
                self._words(record.results),
                len(record.results),
                self._words([self._name(key) for key in record.keys]),
                self._name("out"),
                exchange.tensor,
                exchange.stream_of,
                exchange.stream,
                exchange.device,
                self._bytes(record.batch),
                self._bytes(record.kernel),
                record.memory is not None,
            ]
        )

    def _array(self, array: Array) -> list[int]:
        dtype, strides, size = array.dtype, [], 0
        if isinstance(dtype, np.dtype):
            size = prod(array.shape) * dtype.itemsize
        else:
            strides = [
                prod(array.shape[axis + 1 :]) for axis in range(len(array.shape))
            ]
        return [
            id(array.type),
            id(dtype) if isinstance(dtype, np.dtype) else dtype,
            len(array.shape),
            _C_CONTIGUOUS | (_ALIGNED | _WRITEABLE if array.written else 0),
            self._words(array.shape),
            self._words(strides),
            size,
            array.counts,
        ]

    def _words(self, values: Sequence[int]) -> int:
        words = (ctypes.c_uint64 * max(len(values), 1))(*values)
        self._alive.append(words)
        return ctypes.addressof(words)

    def _bytes(self, data: bytes) -> int:
        room = ctypes.create_string_buffer(data, max(len(data), 1))
        self._alive.append(room)
        return ctypes.addressof(room)

    def _name(self, name: str) -> int:
        kept = sys.intern(name)
        self._alive.append(kept)
        return id(kept)


@Once
def _method() -> native_call.Method | None:
    """Return the builtin's description; None where an array is not laid out as expected."""
    if not _laid_out():
        return None
    at = own(dispatch_native.SOURCE, ["dispatch"], dispatch_native.GIVEN)["dispatch"]
    return native_call.Method(b"kernel", at, _FAST, None)


@Once
def _host() -> ctypes.Array[ctypes.c_uint64]:
    """Return what each process has at other places, as `dispatch_native` has it."""
    from steelyard_device import cpu

    api = _numpy_api()
    kinds = [id(each) for each in (int, float, tuple, None, _UINT8)]
    # PyArray_NewFromDescr and PyArray_SetBaseObject.
    return (ctypes.c_uint64 * 8)(*kinds, api[94], api[282], cpu.fork_join())


_UINT8: Final = np.dtype(np.uint8)


def _numpy_api() -> ctypes.Array[ctypes.c_size_t]:
    """Return NumPy's table of C functions, whose numbers are a part of its ABI."""
    core: Any = getattr(np, "_core", None) or np.core
    capsule = core._multiarray_umath._ARRAY_API  # noqa: SLF001 # where C finds it too
    pointer = native_call.python(
        "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
    )
    return (ctypes.c_size_t * 300).from_address(pointer(capsule, None))


def _laid_out() -> bool:
    """Say whether this is a CPython with a lock whose arrays lie in memory as expected."""
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or hasattr(sys, "getobjects")  # every object begins with two more words
        or ctypes.sizeof(ctypes.c_void_p) != 8
        or sys.byteorder != "little"
    ):
        return False
    api = _numpy_api()
    for array in (np.zeros((3, 5), np.float32), np.zeros(7, np.int64)[2:]):
        word = (ctypes.c_uint64 * 9).from_address(id(array))
        shape = (ctypes.c_int64 * array.ndim).from_address(word[4])
        expected = (
            word[1] == id(np.ndarray) == api[2]
            and word[2] == array.ctypes.data
            and word[3] & 0xFFFFFFFF == array.ndim
            and tuple(shape) == array.shape
            and word[7] == id(array.dtype)
            and word[8] & (_C_CONTIGUOUS | _ALIGNED | _WRITEABLE) == 0x501
        )
        if not expected:
            return False
    array.flags.writeable = False
    return not word[8] & _WRITEABLE

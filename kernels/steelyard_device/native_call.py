"""Native functions as Python builtins: a call costs a tenth of what ctypes takes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from steelyard_device.native_language import own
from steelyard_device.threads import Once

_TAKES_ONE = 0x8
"""METH_O: a function of itself and one argument."""


def bound(function: int, argument: int) -> Callable[[int], int]:
    """Return a builtin that calls ``i32 function(ptr argument, i64 number)``.

    It takes the number and returns what the function does, without the interpreter's
    lock meanwhile. Both addresses must stay good as long as it is used.
    """
    pair = struct.pack("<QQ", function, argument)
    return builtin(_method(), pair)


def builtin(method: Method, itself: object) -> Callable[..., Any]:
    """Return a builtin with its self; ``method`` must live as long as the process."""
    made: Callable[..., Any] = _new()(ctypes.addressof(method), itself, None)
    return made


def python(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's own; ctypes shares its attributes with others."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


@Once
def _new() -> Any:
    return python(
        "PyCFunction_NewEx",
        ctypes.py_object,
        ctypes.c_void_p,
        ctypes.py_object,
        ctypes.c_void_p,
    )


class Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@Once
def _method() -> Method:
    """Describe the builtin to Python, which keeps the address: one for the process."""
    at = own(_SOURCE, ["native_call"])["native_call"]
    return Method(b"native_call", at, _TAKES_ONE, None)


# What Python calls the builtin's self is a bytes object: both addresses.
_SOURCE = """
def PyBytes_AsString(held: ptr) -> ptr: ...
def PyLong_AsLongLong(number: ptr) -> i64: ...
def PyLong_FromLong(number: i64) -> ptr: ...
def PyErr_Occurred() -> ptr: ...
def PyEval_SaveThread() -> ptr: ...
def PyEval_RestoreThread(thread: ptr): ...

def native_call(itself: ptr, given: ptr) -> ptr:
    number = PyLong_AsLongLong(given)
    if number == -1 and PyErr_Occurred() != null:
        return null
    pair = ptr[ptr](PyBytes_AsString(itself))
    thread = PyEval_SaveThread()
    status = fn[i32](pair[0])(pair[1], number)
    PyEval_RestoreThread(thread)
    return PyLong_FromLong(llvm(i64, "sext i32 {} to i64", status))
"""

"""Native functions as Python builtins: a call costs a tenth of what ctypes takes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

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
    from steelyard_device import llvm  # llvmlite takes long to import

    at = llvm.own(_TEXT, ["native_call"])["native_call"]
    return Method(b"native_call", at, _TAKES_ONE, None)


# What Python calls the builtin's self is a bytes object: both addresses.
_TEXT = r"""
declare ptr @PyBytes_AsString(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyErr_Occurred()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define ptr @native_call(ptr %self, ptr %given) {
entry:
  %number = call i64 @PyLong_AsLongLong(ptr %given)
  %suspect = icmp eq i64 %number, -1
  br i1 %suspect, label %check, label %go
check:
  %error = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %error, null
  br i1 %raised, label %refused, label %go
refused:
  ret ptr null
go:
  %pair = call ptr @PyBytes_AsString(ptr %self)
  %function = load ptr, ptr %pair
  %argument = load ptr at ptr, ptr %pair, i64 1
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %function(ptr %argument, i64 %number)
  call void @PyEval_RestoreThread(ptr %thread)
  %wide = sext i32 %status to i64
  %result = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %result
}
"""

"""A call as the rows that translate it see it, and the dtypes that PyTorch computes in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from typing import Any, Final, TypeAlias

from msgspec import Struct

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.array import Array
from steelyard_kernels.dtypes import DType
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.from_torch.graph import Call, TensorType, at

_KINDS: Final = ("bool", "int", "float")
_NUMBERS: Final = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float32}
"""PyTorch's default dtypes of Python's numbers."""


class Site(Struct, frozen=True):
    """Where a row of the table is used: the call, and the kernel that it is for."""

    kernel: str
    call: Call

    @property
    def type(self) -> TensorType:
        """Shape and dtype of the result, or of the first one."""
        found = self.call.results[0]
        assert found is not None
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The result's dtype."""
        return dtypes.of(self.type.dtype)

    @property
    def wide(self) -> DType:
        """The dtype that the result is computed in: halves in float32."""
        return wide(self.dtype)

    @property
    def rank(self) -> int:
        """How many spatial axes the operation has, as its name says: `max_pool2d`."""
        (found,) = re.findall(r"(\d)d", self.call.operation)
        return int(found)

    def refusal(self, why: str) -> Unsupported:
        """Return the error that says what this call does and no kernel can."""
        what = f"{self.call.operation}{at(self.call.where)}"
        why = why.removeprefix(f"{self.kernel}: ").rstrip(".")
        return Unsupported(f"{self.kernel}: PyTorch's {what} {why}.")


Row: TypeAlias = Callable[..., Any]
"""(site, *arguments of the operation, **keywords) -> its result, or a tuple of them.

They are rounded to the dtypes that PyTorch says they have.
"""


def of_lines(row: Row) -> Row:
    """Return a row to which tensors without axes are lines of one element, as to PyTorch."""

    @wraps(row)
    def taken(site: Site, *given: Any, **named: Any) -> Any:
        points = [isinstance(x, Array) and not x.ndim for x in given]
        if not any(points):
            return row(site, *given, **named)
        pairs = zip(given, points, strict=True)
        found = row(site, *(xp.reshape(x, (1,)) if p else x for x, p in pairs), **named)
        if not isinstance(found, tuple):
            return xp.reshape(found, site.shape)
        both = zip(found, site.call.results, strict=False)
        return tuple(xp.reshape(x, r.shape) if r else x for x, r in both)

    return taken


def wide(dtype: DType) -> DType:
    """Return the dtype that PyTorch computes many steps of a value in."""
    return dtypes.float32 if dtype in dtypes.HALVES else dtype


def converted(x: Any, dtype: DType) -> Array:
    """Return a value, or a Python number, in a dtype as PyTorch converts it."""
    if not isinstance(x, Array):
        number = {"bool": bool, "int": int, "float": float}[dtype.kind](x)
        return xp.full((), number, dtype)
    return xp.astype(x, dtype)


def common(operands: Sequence[Any]) -> DType:
    """Return the dtype that operands are compared in: `torch.result_type`.

    A tensor without axes, or a number, counts where it is of a later kind than tensors
    that have some.
    """
    arrays = [x for x in operands if isinstance(x, Array)]
    groups = [
        [x.dtype for x in arrays if x.ndim],
        [x.dtype for x in arrays if not x.ndim],
        [_NUMBERS[type(x)] for x in operands if not isinstance(x, Array)],
    ]
    found: DType | None = None
    for group in groups:
        if not group:
            continue
        kind = max(_KINDS.index(dtype.kind) for dtype in group)
        if found is None or kind > _KINDS.index(found.kind):
            same = [dtype for dtype in group if dtype.kind == _KINDS[kind]]
            found = reduce(dtypes.promote, same)
    assert found is not None
    return found

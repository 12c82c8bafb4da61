"""Functions of whole lines along one axis: one table, as that of reductions.

Adding a running total is adding its row: halves are taken in as float32 and rounded where
they are stored, integers as their reduction takes them.
"""

# ruff: noqa: ARG005 - all gradients, and all oracles, take the same

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """How a line becomes another of as many elements.

    name, doc: the function of `steelyard_kernels.array`.
    oracle: NumPy's function of values and `axis`.
    total: the reduction whose running total it is; "": none's.
    gradient: (xp, run, g, y, x) -> the cotangent of x; run(name, value) is a row of this
        table in the other direction, run(name, value, again=True) in the node's own.
    """

    name: str
    doc: str
    oracle: Callable[..., Any]
    total: str = ""
    gradient: Callable[..., Any] | None = None


def _of_product(xp: Any, run: Any, g: Any, y: Any, x: Any) -> Any:
    """Return g times the products of the others, where there are zeros too.

    Behind the first zero all that follows is 0; at it the others' product counts, as if it
    were 1.
    """
    one, zero = (xp.full((), value, dtype=g.dtype) for value in (1.0, 0.0))
    zeros = run("cumulative_sum", xp.where(x == 0, one, zero), again=True)
    first = xp.where(x == 0, zeros, zero) == 1.0
    others = run("cumulative_prod", xp.where(first, one, x), again=True)
    before = run("cumulative_sum", g * y) / xp.where(x == 0, one, x)
    at = run("cumulative_sum", g * others)
    return xp.where(zeros == 0.0, before, xp.where(first, at, zero))


def segments(x: Any, starts: Any, axis: int) -> Any:
    """Return the sums along an axis from each of the starts to the next one, in NumPy.

    The axes before are those of the starts too; NumPy's rules broadcast them.
    """
    lead = np.broadcast_shapes(x.shape[:axis], starts.shape[:-1])
    x = np.broadcast_to(x, (*lead, *x.shape[axis:]))
    starts = np.broadcast_to(starts, (*lead, starts.shape[-1]))
    found = np.zeros((*lead, starts.shape[-1] - 1, *x.shape[axis + 1 :]), x.dtype)
    for at in np.ndindex(lead):
        for place, ends in enumerate(pairwise(starts[at].tolist())):
            found[(*at, place)] = np.sum(x[at][slice(*ends)], axis=0)
    return found


ALONG: Final[dict[str, Line]] = {
    row.name: row
    for row in (
        Line(
            "cumulative_sum",
            "Return the sum of each element and all before it.",
            np.cumsum,
            "sum",
            lambda xp, run, g, y, x: run("cumulative_sum", g),
        ),
        Line(
            "cumulative_prod",
            "Return the product of each element and all before it.",
            np.cumprod,
            "prod",
            _of_product,
        ),
        Line(
            "order",
            "Return where the least key is, the next one, and so on; of equal ones the first.",
            lambda x, axis: np.argsort(x, axis=axis, kind="stable").astype(np.int32),
        ),
        Line(
            "copy",
            "Return the values themselves, where elements are taken at computed places.",
            lambda x, axis: x,
            gradient=lambda xp, run, g, y, x: g,
        ),
    )
}

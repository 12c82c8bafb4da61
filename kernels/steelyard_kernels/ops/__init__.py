"""Elementwise operations: one table for expressions, loop IR, emitters and models.

Adding an operation is adding its row (`row.Op`) to one of the tuples below: the array
function, printing, gradient, oracle, costs and the text for every target follow.
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels.ops.arithmetic import ARITHMETIC
from steelyard_kernels.ops.bits import ON_BITS
from steelyard_kernels.ops.functions import FUNCTIONS
from steelyard_kernels.ops.rounding import ROUNDING
from steelyard_kernels.ops.row import Op
from steelyard_kernels.ops.special import SPECIAL

OPERATIONS: Final[dict[str, Op]] = {
    row.name: row for row in (*ARITHMETIC, *ROUNDING, *ON_BITS, *FUNCTIONS, *SPECIAL)
}

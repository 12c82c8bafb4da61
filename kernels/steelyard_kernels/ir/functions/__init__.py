"""Mathematical functions as operations of the loop IR, for every emitter.

Largest errors seen in ulp, float32 against float64 and float64 against longdouble, on 20
million arguments a function and more (erf_inv on a million, its float64 on 20,000
against erf in 40 digits); tests hold them on a sample:

              exp   log   rsqrt  expm1  log1p  tanh  sigmoid  softplus
    float32   1.02  0.84  1.50   1.60   0.86   2.50  2.45     1.60
    float64   1.01  0.87  1.50   1.95   0.83   2.63  2.40     1.65

              erf   erf_inv  sin   cos   sinpi  cospi
    float32   1.35  2.85     1.50  1.50  0.97   0.70
    float64   1.30  3.45     1.50  1.50  0.85   0.80

A half is computed as float32 and rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from steelyard_kernels.dtypes import HALVES, float32
from steelyard_kernels.ir.functions import erf, erf_inv, exp_log, sigmoid, sines

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard_kernels.ir.builder import Builder
    from steelyard_kernels.ir.loops import Operand

FUNCTIONS: Final[dict[str, Callable[[Builder, Operand], Operand]]] = {
    "exp": exp_log.exp,
    "log": exp_log.log,
    "rsqrt": exp_log.rsqrt,
    "expm1": sigmoid.expm1,
    "log1p": sigmoid.log1p,
    "tanh": sigmoid.tanh,
    "sigmoid": sigmoid.sigmoid,
    "softplus": sigmoid.softplus,
    "erf": erf.erf,
    "erf_inv": erf_inv.erf_inv,
    "sin": sines.sin,
    "cos": sines.cos,
    "sinpi": sines.sinpi,
    "cospi": sines.cospi,
}


def spelled_out(b: Builder, op: str, x: Operand) -> Operand:
    """Append a function of x in operations that every target has."""
    if x.type.dtype in HALVES:
        wide = FUNCTIONS[op](b, b.cast(x, float32))
        return b.cast(wide, x.type.dtype)
    return FUNCTIONS[op](b, x)

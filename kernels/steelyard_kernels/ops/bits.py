"""Integers as their bits, which have no sign."""

from __future__ import annotations

from typing import Final

import numpy as np

from steelyard_kernels.dtypes import DType, int32, unsigned
from steelyard_kernels.ir.functions import exact
from steelyard_kernels.ops import oracles
from steelyard_kernels.ops.row import BITS, FREE, INT, NUMBER, SAME_WIDTH, Op, Values


def _unsigned(dtype: DType, x: Values) -> Values:
    return x.astype(unsigned(dtype).numpy)


def _shift(dtype: DType, x: Values, amount: Values, *, left: bool) -> Values:
    """Shift bits; none are left where the amount is not one of their numbers."""
    bits, width = _unsigned(dtype, x), 8 * dtype.bytes
    inside = (amount >= 0) & (amount < width)
    by = np.where(inside, amount, 0).astype(bits.dtype)
    moved = np.left_shift(bits, by) if left else np.right_shift(bits, by)
    return np.where(inside, moved, 0).astype(dtype.numpy)


def _multiply_high(dtype: DType, a: Values, b: Values) -> Values:
    wide = _unsigned(dtype, a).astype(np.uint64) * _unsigned(dtype, b)
    return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _shifted(sign: str, word: str) -> str:
    """Spell a shift that leaves nothing where the amount is no bit's number."""
    moved = f"({{t}})(({word}){{a}} {sign} {{b}})"
    return f"({{u}}){{b}} < 8 * sizeof({{t}}) ? {moved} : 0"


def _on_bits(op: str, sign: str, doc: str) -> Op:
    return Op(
        f"bitwise_{op}",
        2,
        doc,
        getattr(np, f"bitwise_{op}"),
        BITS,
        llvm=dict.fromkeys(("int", "bool"), op),
        cuda=dict.fromkeys(("int", "bool"), f"{{a}} {sign} {{b}}"),
        jax=op,
    )


ON_BITS: Final = (
    _on_bits("and", "&", "Return the bits that both integers have; of bools, a and b."),
    _on_bits("or", "|", "Return the bits that either integer has; of bools, a or b."),
    _on_bits(
        "xor", "^", "Return the bits that only one integer has; of bools, a != b."
    ),
    Op(
        "bitwise_left_shift",
        2,
        "Return an integer's bits b places higher; 0 from its width on.",
        lambda dtype, x, n: _shift(dtype, x, n, left=True),
        INT,
        cuda={"int": _shifted("<<", "{w}")},
        jax="shift_left",
        by_dtype=True,
    ),
    Op(
        "bitwise_right_shift",
        2,
        "Return an integer's bits b places lower, the sign at the top.",
        oracles.shift_right,
        INT,
        decompose=exact.shift_right,
        jax="shift_right_arithmetic",
        by_dtype=True,
    ),
    Op(
        "bitwise_invert",
        1,
        "Return the bits that an integer has not; of bools, not x.",
        np.bitwise_invert,
        BITS,
        decompose=lambda x: x ^ exact.all_ones(x),
        jax="not",
    ),
    Op(
        "shift_right_logical",
        2,
        "Return an integer's bits b places lower, zeros at the top.",
        lambda dtype, x, n: _shift(dtype, x, n, left=False),
        INT,
        cuda={"int": _shifted(">>", "{u}")},
        jax="shift_right_logical",
        by_dtype=True,
    ),
    Op(
        "multiply_high",
        2,
        "Return the high 32 bits of the product of two int32 as unsigned numbers.",
        _multiply_high,
        INT,
        cuda={"int": "(int)__umulhi({a}, {b})"},
        only=frozenset({int32}),
        by_dtype=True,
    ),
    Op(
        "bitcast",
        1,
        "Return the bits of x as the other dtype that is as wide.",
        lambda dtype, x: x.astype(dtype.numpy).view(SAME_WIDTH[dtype].numpy),
        NUMBER,
        "bits",
        cost=FREE,
        only=frozenset(SAME_WIDTH),
        by_dtype=True,
    ),
)

"""Arithmetic, choices and comparisons: operations that are an instruction or few."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from steelyard_kernels.dtypes import float32, float64
from steelyard_kernels.ops.row import ANY, BOOL, DIVISION, FREE, NUMBER, Cost, Op

# ruff: noqa: ARG005 - all functions of a row's gradient take the same


def _wrapping(sign: str) -> str:
    """Spell integer arithmetic that wraps, which signed integers may not in C++."""
    return f"({{t}})(({{w}}){{a}} {sign} ({{w}}){{b}})"


def _constant(xp: Any, like: Any, value: float) -> Any:
    return xp.full((), value, dtype=like.dtype)


def _chosen(xp: Any, g: Any, chosen: Any, tied: Any) -> Any:
    """Return g where an operand was chosen, half of it where both were."""
    share = xp.where(tied, _constant(xp, g, 0.5), _constant(xp, g, 1.0))
    return g * xp.where(chosen, share, 0.0)


def _compared(name: str, sign: str, how: str, jax: str) -> Op:
    """Return the row of a comparison; of NaN it is false."""
    order = how if how in {"eq", "ne"} else f"s{how}"
    return Op(
        name,
        2,
        f"Return a {sign} b{'; true where either is NaN' if how == 'ne' else ''}.",
        getattr(np, name),
        ANY,
        "bool",
        llvm={
            "float": f"fcmp {'une' if how == 'ne' else f'o{how}'}",
            "int": f"icmp {order}",
            **dict.fromkeys(("uint", "bool"), f"icmp {order.replace('s', 'u', 1)}"),
        },
        cuda=dict.fromkeys(("float", "int", "bool"), f"{{a}} {sign} {{b}}"),
        jax=jax,
    )


ARITHMETIC: Final = (
    Op(
        "add",
        2,
        "Return a + b.",
        np.add,
        NUMBER,
        gradient=(lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: g),
        llvm={"float": "fadd", "int": "add"},
        cuda={"float": "{a} + {b}", "int": _wrapping("+")},
        jax="add",
    ),
    Op(
        "subtract",
        2,
        "Return a - b.",
        np.subtract,
        NUMBER,
        gradient=(lambda xp, g, y, a, b: g, lambda xp, g, y, a, b: -g),
        llvm={"float": "fsub", "int": "sub"},
        cuda={"float": "{a} - {b}", "int": _wrapping("-")},
        jax="sub",
    ),
    Op(
        "multiply",
        2,
        "Return a * b.",
        np.multiply,
        NUMBER,
        gradient=(lambda xp, g, y, a, b: g * b, lambda xp, g, y, a, b: g * a),
        llvm={"float": "fmul", "int": "mul"},
        cuda={"float": "{a} * {b}", "int": _wrapping("*")},
        jax="mul",
    ),
    Op(
        "divide",
        2,
        "Return a / b of floating values; integers are an error that says to cast.",
        np.divide,
        gradient=(lambda xp, g, y, a, b: g / b, lambda xp, g, y, a, b: g * (-y / b)),
        cost=DIVISION,
        llvm={"float": "fdiv"},
        cuda={"float": "{a} / {b}"},
    ),
    Op(
        "maximum",
        2,
        "Return the larger value; NaN when either is NaN.",
        np.maximum,
        ANY,
        gradient=(
            lambda xp, g, y, a, b: _chosen(xp, g, a >= b, a == b),
            lambda xp, g, y, a, b: _chosen(xp, g, b >= a, a == b),
        ),
        # nsz: the zeros are equal
        llvm={
            "float": "nsz llvm.maximum",
            "int": "llvm.smax",
            "uint": "llvm.umax",
            "bool": "or",
        },
        cuda={
            "float": "max_nan({a}, {b})",
            "int": "max({a}, {b})",
            "bool": "{a} | {b}",
        },
    ),
    Op(
        "minimum",
        2,
        "Return the smaller value; NaN when either is NaN.",
        np.minimum,
        ANY,
        gradient=(
            lambda xp, g, y, a, b: _chosen(xp, g, a <= b, a == b),
            lambda xp, g, y, a, b: _chosen(xp, g, b <= a, a == b),
        ),
        llvm={
            "float": "nsz llvm.minimum",
            "int": "llvm.smin",
            "uint": "llvm.umin",
            "bool": "and",
        },
        cuda={
            "float": "min_nan({a}, {b})",
            "int": "min({a}, {b})",
            "bool": "{a} & {b}",
        },
    ),
    Op(
        "negative",
        1,
        "Return -x.",
        np.negative,
        NUMBER,
        gradient=(lambda xp, g, y, x: -g,),
        llvm={"float": "fneg", "int": "sub %s zeroinitializer, %s"},
        cuda={"float": "-{a}", "int": "({t})(0 - ({w}){a})"},
        jax="neg",
    ),
    Op(
        "abs",
        1,
        "Return the magnitude; the smallest integer stays itself, as in NumPy.",
        np.abs,
        NUMBER,
        gradient=(  # as in JAX: all at 0, and its negative of NaN
            lambda xp, g, y, x: (
                g * xp.where(x >= 0, _constant(xp, g, 1.0), _constant(xp, g, -1.0))
            ),
        ),
        llvm={"float": "llvm.fabs", "uint": "or %s zeroinitializer, %s"},
        cuda={
            "float": "fabs{f}({a})",
            "int": "{a} < 0 ? ({t})(0 - ({w}){a}) : {a}",
            "uint": "{a}",
        },
        jax="abs",
    ),
    Op(
        "sqrt",
        1,
        "Return the square root; NaN below zero.",
        np.sqrt,
        gradient=(lambda xp, g, y, x: g * (0.5 / y),),
        cost=DIVISION,
        llvm={"float": "llvm.sqrt"},
        cuda={"float": "sqrt{f}({a})"},
        jax="sqrt",
    ),
    Op(
        "rsqrt",
        1,
        "Return 1 / sqrt(x).",
        lambda x: 1.0 / np.sqrt(x),
        gradient=(lambda xp, g, y, x: g * (-0.5 * (y / x)),),
        cost=Cost(8, 4.0, DIVISION.narrow, DIVISION.wide),
        cuda={"float": "rsqrt{f}({a})"},
        decompose=lambda x: 1.0 / x.let("sqrt"),  # each of two rounded correctly
        jax="rsqrt",
        ulps=(1.5, 1.5),
    ),
    Op(
        "fma",
        3,
        "Return a * b + c, rounded once.",
        lambda a, b, c: a * b + c,
        llvm={"float": "llvm.fma"},
        cuda={"float": "fma{f}({a}, {b}, {c})"},
        only=frozenset({float32, float64}),
        hidden=True,
    ),
    Op(
        "where",
        3,
        "Return a where the condition holds, else b.",
        np.where,
        ANY,
        gradient=(
            lambda xp, g, y, c, a, b: g,  # never asked: a bool passes nothing back
            lambda xp, g, y, c, a, b: xp.where(c, g, 0.0),
            lambda xp, g, y, c, a, b: xp.where(c, 0.0, g),
        ),
        cost=FREE,
    ),
    _compared("less", "<", "lt", "lt"),
    _compared("less_equal", "<=", "le", "le"),
    _compared("greater", ">", "gt", "gt"),
    _compared("greater_equal", ">=", "ge", "ge"),
    _compared("equal", "==", "eq", "eq"),
    _compared("not_equal", "!=", "ne", "ne"),
    Op(
        "logical_not",
        1,
        "Return not x of booleans.",
        np.logical_not,
        BOOL,
        "bool",
        cuda={"bool": "!{a}"},
    ),
)

"""What a row of the table of elementwise operations says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from steelyard_kernels.dtypes import DType, float32, float64, int32, int64

Values: TypeAlias = NDArray[Any]
# (array namespace, cotangent, result, *operands) -> an operand's cotangent
Gradient: TypeAlias = Callable[..., Any]

FLOAT: Final = frozenset({"float"})
NUMBER: Final = frozenset({"float", "int"})
ANY: Final = frozenset({"float", "int", "bool"})
BOOL: Final = frozenset({"bool"})
INT: Final = frozenset({"int"})
BITS: Final = frozenset({"int", "bool"})

SAME_WIDTH: Final = {  # the dtype that a bitcast gives
    float32: int32,
    float64: int64,
    int32: float32,
    int64: float64,
}


class Cost(Struct, frozen=True):
    """What an operation costs on each class of target, by which all models rank.

    `cpu` is in vector instructions of float32, of which `depth` wait for one another.
    `narrow` and `wide` are cycles of a GPU for values of up to 4 bytes and of 8: from an
    operation's start to its result, and those in which nothing else of its kind is
    issued; H200. `count` is how many arithmetic operations `cost.operations` counts.
    """

    cpu: int = 1
    depth: float = 1.0
    narrow: tuple[float, float] = (4.0, 1.0)
    wide: tuple[float, float] = (8.0, 2.0)
    count: int = 1

    def gpu(self, size: int) -> tuple[float, float]:
        """Return a GPU's cycles for values of so many bytes."""
        return self.wide if size == 8 else self.narrow

    @property
    def slow(self) -> bool:
        """Whether it is more than one instruction: a division, a root, a function."""
        return self.cpu > 1


PLAIN: Final = Cost()
FREE: Final = Cost(count=0)  # a selection computes nothing
DIVISION: Final = Cost(4, 4.0, (45.0, 14.0), (150.0, 40.0))


class Op(Struct, frozen=True, eq=False):
    """One elementwise operation: all that is known of it.

    name: the array API's, or ours where it has none; the function of
        `steelyard_kernels.array`, and the operation in expressions and in the loop IR.
    arity: how many operands, broadcast to one shape and promoted to one dtype.
    doc: the sentence that the array function has as its docstring.
    oracle: NumPy's function of the operands, floats in float64 and integers in their
        dtype; with `by_dtype` it takes the operands' dtype first.
    kinds, only: the operands' kinds; the dtypes, where not all of them.
    keeps: kinds beside these whose values it leaves as they are.
    result: "same" as the operands, "bool", or "bits": the dtype of as many bits.
    gradient: for each operand (xp, g, y, *operands) -> its cotangent, g that of the
        result y; none: it is constant between jumps, or not of floats.
    cost: see `Cost`.
    llvm: by family ("float", "int", "bool", and "uint" of integers without a sign where
        it differs) an instruction, or an intrinsic behind its flags; `%` stands for type
        and operands where they are not listed in order.
    cuda: by family, or "single" and "double", a CUDA C++ expression of {a}, {b}, {c},
        the type {t}, {u}, the integer as wide without a sign, {w}, that of 4 or 8 bytes
        which it is computed in, and {f}, "f" of float32 functions.
    decompose: (*operands) -> the value, each a `Number`, in other operations; for
        emitters that have no text for it. Halves are computed in float32 and rounded.
    jax: the primitive of JAX's that it is.
    ulps: the largest errors seen in units of the last place, of float32 and float64,
        where it is decomposed.
    """

    name: str
    arity: int
    doc: str
    oracle: Callable[..., Values]
    kinds: frozenset[str] = FLOAT
    result: str = "same"
    gradient: tuple[Gradient, ...] = ()
    cost: Cost = PLAIN
    llvm: Mapping[str, str] = field(default_factory=dict)
    cuda: Mapping[str, str] = field(default_factory=dict)
    decompose: Callable[..., Any] | None = None
    jax: str = ""
    ulps: tuple[float, float] = (0.0, 0.0)
    only: frozenset[DType] = frozenset()
    keeps: frozenset[str] = frozenset()
    by_dtype: bool = False
    hidden: bool = False  # of the loop IR alone: no function of the array namespace

    def text(self, target: str, dtype: DType) -> str | None:
        """Return how an emitter, "llvm" or "cuda", spells it; None: it cannot."""
        texts = self.llvm if target == "llvm" else self.cuda
        size = "double" if dtype is float64 else "single"
        return (
            texts.get(dtype.family)
            or texts.get(dtype.kind)
            or (texts.get(size) if dtype.kind == "float" else None)
        )

    def evaluate(self, dtype: DType, *args: Values) -> Values:
        """Return what NumPy says of operands of a dtype, not yet rounded or wrapped."""
        given = (dtype, *args) if self.by_dtype else args
        return np.asarray(self.oracle(*given))

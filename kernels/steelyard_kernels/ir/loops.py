"""The loop IR: what a schedule lowers to, and what the emitters spell.

    kernel    = Kernel(name, parameters, body)
    parameter = Buffer | Var | Tensor                -- a scalar: read only
    buffer    = Buffer(name, dtype, extent, space, alignment, access)
    tensor    = Tensor(name, dtype, first, extents, strides, box, swizzle)
    tile      = Tile(buffer, index, first, swizzle, across, leading, stride)
    fragment  = Fragment(buffer, first)              -- a tile in registers
    type      = Type(dtype, lanes)                   -- by `typed`; lanes 1: a scalar
    operand   = Var(name, type)
              | Const(value, type)                   -- the same in every lane
    statement = Let(var, op, args)                   -- a row of OPERATIONS
              | Load(var, buffer, index, mask, alignment)
              | Store(buffer, index, value, mask, streaming, alignment)
              | Prefetch(buffer, index, locality)
              | Alloc(buffer)
              | For(var, start, stop, step, carried, body, yields, results, unroll,
                    until)
              | If(condition, body, values, orelse, else_values, results)
              | Parallel(low, high, extent, chunk, threads, body)
              | Fence()
              | Effect(op, args)                     -- a row of EFFECTS
              | Multiply(sums, rows, columns, more, by_warp) -- of tiles, by tensor cores

A program is in A-normal form and SSA: every `Var` is defined once in the whole
kernel, before its uses, and seen inside the body that defines it and the bodies
nested there. Indices, extents and bounds are int64 scalars (on a GPU also int32),
counted in elements. On a CPU threads share a `Parallel`; on a GPU the body is what one
thread does, told by the operations `thread` and `block` which it is.
The table OPERATIONS is in `operations`, the short way to make statements in
`builder`, the printer in `loops_print`, the rules in `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, TypeAlias, get_args

from msgspec import Struct

from steelyard_kernels.dtypes import DType, bool_, int64

SPACES = ("global", "shared", "stack", "register")
ACCESSES = ("in", "out", "inout")


class Buffer(Struct, frozen=True):
    """A run of `extent` elements in one memory space.

    `alignment` is what its first element's address is known to be a multiple
    of, in bytes. `access` is the whole kernel's use of it; an "out" buffer is
    never read, so its contents before the launch do not matter.
    """

    name: str
    dtype: DType
    extent: Operand
    space: str = "global"
    alignment: int = 0  # 0: that of one element
    access: str = "in"


class Tensor(Struct, frozen=True):
    """An array of a GPU's memory as bulk copies see it: a box of it at a time.

    Axes are innermost first: `extents` in elements, `strides` of all but the first in
    bytes, `box` in elements. It begins `first` elements behind its array. Elements
    beyond an extent are zeros. The 16-byte units of a row of the box, which has
    `swizzle` bytes, change places in shared memory as CUDA's swizzle of that size says.
    `dtype` is a name.
    """

    name: str
    dtype: str
    first: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


class Type(Struct, frozen=True, eq=False):
    """The type of a value: `lanes` elements of one dtype.

    Made only by `typed`, so that equal types are one object and compare by `is`.
    """

    dtype: DType
    lanes: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return typed, (self.dtype, self.lanes)

    def __str__(self) -> str:
        name = self.dtype.name
        return name if self.lanes == 1 else f"{name}x{self.lanes}"


_one_type = cache(Type)  # called positionally: the cache tells f(x) from f(x, 1)


def typed(dtype: DType, lanes: int = 1) -> Type:
    """Return the one `Type` of a dtype and a count of lanes (1: a scalar)."""
    return _one_type(dtype, lanes)


INDEX = typed(int64)  # of indices, extents and bounds
CONDITION = typed(bool_)


class Var(Struct, frozen=True, eq=False):
    """A value that one statement (or parameter, or loop) defines."""

    name: str
    type: Type


class Const(Struct, frozen=True):
    """A number known now, the same in every lane.

    A float is rounded to the type's dtype, to nearest even, when it is spelled.
    """

    value: float
    type: Type


Operand: TypeAlias = Var | Const


class Let(Struct, frozen=True, eq=False):
    """`var = op(*args)`: a value without effects."""

    var: Var
    op: str
    args: tuple[Operand, ...]


class Load(Struct, frozen=True, eq=False):
    """`var.type.lanes` consecutive elements from `buffer[index]` on.

    Lanes whose mask is false are not read and give zero. `alignment` is what
    this address is known to be a multiple of, in bytes (0: one element's).
    """

    var: Var
    buffer: Buffer
    index: Operand
    mask: Operand | None = None
    alignment: int = 0


class Store(Struct, frozen=True, eq=False):
    """Write the lanes of `value` to `buffer[index]` on, those the mask allows.

    `streaming` goes round the caches: it needs a stated `alignment` of at least
    16 bytes, no mask, and a `Fence` before the kernel ends.
    """

    buffer: Buffer
    index: Operand
    value: Operand
    mask: Operand | None = None
    streaming: bool = False
    alignment: int = 0


class Prefetch(Struct, frozen=True, eq=False):
    """Ask for the cache line of `buffer[index]`, which may lie outside the buffer.

    `locality` is LLVM's: 3 into every cache, 2 into L2, 1 into L3, 0 once.
    """

    buffer: Buffer
    index: Operand
    locality: int = 3


class Alloc(Struct, frozen=True, eq=False):
    """Memory of this thread ("stack") or block ("shared"), uninitialised.

    It lives until the kernel ends and is the same memory in every iteration.
    """

    buffer: Buffer


class For(Struct, frozen=True, eq=False):
    """`for var in range(start, stop, step)`, in order, with carried state.

    Each of `carried` is a variable of the body and what it holds in the first
    iteration; `yields` are what they hold in the next, and `results` what they
    held in the end (the first values if there is no iteration). It ends before `stop`
    with the first iteration in which `until`, a bool of the body, is true. `unroll` is
    how many iterations a GPU's compiler spells out (0: it chooses).
    """

    var: Var
    start: Operand
    stop: Operand
    step: int
    carried: tuple[tuple[Var, Operand], ...]
    body: tuple[Statement, ...]
    yields: tuple[Operand, ...] = ()
    results: tuple[Var, ...] = ()
    unroll: int = 0
    until: Operand | None = None


class If(Struct, frozen=True, eq=False):
    """Run one of two bodies; `results` are the values of the one that ran.

    `seldom` says that the condition hardly ever holds.
    """

    condition: Operand
    body: tuple[Statement, ...]
    values: tuple[Operand, ...] = ()
    orelse: tuple[Statement, ...] = ()
    else_values: tuple[Operand, ...] = ()
    results: tuple[Var, ...] = ()
    seldom: bool = False


class Parallel(Struct, frozen=True, eq=False):
    """The outermost loop: chunks [low, high) of [0, extent), taken by threads.

    A free thread takes the next chunk of `chunk` (the last may be shorter) from
    the launch's ticket. With `threads` = 1 (0: all there are) the body runs
    once, over the whole extent. There is one in a kernel: it has one ticket.
    """

    low: Var
    high: Var
    extent: Operand
    chunk: int
    threads: int
    body: tuple[Statement, ...]


class Fence(Struct, frozen=True, eq=False):
    """Streaming stores before it are seen before any store after it."""


class Effect(Struct, frozen=True, eq=False):
    """`op(*args)`, done for what it does: a barrier, an asynchronous copy."""

    op: str
    args: tuple[Operand | Buffer | Tensor, ...] = ()


class Tile(Struct, frozen=True):
    """A matrix in shared memory, from `buffer[index + first]` on, 32 bytes deep.

    `index` and `first` are multiples of 16 bytes. A row of it has `swizzle` bytes along the reduced axis, or if `across` along the
    other one: then `leading` bytes lead to the next so many columns. `stride` bytes
    lead to the next 8 rows. PTX ISA, "Asynchronous warpgroup-level matrix
    shared memory layout".
    """

    buffer: Buffer
    index: Operand
    first: int
    swizzle: int
    across: bool
    leading: int
    stride: int


class Fragment(Struct, frozen=True):
    """A matrix of 64 x 16 halves in registers, 8 of each thread from `buffer[first]` on.

    They are where a thread has its sums of 64 x 16: what a product gave is read by the
    next one.
    """

    buffer: Buffer
    first: int

    @property
    def index(self) -> Operand:
        """No index: registers have no address."""
        return Const(0, INDEX)


class Multiply(Struct, frozen=True, eq=False):
    """Begin to add the products of 64 x 16 and 16 x n halves to float32 `sums`.

    Or of as many bytes of other elements: the sums of integers are int32. Done by the 128 threads of a warpgroup: each has n / 2 of the sums in registers, for
    each of `rows` in turn. Where `more` is 0 the sums begin at zero. `mma_wait` waits for
    them. `by_warp`: each warp multiplies 16 of the rows by itself, and has its sums at once.
    """

    sums: Buffer
    rows: tuple[Tile | Fragment, ...]
    columns: Tile
    more: Operand
    by_warp: bool = False


Statement: TypeAlias = (
    Let
    | Load
    | Store
    | Prefetch
    | Alloc
    | For
    | If
    | Parallel
    | Fence
    | Effect
    | Multiply
)
Parameter: TypeAlias = Buffer | Var | Tensor
KEYWORDS: Final = {"for": "loop", "if": "branch"}


def methods(of: object) -> dict[type, Callable[..., None]]:
    """Return what an object does with each kind of statement: its method of that name."""
    found = {}
    kinds: tuple[type, ...] = get_args(Statement)
    for kind in kinds:
        name = kind.__name__.lower()
        method = getattr(of, KEYWORDS.get(name, name), None)
        if method is not None:
            found[kind] = method
    return found


class Kernel(Struct, frozen=True, eq=False):
    """A whole kernel; `name` is its symbol, `parameters` the order of its slots.

    On a GPU `threads` make a block, and a thread may use at most `registers` (0: the
    compiler chooses). A multiprocessor is to hold `resident` blocks at once: more than
    those need not fit beside each other (0: the compiler chooses). `cluster` neighbouring
    blocks run together and reach each other's shared memory. If `shared` is not 0 it is
    the bytes of a launch's dynamic shared memory, in which all shared buffers lie.
    A launch has `copies` of the grid side by side, each with arrays of its own; the
    parameters are those of one.
    """

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    threads: int = 0
    registers: int = 0
    resident: int = 0
    cluster: int = 1
    shared: int = 0
    copies: int = 1


def shared_places(buffers: Iterable[Buffer]) -> tuple[dict[str, int], int]:
    """Return at which byte each shared buffer begins, in order, and where all end."""
    places: dict[str, int] = {}
    end = 0
    for buffer in buffers:
        assert isinstance(buffer.extent, Const)
        end = -(-end // buffer.alignment) * buffer.alignment
        places[buffer.name] = end
        end += int(buffer.extent.value) * buffer.dtype.bytes
    return places, end

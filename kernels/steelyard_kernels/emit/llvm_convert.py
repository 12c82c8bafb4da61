"""Conversions between the element types, rounded once, to nearest, ties to even.

Each function appends what it needs and returns its last step as an expression.
float16 rounds in hardware (F16C; on a GPU `cvt`); bfloat16 too on a GPU, on a CPU in
integers, because LLVM's own conversion flushes denormals where AVX512_BF16 exists.
float64 and integers reach a half type through float32 rounded to odd: a second
rounding to nearest then gives what one rounding would have (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", 2008; float32 has the two more bits it
asks for); integers of up to 24 bits are float32. Floats go to integers truncated; NaN gives 0 and what does not fit the nearest
bound, where NumPy leaves both undefined.
"""

from __future__ import annotations

from steelyard_kernels.dtypes import HALVES, DType, bool_, float16, float32, float64
from steelyard_kernels.emit.llvm_text import (
    Writer,
    everywhere,
    mangle,
    register,
    scalar,
    spell,
)
from steelyard_kernels.ir.loops import Type, typed

STICKY_BITS = 11  # of an int64 beyond float64's 53


def cast(w: Writer, value: str, source: Type, target: DType) -> str:
    """Return the expression of `value` converted to `target`, lane by lane."""
    lanes, have = source.lanes, source.dtype
    result = typed(target, lanes)
    if have is target:
        return f"bitcast {register(source)} {value} to {register(source)}"
    if have in HALVES:
        if target is float32:
            return widen(w, value, source)
        return cast(w, widened(w, value, source), typed(float32, lanes), target)
    if target in HALVES:
        if have is bool_:
            return _from_bool(value, result)
        if have is not float32 and have.digits <= float32.digits:
            value = w.put(_plain(w, value, source, typed(float32, lanes)))
        elif have is not float32:
            value = _round_to_odd(w, _to_float64(w, value, source), lanes)
        return narrow(w, value, result)
    return _plain(w, value, source, result)


def widened(w: Writer, value: str, source: Type) -> str:
    """Return the float32 twin of a half value, made at its first use."""
    key = (value, source)  # a constant's bits mean two numbers in two dtypes
    twin = w.wide.get(key)
    if twin is None:
        twin = w.wide[key] = w.put(widen(w, value, source))
    return twin


def widen(w: Writer, value: str, source: Type) -> str:
    """Widen half bits to float32, exactly."""
    lanes = source.lanes
    bits, wide = spell("i16", lanes), spell("float", lanes)
    if source.dtype is float16:
        w.needs("f16c", "float16")
        half = spell("half", lanes)
        return f"fpext {half} {w.put(f'bitcast {bits} {value} to {half}')} to {wide}"
    words = spell("i32", lanes)
    word = w.put(f"zext {bits} {value} to {words}")
    high = w.put(f"shl {words} {word}, {everywhere('16', 'i32', lanes)}")
    return f"bitcast {words} {high} to {wide}"


def narrow(w: Writer, value: str, result: Type) -> str:
    """Round float32 to half bits."""
    lanes = result.lanes
    bits, wide = spell("i16", lanes), spell("float", lanes)
    if result.dtype is float16:
        w.needs("f16c", "float16")
    if result.dtype is float16 or w.host.architecture == "nvptx64":
        half = spell("half" if result.dtype is float16 else "bfloat", lanes)
        return f"bitcast {half} {w.put(f'fptrunc {wide} {value} to {half}')} to {bits}"
    words = spell("i32", lanes)

    def number(n: int) -> str:
        return everywhere(str(n), "i32", lanes)

    word = w.put(f"bitcast {wide} {value} to {words}")
    high = w.put(f"lshr {words} {word}, {number(16)}")
    tie = w.put(f"and {words} {high}, {number(1)}")  # ties go to the even neighbour
    step = w.put(f"add {words} {tie}, {number(0x7FFF)}")
    up = w.put(f"lshr {words} {w.put(f'add {words} {word}, {step}')}, {number(16)}")
    quiet = w.put(f"or {words} {high}, {number(0x40)}")
    nan = w.put(f"fcmp uno {wide} {value}, {value}")
    flag = spell("i1", lanes)
    kept = w.put(f"select {flag} {nan}, {words} {quiet}, {words} {up}")
    return f"trunc {words} {kept} to {bits}"


def _from_bool(value: str, result: Type) -> str:
    """Give the bits of 1.0 and 0.0."""
    lanes, type_ = result.lanes, register(result)
    one = everywhere(scalar(1.0, result.dtype), "i16", lanes)
    flag = spell("i1", lanes)
    return f"select {flag} {value}, {type_} {one}, {type_} zeroinitializer"


def _to_float64(w: Writer, value: str, source: Type) -> str:
    """Widen to float64 exactly, or so that rounding to odd is unchanged."""
    if source.dtype is float64:
        return value
    if source.dtype.bytes == float64.bytes:
        value = _sticky(w, value, source)
    return w.put(_plain(w, value, source, typed(float64, source.lanes)))


def _sticky(w: Writer, value: str, source: Type) -> str:
    """Fold an integer's lowest bits into one where it has more than float64 holds."""
    lanes = source.lanes
    words, flag = spell("i64", lanes), spell("i1", lanes)

    def number(n: int) -> str:
        return everywhere(str(n), "i64", lanes)

    unit = 1 << STICKY_BITS
    low = w.put(f"and {words} {value}, {number(unit - 1)}")
    some = w.put(f"icmp ne {words} {low}, {number(0)}")
    stick = w.put(f"select {flag} {some}, {words} {number(unit)}, {words} {number(0)}")
    high = w.put(f"and {words} {value}, {number(-unit)}")
    folded = w.put(f"or {words} {high}, {stick}")
    size, name = value, f"llvm.abs.{mangle('i64', lanes)}"
    if source.dtype.signed:
        size = w.put(w.call(words, name, (words, value), ("i1", "false")))
    big = w.put(f"icmp ugt {words} {size}, {number(1 << 53)}")
    return w.put(f"select {flag} {big}, {words} {folded}, {words} {value}")


def _round_to_odd(w: Writer, value: str, lanes: int) -> str:
    """Round float64 to float32: towards zero, with the last bit set if inexact."""
    long, short = spell("double", lanes), spell("float", lanes)
    words, flag = spell("i32", lanes), spell("i1", lanes)
    fabs = f"llvm.fabs.{mangle('double', lanes)}"
    near = w.put(f"fptrunc {long} {value} to {short}")
    back = w.put(f"fpext {short} {near} to {long}")
    inexact = w.put(f"fcmp one {long} {back}, {value}")
    size, true_size = (w.put(w.call(long, fabs, (long, x))) for x in (back, value))
    above = w.put(f"fcmp ogt {long} {size}, {true_size}")
    bits = w.put(f"bitcast {short} {near} to {words}")
    down = w.put(f"sub {words} {bits}, {w.put(f'zext {flag} {above} to {words}')}")
    odd = w.put(f"or {words} {down}, {w.put(f'zext {flag} {inexact} to {words}')}")
    return w.put(f"bitcast {words} {odd} to {short}")


def _plain(w: Writer, value: str, source: Type, result: Type) -> str:
    """Convert between float32, float64, integers and bool."""
    have, want = register(source), register(result)
    pair = (source.dtype.kind, result.dtype.kind)
    if pair == ("float", "int"):
        names = [mangle(t.dtype.llvm, t.lanes) for t in (result, source)]
        how = "fptosi" if result.dtype.signed else "fptoui"
        return w.call(want, f"llvm.{how}.sat.{'.'.join(names)}", (have, value))
    if pair[1] == "bool":
        compare = "fcmp une" if pair[0] == "float" else "icmp ne"
        return f"{compare} {have} {value}, zeroinitializer"
    size, before = result.dtype.bytes, source.dtype.bytes
    sign, bit = ("s" if source.dtype.signed else "u"), source.dtype is bool_
    if pair == ("float", "float"):
        step = "fpext" if size > before else "fptrunc"
    elif pair[1] == "float":
        step = f"{sign}itofp"
    elif size == before and not bit:
        step = "bitcast"
    else:
        step = f"{'sz'[sign == 'u']}ext" if size > before or bit else "trunc"
    return f"{step} {have} {value} to {want}"

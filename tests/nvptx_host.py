"""The LLVM IR of GPU kernels run on this machine, thread after thread.

Only for kernels whose threads do not talk to each other. What differs from the text
that LLVM's PTX is made of: address spaces, who a thread is (two parameters more), the
GPU's rsqrt, and rounding to bfloat16, which no CPU's LLVM does right.
"""

import ctypes
import re
from functools import cache

import numpy as np

from steelyard_device import llvm
from steelyard_kernels.dtypes import bfloat16
from steelyard_kernels.emit import llvm_convert
from steelyard_kernels.emit.llvm_text import Writer, spell
from steelyard_kernels.ir.loops import typed

HELPER = re.compile(r"^define internal .*?^}$|^@far[^\n]*$", re.MULTILINE | re.DOTALL)
SCALARS = {"i": ctypes.c_int32, "f": ctypes.c_double, "b": ctypes.c_bool}


RSQRT = """
declare float @llvm.sqrt.f32(float)
define internal float @rsqrt(float %x) {
  %root = call float @llvm.sqrt.f32(float %x)
  %result = fdiv float 1.0, %root
  ret float %result
}
"""


def joined(texts):
    """Return the program of several emitted texts, without bounds of their blocks."""
    whole = "\n".join(texts)
    helpers = dict.fromkeys(HELPER.findall(whole))  # several kernels have the same
    lines = [*"\n".join(helpers).splitlines(), *HELPER.sub("", whole).splitlines()]
    kept = [line for line in lines if not line.startswith(("!", "target"))]
    kept = [re.sub(", !(llvm.loop|prof) ![79]", "", line) for line in kept]
    declared = sorted({line for line in kept if line.startswith("declare")})
    rest = [line for line in kept if not line.startswith("declare")]
    return "\n".join([*declared, *rest, ""])


def load(texts, entries):
    """Return a function `run(entry, blocks, threads, *args)` over emitted texts."""
    text = re.sub(r" addrspace\(\d\)", "", joined(texts))
    text = re.sub(
        r"define ptx_kernel (.*?)\(", r"define \1(i32 %tid, i32 %ctaid, ", text
    )
    text = text.replace(", )", ")")
    text = re.sub(r"declare .*ptx.sreg.*\n", "", text)
    text = re.sub(
        r"call i32 @llvm.nvvm.read.ptx.sreg.(\w+).x\(\)", r"add i32 %\1, 0", text
    )
    text = re.sub(r"declare .*llvm.(sqrt.f32|nvvm.rsqrt).*\n", "", text)
    text = text.replace("@llvm.nvvm.rsqrt.approx.f(", "@rsqrt(")
    text, roundings = _rounded_in_integers(text)
    addresses = _linked(RSQRT + roundings + text, tuple(entries))

    def run(entry, blocks, threads, *args):
        slots = [_slot(arg) for arg in args]
        kinds = [ctypes.c_int32, ctypes.c_int32, *[type(slot) for slot in slots]]
        kernel = ctypes.CFUNCTYPE(None, *kinds)(addresses[entry])
        for block in range(blocks):
            for thread in range(threads):
                kernel(thread, block, *slots)

    return run


@cache
def _linked(text, entries):
    return llvm.link(llvm.assemble(text), entries)


def _slot(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return SCALARS[np.asarray(value).dtype.kind](value)


def _rounded_in_integers(text):
    """Call what the CPU's emitter rounds to bfloat16 with, and return that too."""
    pattern = r"fptrunc (<(\d+) x float>|float) (%\S+) to (?:<\d+ x bfloat>|bfloat)"
    lanes = {int(match[2] or 1) for match in re.finditer(pattern, text)}

    def called(match):
        count = int(match[2] or 1)
        result = spell("bfloat", count)
        return f"call {result} @bfloat16_{count}({match[1]} {match[3]})"

    return re.sub(pattern, called, text), "".join(map(_rounding, sorted(lanes)))


def _rounding(lanes):
    w, result = Writer(llvm.host()), spell("bfloat", lanes)
    bits = w.put(llvm_convert.narrow(w, "%x", typed(bfloat16, lanes)))
    half = w.put(f"bitcast {spell('i16', lanes)} {bits} to {result}")
    w.do(f"ret {result} {half}")
    body = "\n".join(w.lines)
    wide = spell("float", lanes)
    return f"define internal {result} @bfloat16_{lanes}({wide} %x) {{\n{body}\n}}\n"

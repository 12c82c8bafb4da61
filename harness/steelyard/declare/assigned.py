"""The variable that a call's result is assigned to, read from the caller's code."""

from __future__ import annotations

import dis
import functools
from collections.abc import Mapping
from types import CodeType, FrameType

from steelyard.errors import BenchmarkError


def assigned(frame: FrameType) -> str:
    """Return the variable that the call under way in ``frame`` is assigned to."""
    code = _instructions(frame.f_code)
    at = min((offset for offset in code if offset > frame.f_lasti), default=-1)
    while at in code and code[at].opname == "JUMP_FORWARD":  # x = call if c else d
        at = code[at].argval
    if at not in code or not code[at].opname.startswith("STORE_"):
        raise BenchmarkError(
            f"a buffer declared on line {frame.f_lineno} of {frame.f_code.co_name} "
            "is not assigned to a variable by itself. Write x = b.input(...), each buffer "
            "in a statement of its own, or give it a name=."
        )
    return str(code[at].argval)


@functools.lru_cache(maxsize=512)  # a benchmark is called for each of its cases
def _instructions(code: CodeType) -> Mapping[int, dis.Instruction]:
    return {each.offset: each for each in dis.get_instructions(code)}

"""A Triton kernel, which has to stand in a file that can be read."""

import triton
import triton.language as tl


@triton.jit
def negate(x, y, n, block: tl.constexpr):
    """Write -x to y, a block a program."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, -tl.load(x + at, mask=at < n), mask=at < n)

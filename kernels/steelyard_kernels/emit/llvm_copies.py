"""The functions of a kernel on a CPU: one, or one that does several copies in turn."""

from __future__ import annotations

from typing import Final

from steelyard_kernels.ir.loops import Buffer, Kernel

HEAD: Final = (
    "define void @{name}(ptr noalias %args, ptr %ticket, i32 %index, i32 %count) {{"
)
# Of a kernel whose launch has several copies: one of them, and all, one after another. Each
# has a counter of its own in the ticket's line: no thread waits between two.
ONE: Final = (
    "define internal void @{name}.one(ptr noalias %args, ptr noalias %numbers, "
    "ptr %ticket, i32 %index, i32 %count) {{"
)
COPY: Final = """\
  %args.{copy} = getelementptr i64, ptr %args, i64 {begin}
  %ticket.{copy} = getelementptr i64, ptr %ticket, i64 {copy}
  call void @{name}.one(ptr %args.{copy}, ptr %numbers, ptr %ticket.{copy}, \
i32 %index, i32 %count)
"""


def function(kernel: Kernel, body: str) -> str:
    """Return the text of a kernel whose body is given, and of all its copies."""
    if kernel.copies == 1:
        return f"{HEAD.format(name=kernel.name)}\n{body}\n}}\n"
    return f"{ONE.format(name=kernel.name)}\n{body}\n}}\n{_every(kernel)}"


def _every(kernel: Kernel) -> str:
    """Return the function that does all copies: arrays of each, then the numbers."""
    arrays = sum(isinstance(each, Buffer) for each in kernel.parameters)
    copies, name = kernel.copies, kernel.name
    numbers = f"  %numbers = getelementptr i64, ptr %args, i64 {arrays * copies}\n"
    calls = [COPY.format(name=name, copy=k, begin=arrays * k) for k in range(copies)]
    head = HEAD.format(name=name)
    return f"\n{head}\nentry:\n{numbers}{''.join(calls)}  ret void\n}}\n"

"""How long each of LLVM's passes took, as LLVM itself reports it.

    python -m steelyard_device.passes [ARCH] < text.ll

LLVM tells passes apart by where they lie in memory, and confuses those of a second
program with passes that lay there before: each program has a process of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

from steelyard_device.errors import LLVMError

LINE: Final = re.compile(r"(\d+\.\d+) \( *[\d.]+%\)  (\S.*?)(?: #\d+)?$", re.MULTILINE)
"""The last two columns of a line: seconds of wall time and a pass, numbered where the
same runs again."""


def timed(text: str, arch: str = "") -> list[tuple[str, int]]:
    """Generate code of LLVM IR ``text`` in a fresh process, for this machine or a GPU.

    Return each pass that took at least a tenth of a millisecond, LLVM's digit, with its
    nanoseconds, the longest first.

    Raises:
        LLVMError: the text is not a legal LLVM program.
    """
    line = [sys.executable, "-P", "-m", "steelyard_device.passes", arch]
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        raise LLVMError(f"LLVM's passes could not be timed: {said}")
    taken: dict[str, int] = {}
    for seconds, name in LINE.findall(done.stdout):
        taken[name] = taken.get(name, 0) + round(float(seconds) * 1e9)
    taken.pop("Total", None)
    return sorted(((n, t) for n, t in taken.items() if t), key=lambda one: -one[1])


def main(arch: str, text: str) -> str:
    """Return LLVM's report of one program."""
    import llvmlite.binding

    from steelyard_device import llvm, nvptx

    llvmlite.binding.set_time_passes(True)
    _ = nvptx.assembly(text, arch) if arch else llvm.assemble(text)
    report: str = llvmlite.binding.report_and_reset_timings()
    return report


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1] if len(sys.argv) > 1 else "", sys.stdin.read()))

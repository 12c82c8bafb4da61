"""Code for processors of a feature level, which need not be here."""

import pytest

from steelyard_device import processors
from steelyard_device.errors import LLVMError

ADD = """
define void @kernel(ptr %x) {
  %a = load <8 x float>, ptr %x
  %b = fadd <8 x float> %a, splat (float 1.0)
  store <8 x float> %b, ptr %x
  ret void
}
"""

SPILLED = """\
kernel:                                 # @kernel
\tvmovaps\t%ymm0, 32(%rsp)                # 32-byte Spill
\tvaddps\t%ymm1, %ymm0, %ymm0             # comment
\tvaddps\t64(%rsp), %ymm0, %ymm0          # 32-byte Folded Reload
\tmovq\t%rax, (%rsp)                      # 8-byte Spill
\t.p2align\t4
.LBB0_1:                                # %loop.1
\tretq
"""


@pytest.mark.parametrize("processor", processors.PROCESSORS)
def test_code_is_counted_and_named(processor):
    """A vector is added in one instruction, whatever this machine has."""
    made = processors.compile(ADD, processor)
    counts = dict(made.opcodes)
    assert counts["vaddps"] == counts["retq"] == 1
    assert made.spill_bytes == 0
    assert len(made.code_hash) == 32
    assert processors.compile(ADD, processor) == made


def test_other_constants_are_other_code():
    """Though each instruction is as it was; a name of a value is none of it."""
    made = processors.compile(ADD, "x86-64-v3")
    other = processors.compile(ADD.replace("1.0", "2.0"), "x86-64-v3")
    assert other.opcodes == made.opcodes
    assert other.code_hash != made.code_hash
    assert processors.compile(ADD.replace("%b", "%sum"), "x86-64-v3") == made


def test_spills_are_added_up():
    """Written and read, by LLVM's comments; comments and labels are no instructions."""
    read = processors.read(SPILLED)
    assert read.spill_bytes == 72
    assert read.opcodes == (("vaddps", 2), ("movq", 1), ("retq", 1), ("vmovaps", 1))
    assert processors.read(SPILLED.replace("comment", "other")) == read


@pytest.mark.parametrize("text", ["no program", ADD.replace("ret void", "")])
def test_what_is_no_program_is_refused(text):
    """As LLVM says it."""
    with pytest.raises(LLVMError, match="LLVM rejected the program"):
        processors.compile(text, "x86-64-v3")

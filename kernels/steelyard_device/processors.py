"""Code for processors of a named feature level, which this machine need not be.

What is made here is read and compared, never run: the same text comes to the same
assembly on every machine that has the same LLVM.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import llvmlite.binding as llvm
from msgspec import Struct

from steelyard_device.errors import DeviceError
from steelyard_device.llvm import Host, refusing, without_strength_reduction
from steelyard_device.threads import Once

_TRIPLE: Final = "x86_64-unknown-linux-gnu"
_V3: Final = frozenset(
    {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"}
)
_V4: Final = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}

PROCESSORS: Final[Mapping[str, Host]] = MappingProxyType(
    {
        "x86-64-v3": Host(_TRIPLE, "x86-64-v3", _V3, 32),
        "x86-64-v4": Host(_TRIPLE, "x86-64-v4", _V4, 64),
    }
)
"""The feature levels of the x86-64 psABI that have vectors of 32 and of 64 bytes."""

_COMMENT: Final = re.compile(r"[ \t]*#.*$", re.MULTILINE)
_INSTRUCTION: Final = re.compile(r"^\t([a-z]\w*)", re.MULTILINE)
_SPILL: Final = re.compile(r"(\d+)-byte (?:Folded )?(?:Spill|Reload)")


class Assembly(Struct, frozen=True):
    """What LLVM made of one program."""

    code_hash: str
    """blake2b of instructions and constants, 32 digits."""
    spill_bytes: int
    """Bytes that spills write and read, each as often as it stands in the code."""
    opcodes: tuple[tuple[str, int], ...]
    """Counts by mnemonic, most frequent first."""


def compile(text: str, processor: str) -> Assembly:  # noqa: A001 - as nvptx.compile
    """Compile LLVM IR ``text`` for a processor of ``PROCESSORS``.

    Raises:
        LLVMError: the text is not a legal LLVM program.
        DeviceError: this LLVM makes no code for such a processor.
    """
    machine = _machine(processor)
    with refusing():
        module = llvm.parse_assembly(text)
        module.verify()
    with without_strength_reduction():
        assembly: str = machine.emit_assembly(module)
    return read(assembly)


def read(assembly: str) -> Assembly:
    """Read what LLVM wrote with its comments, which name the spills."""
    plain = _COMMENT.sub("", assembly)
    counts = Counter(_INSTRUCTION.findall(plain))
    return Assembly(
        blake2b(plain.encode(), digest_size=16).hexdigest(),
        sum(map(int, _SPILL.findall(assembly))),
        tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
    )


@Once
def _machine(processor: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    host = PROCESSORS[processor]
    try:
        target = llvm.Target.from_triple(host.triple)
    except RuntimeError as error:
        raise DeviceError(
            f"this LLVM makes no code for {processor} ({error}): install llvmlite's "
            "own wheel, which does for every processor."
        ) from error
    machine = target.create_target_machine(
        cpu=host.cpu, opt=2, reloc="pic", codemodel="small"
    )
    machine.set_asm_verbosity(True)
    return machine

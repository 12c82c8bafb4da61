"""NVIDIA's machine code of sm_80 to sm_120, read as far as counting needs.

An instruction has 16 bytes. The low 9 bits are its operation, the next 3 the form of
its operands. The table is what ``nvdisasm`` 13.5 says, and is held against it by tests.
Where forms of one operation have names of their own it has one for all: UTCMMA for
UTCHMMA, UTCQMMA and UTCIMMA, ERRBAR for CGAERRBAR too, UCGABAR for its two halves.
"""

from __future__ import annotations

import struct
from collections import Counter

from msgspec import Struct

_NAMES = """
    002 MOV 003 P2R 005 CS2R 006 VOTE 007 SEL 008 FSEL 009 FMNMX 00b FSETP 00c ISETP
    00f VIMNMX3 010 IADD3 011 LEA 012 LOP3 013 IABS 014 VABSDIFF 015 VABSDIFF4 016 PRMT
    017 IMNMX 019 SHF 01c PLOP3 020 FMUL 021 FADD 023 FFMA 024 IMAD 025 IMAD 026 IDP
    027 IMAD 028 DMUL 029 DADD 02a DSETP 02b DFMA 02d PREEXIT 02e ACQBULK 02f ELECT
    030 HADD2 031 HFMA2 032 HMUL2 035 IADD 036 VIADD 037 IMMA 03a MOVM 03b LDSM
    03c HMMA 03d BMMA 03e F2FP 03f DMMA 040 HMNMX2 044 STSM 045 I2FP 046 VIADDMNMX
    048 VIMNMX 054 UFADD 05e UI2FP 07a QMMA 07f OMMA 082 UMOV 086 VOTEU 08c UISETP
    090 UIADD3 091 ULEA 092 ULOP3 096 UPRMT 099 USHF 0b9 ULDC 0bd UFLO 0bf UPOPC 0ca R2UR
    0cb CS2UR 0cc CREDUX 100 FLO 101 BREV 102 FCHK 104 F2F 105 F2I 106 I2F 107 FRND 108 MUFU
    109 POPC 110 F2F 111 F2I 112 I2F 118 NOP 119 S2R 11a DEPBAR 11c B2R 11d BAR
    141 BSYNC 143 CALL 144 CALL 145 BSSY 146 YIELD 147 BRA 148 WARPSYNC 149 BRX
    14d EXIT 14e LEPC 150 RET 15c BPT 15d NANOSLEEP 160 TEX 163 TLD4 166 TLD 16c TXD
    16f TXQ 17e LDG 17f STG 180 LD 181 LDG 182 LDC
    183 LDL 184 LDS 185 ST 186 STG 187 STL 188 STS 189 SHFL 18c ATOMS 18d ATOMS
    18f CCTL 192 MEMBAR 199 SULD 19b SUST 19d SUST 19f SURED 1a1 MATCH 1a3 ATOMG 1a6 REDG 1a7 SYNCS 1a8 ATOMG 1ab ERRBAR
    1ac LDCU 1ae LDGSTS 1af LDGDEPBAR 1b2 SYNCS 1b4 UTMALDG 1b5 UTMASTG
    1b7 UTMACMDFLUSH 1ba UBLKCP 1c3 S2UR 1c4 REDUX 1c5 WARPGROUP 1c6 FENCE 1c7 UCGABAR
    1e3 UTCATOMSWS 1e9 UTCBAR 1ea UTCMMA 1ee LDTM 1f0 HGMMA 1f1 IGMMA 1f2 BGMMA
    1f3 QGMMA
""".split()  # noqa: SIM905 - a table, not a list one a line

_MNEMONICS = {
    int(number, 16): name
    for number, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)
}

_REUSED = 0x035
"""IADD from sm_120 on; HFMA2, which has another number there, before."""

_LDG, _STG, _LDGSTS = 0x181, 0x186, 0x1AE
_LDG_256, _STG_256 = 0x17E, 0x17F


class Mix(Struct, frozen=True):
    """How often a kernel's code has which instruction."""

    opcodes: tuple[tuple[str, int], ...]
    """Counts by mnemonic, most frequent first; an unknown operation reads ``0x1ff``."""
    loads_128: int
    """Global loads of 16 bytes or more a thread, asynchronous copies among them."""
    stores_128: int


def mix(code: bytes, architecture: int) -> Mix:
    """Count the instructions of ``code`` for ``sm_<architecture>``.

    Raises:
        struct.error: the code ends within an instruction.
    """
    # Of each instruction: its operation, and where most keep the width of an access.
    kinds = Counter(
        (low & 0x1FF, high >> 9 & 7) for low, high in struct.iter_unpack("<QQ", code)
    )
    opcodes: Counter[str] = Counter()
    loads = stores = 0
    for (number, width), count in kinds.items():
        opcodes[_mnemonic(number, architecture)] += count
        loads += count * _is_wide_load(number, width, architecture)
        stores += count * ((number, width) == (_STG, 6) or number == _STG_256)
    ordered = sorted(opcodes.items(), key=lambda item: (-item[1], item[0]))
    return Mix(tuple(ordered), loads, stores)


def _mnemonic(number: int, architecture: int) -> str:
    if number == _REUSED and architecture < 120:
        return "HFMA2"
    return _MNEMONICS.get(number) or f"0x{number:03x}"


def _is_wide_load(number: int, width: int, architecture: int) -> bool:
    if number == _LDGSTS and architecture >= 100:
        return width >> 1 == 2  # the field is two bits there, one place up
    return (number in {_LDG, _LDGSTS} and width == 6) or number == _LDG_256

"""What a cubin says of its kernels, read from its bytes without any tool.

A cubin is an ELF file. Its layout is not documented; what is read here was found with
``cuobjdump`` and ``nvdisasm`` of CUDA 13.5, and tests hold it against them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from msgspec import Struct

from steelyard_device import sass
from steelyard_device.errors import DeviceError

_CUDA_MACHINE = 190
_SYMBOLS, _STRINGS, _NO_BITS = 2, 3, 8
_FUNCTION, _ENTRY = 2, 0x10

# Attributes in .nv.info, named EIATTR_* by cuobjdump.
_MAX_THREADS, _REQUIRED_THREADS = 0x05, 0x10
_FRAME_SIZE, _REGISTERS, _BARRIERS = 0x11, 0x2F, 0x4C
_SIZED = 4
"""The format of an attribute whose value has a size; all others are two bytes."""

_SYSTEM_SHARED = b"\0.nv.reservedSmem.offset0\0"
_SYSTEM_BYTES = 1024
"""From sm_90 on, cubins with that symbol count the system's share of a block's shared
memory with each kernel's own."""


class Resources(Struct, frozen=True):
    """What one kernel takes; memory in bytes, instructions as they stand in the code.

    What it spilled stands in the compiler's log alone (``nvrtc.KernelLog``).
    """

    arch: str
    """``sm_90``: the header does not say of which variant, as in ``sm_90a``."""
    registers: int
    """Per thread."""
    stack: int
    """Frame per thread."""
    shared: int
    """Static shared memory per block, without what the system reserves."""
    constant: int
    """The bank of the kernel's parameters."""
    barriers: int
    """Named barriers per block; 16, all there are, when the code computes a number."""
    max_threads: int | None
    """Threads of a block, if ``__launch_bounds__`` or ``__block_size__`` said."""
    code_bytes: int
    code_hash: str
    """blake2b of the code, 32 digits: the same for the same code under any name."""
    loads_128: int
    """Global loads of 16 bytes or more a thread, asynchronous copies among them."""
    stores_128: int
    opcodes: tuple[tuple[str, int], ...]
    """Counts by mnemonic, most frequent first."""

    def count(self, *mnemonics: str) -> int:
        """Count the instructions that have one of these mnemonics."""
        return sum(count for name, count in self.opcodes if name in mnemonics)

    @property
    def local_loads(self) -> int:
        """Loads of local memory: spills, and arrays that fit no registers."""
        return self.count("LDL")

    @property
    def local_stores(self) -> int:
        """Stores to local memory."""
        return self.count("STL")

    @property
    def tensor_core(self) -> int:
        """Matrix multiplications of any kind."""
        return sum(count for name, count in self.opcodes if name.endswith("MMA"))


def read(cubin: bytes) -> dict[str, Resources]:
    """Return what each kernel of ``cubin`` takes, by its entry.

    Raises:
        DeviceError: the bytes are not a whole cubin.
    """
    try:
        return _kernels(cubin)
    except (struct.error, LookupError, ValueError) as error:
        raise DeviceError(
            f"these {len(cubin)} bytes are not a whole cubin ({error}): compile the "
            "program again."
        ) from error


def entries(cubin: bytes) -> list[str]:
    """Return the names of the kernels of a cubin; none of what is no cubin."""
    try:
        _architecture(cubin)
        return [name for _, name, _ in _entries(_sections(cubin))]
    except (struct.error, LookupError, ValueError):
        return []


class _Section(Struct, frozen=True):
    name: str
    type: int
    size: int
    link: int
    data: bytes
    """Empty where the file holds none of it."""


def _kernels(cubin: bytes) -> dict[str, Resources]:
    architecture = _architecture(cubin)
    sections = _sections(cubin)
    named = {section.name: section for section in sections}
    values = _values(named[".nv.info"].data)
    marked = any(_SYSTEM_SHARED in s.data for s in sections if s.type == _STRINGS)
    system = _SYSTEM_BYTES if marked else 0
    found = {}
    for index, entry, home in _entries(sections):
        found[entry] = _resources(
            architecture,
            code=sections[home].data,
            registers=values[_REGISTERS, index],
            stack=values.get((_FRAME_SIZE, index), 0),
            shared=max(_size(named, f".nv.shared.{entry}") - system, 0),
            constant=_size(named, f".nv.constant0.{entry}"),
            info=named[f".nv.info.{entry}"].data,
        )
    return found


def _resources(
    architecture: int,
    *,
    code: bytes,
    registers: int,
    stack: int,
    shared: int,
    constant: int,
    info: bytes,
) -> Resources:
    """Gather what is known of one kernel."""
    own = dict(_attributes(info))
    threads = own.get(_REQUIRED_THREADS) or own.get(_MAX_THREADS)
    mix = sass.mix(code, architecture)
    return Resources(
        arch=f"sm_{architecture}",
        registers=registers,
        stack=stack,
        shared=shared,
        constant=constant,
        barriers=int.from_bytes(own.get(_BARRIERS, b""), "little"),
        max_threads=_product(threads) if threads else None,
        code_bytes=len(code),
        code_hash=hashlib.blake2b(code, digest_size=16).hexdigest(),
        loads_128=mix.loads_128,
        stores_128=mix.stores_128,
        opcodes=mix.opcodes,
    )


def _product(extents: bytes) -> int:
    x, y, z = struct.unpack("<III", extents)
    product: int = x * y * z
    return product


def _size(sections: dict[str, _Section], name: str) -> int:
    return sections[name].size if name in sections else 0


def _architecture(cubin: bytes) -> int:
    """Return 90 for sm_90, and check what the file claims to be."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it does not begin as a 64-bit ELF file does")
    (machine,) = struct.unpack_from("<H", cubin, 18)
    if machine != _CUDA_MACHINE:
        raise ValueError(f"it is for machine {machine}, CUDA's is {_CUDA_MACHINE}")
    flags: int
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return flags >> 8 & 0xFF


def _sections(cubin: bytes) -> list[_Section]:
    """Return the sections of the file, in its order."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    programs, program_count, size, count, names = struct.unpack_from(
        "<HHHHH", cubin, 54
    )
    (program_table,) = struct.unpack_from("<Q", cubin, 32)
    _cut(cubin, program_table, programs * program_count)
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", _cut(cubin, table + size * number, size))
        for number in range(count)
    ]
    bodies = [
        b"" if header[1] == _NO_BITS else _cut(cubin, header[4], header[5])
        for header in headers
    ]
    return [
        _Section(_text(bodies[names], header[0]), header[1], header[5], header[6], body)
        for header, body in zip(headers, bodies, strict=True)
    ]


def _cut(data: bytes, offset: int, size: int) -> bytes:
    """Return ``size`` bytes at ``offset``; a slice would return what there is."""
    if offset + size > len(data):
        raise ValueError(f"it lacks bytes {offset} to {offset + size}")
    return data[offset : offset + size]


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()


def _entries(sections: list[_Section]) -> Iterator[tuple[int, str, int]]:
    """Yield each kernel's symbol number, its name and the section of its code."""
    tables = [section for section in sections if section.type == _SYMBOLS]
    if not tables:
        raise ValueError("it has no symbols")
    symbols = tables[0]
    names = sections[symbols.link].data
    for index, (name, kind, other, home, _, _) in enumerate(
        struct.iter_unpack("<IBBHQQ", symbols.data)
    ):
        if kind & 0xF == _FUNCTION and other & _ENTRY:
            yield index, _text(names, name), home


def _values(info: bytes) -> dict[tuple[int, int], int]:
    """Return the attributes that say one number of one symbol, by both."""
    found = {}
    for attribute, value in _attributes(info):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            found[attribute, symbol] = number
    return found


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of an ``.nv.info`` section with their values."""
    offset = 0
    while offset < len(info):
        format_, attribute, size = struct.unpack_from("<BBH", info, offset)
        if format_ == _SIZED:
            yield attribute, _cut(info, offset + 4, size)
            offset += 4 + size
        else:
            yield attribute, info[offset + 2 : offset + 4]
            offset += 4

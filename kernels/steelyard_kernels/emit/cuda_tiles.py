"""Tensor cores on tiles in shared memory, bulk copies and mbarriers, as inline PTX.

Each effect of the loop IR calls a device function of its own name, in which a buffer and
its index are one shared address. For sm_90a; PTX ISA, "Asynchronous warpgroup-level
matrix instructions", "mbarrier", "cp.async.bulk.tensor" and "st.async".
"""

from __future__ import annotations

from typing import Final

from steelyard_kernels import dtypes
from steelyard_kernels.ir.effects import AXES
from steelyard_kernels.ir.loops import Multiply, Tile

TENSOR: Final = """#ifndef TENSOR_PARAMETER
#define TENSOR_PARAMETER
struct alignas(64) Tensor { unsigned char words[128]; };
#endif
"""
"""What a tensor is passed as: the driver's CUtensorMap, without its header."""

DYNAMIC: Final = "extern __shared__ __align__(1024) unsigned char dynamic_memory[];"
SWIZZLES: Final = {128: 1, 64: 2, 32: 3}
"""The field of a tile's descriptor by the bytes of a row."""


def _asm(head: str, instruction: str, operands: str = "") -> str:
    """Return a function of one instruction that no access of memory may pass."""
    return f'{head} {{\n  asm volatile("{instruction}" :: {operands}: "memory");\n}}'


def _wait(name: str, scope: str) -> str:
    return f"""void {name}(unsigned barrier, unsigned parity) {{
  unsigned over;
  do {{
    asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity{scope}.shared::cta.b64 "
      "p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
      : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  }} while (!over);
}}"""


def _copy(name: str, *corner: str) -> str:
    numbers = [f"%{k}" for k in range(3, 3 + len(corner))]
    taken = [f"int {each}" for each in corner]
    given = [f'"r"({each})' for each in corner]
    how, mask = "", ""
    if name == "tensor_share":
        taken = ["int blocks", *taken]
        given.append('"h"((unsigned short)blocks)')
        how, mask = ".multicast::cluster", f", %{3 + len(corner)}"
    return _asm(
        f"void {name}_{len(corner)}(unsigned to, const void *from, "
        f"unsigned barrier, {', '.join(taken)})",
        f"cp.async.bulk.tensor.{len(corner)}d.shared::cluster.global.tile"
        f".mbarrier::complete_tx::bytes{how} "
        f"[%0], [%1, {{{', '.join(numbers)}}}], [%2]{mask};",
        f'"r"(to), "l"(from), "r"(barrier), {", ".join(given)} ',
    )


def _far_one(ctype: str, letter: str, size: int) -> str:
    return _asm(
        f"void store_far_one(unsigned to, {ctype} value, unsigned rank, "
        "unsigned barrier)",
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes.b{size} [%0], %1, [%2];",
        f'"r"(far_address(to, rank)), "{letter}"(value), '
        '"r"(far_address(barrier, rank)) ',
    )


FAR_ONE: Final = tuple(
    _far_one(*each)
    for each in (
        ("float", "f", 32),
        ("int", "r", 32),
        ("unsigned int", "r", 32),
        ("double", "d", 64),
        ("long long", "l", 64),
        ("unsigned long long", "l", 64),
    )
)
"""A scalar's store in another block: a function for each type."""

FAR: Final = tuple(
    _asm(
        f"void store_far(unsigned to, {kind} a, {kind} b, {kind} c, {kind} d, "
        "unsigned rank, unsigned barrier)",
        f"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.{of} [%0], "
        "{%1, %2, %3, %4}, [%5];",
        '"r"(far_address(to, rank)), '
        + "".join([f'"{letter}"({each}), ' for each in "abcd"])
        + '"r"(far_address(barrier, rank)) ',
    )
    for kind, of, letter in (("float", "f32", "f"), ("int", "b32", "r"))
)
"""Four sums' store in another block: a function for each type."""

# Above its lowest 18 bits an address has the block's rank in its cluster, which is no
# part of a descriptor. What a thread of another block waits for is only read, so that its arrivals release
# nothing: `cluster_arrive` is relaxed, and ordered behind `mbarrier_publish`.
HELPERS: Final = {
    "shared_address": """unsigned shared_address(const void *at) {
  return (unsigned)__cvta_generic_to_shared(at);
}""",
    "tile": """unsigned long long tile(unsigned address, unsigned long long form) {
  return form + ((address & 0x3ffff) >> 4);
}""",
    "far_address": """unsigned far_address(unsigned address, unsigned rank) {
  unsigned far;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(address), "r"(rank));
  return far;
}""",
    "mbarrier_init": _asm(
        "void mbarrier_init(unsigned barrier, unsigned arrivals)",
        "mbarrier.init.shared::cta.b64 [%0], %1;",
        '"r"(barrier), "r"(arrivals) ',
    ),
    "mbarrier_publish": _asm(
        "void mbarrier_publish()", "fence.mbarrier_init.release.cluster;"
    ),
    "mbarrier_expect": _asm(
        "void mbarrier_expect(unsigned barrier, unsigned bytes)",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;",
        '"r"(barrier), "r"(bytes) ',
    ),
    "mbarrier_arrive": _asm(
        "void mbarrier_arrive(unsigned barrier)",
        "mbarrier.arrive.shared::cta.b64 _, [%0];",
        '"r"(barrier) ',
    ),
    "mbarrier_arrive_far": _asm(
        "void mbarrier_arrive_far(unsigned barrier, unsigned rank)",
        "mbarrier.arrive.shared::cluster.b64 _, [%0];",
        '"r"(far_address(barrier, rank)) ',
    ),
    "mbarrier_wait": _wait("mbarrier_wait", ""),
    "mbarrier_wait_far": _wait("mbarrier_wait_far", ".acquire.cluster"),
    "cluster_arrive": _asm("void cluster_arrive()", "barrier.cluster.arrive.relaxed;"),
    "cluster_wait": _asm("void cluster_wait()", "barrier.cluster.wait.acquire;"),
    "async_publish": _asm("void async_publish()", "fence.proxy.async.shared::cta;"),
    "tensor_prefetch": _asm(
        "void tensor_prefetch(const void *tensor)",
        "prefetch.tensormap [%0];",
        '"l"(tensor) ',
    ),
    **{
        f"{name}_{n}": _copy(name, *"xyzuv"[:n])
        for name in ("tensor_copy", "tensor_share")
        for n in AXES
    },
    "mma_begin": _asm("void mma_begin()", "wgmma.fence.sync.aligned;"),
    "mma_commit": _asm("void mma_commit()", "wgmma.commit_group.sync.aligned;"),
}
STATED: Final = {
    "mma_wait": "wgmma.wait_group.sync.aligned",
    "mma_done": "wgmma.wait_group.sync.aligned",
    "computed": "",  # but a place in the order of what is volatile
    "registers_leave": "setmaxnreg.dec.sync.aligned.u32",
    "registers_take": "setmaxnreg.inc.sync.aligned.u32",
}
"""Instructions whose number is known to the assembler."""

CALLS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    ("store_far", "store_far_one", "mbarrier_arrive_far"), ("far_address",)
)
"""What a helper calls besides."""


WORD: Final = 4  # bytes of a register


HALVES_DEPTH: Final = 16
KINDS: Final = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.float8_e4m3fn: "e4m3",
    dtypes.float8_e5m2: "e5m2",
    dtypes.float32: "tf32",
    dtypes.int8: "s8",
    dtypes.uint8: "u8",
}
"""What tensor cores multiply, as PTX spells it."""
_SUMS: Final = ("float", "f32", "f"), ("int", "s32", "r")
FORMS: Final = {
    spelled: (32 // dtype.bytes, *_SUMS[dtype.kind == "int"])
    for dtype, spelled in KINDS.items()
}
"""By what is multiplied: an instruction's depth, and how sums are spelled."""


def multiply(
    node: Multiply, sums: str, tiles: list[str], more: str
) -> tuple[str, str, str]:
    """Return the statement of a product of tiles, and the helpers that it calls."""
    count, (left,) = int(getattr(node.sums.extent, "value", 0)), node.rows
    kinds = "_".join(KINDS[tile.buffer.dtype] for tile in (left, node.columns))
    size = left.buffer.dtype.bytes
    rows = f"{left.across:d}" if isinstance(left, Tile) else "r"
    name = f"multiply_{2 * count}_{kinds}_{rows}{node.columns.across:d}"
    described = [
        f"tile(shared_address({at}), {_form(tile):#x}ull) + {tile.first * size >> 4}"
        if isinstance(tile, Tile)
        else f"{at} + {tile.first * size // WORD}"
        for at, tile in zip(tiles, (left, node.columns), strict=True)
    ]
    return f"{name}({sums}, {', '.join(described)}, {more});", name, "tile"


def _form(tile: Tile) -> int:
    """Return a tile's descriptor but for its address, all lengths in 16 bytes."""
    swizzle = SWIZZLES[tile.swizzle]
    return tile.leading >> 4 << 16 | tile.stride >> 4 << 32 | swizzle << 62


def stated(op: str, number: int, sums: list[str], letter: str) -> str:
    """Return an instruction with its number; a `letter` says what registers sums have.

    What waits for products names their sums, so that no use of them comes before.
    """
    ready = op != "mma_wait" or not number
    held = ", ".join(f'"+{letter}"({each})' for each in sums if ready)
    instruction = f"{STATED[op]} {number};" if STATED[op] else ""
    return f'asm volatile("{instruction}" : {held} :: "memory");'


def helper(name: str) -> str:
    """Return the device function of a product of tiles, by the name that says its form."""
    _, columns, left, right, across = name.split("_")
    count, (depth, ctype, of, letter) = int(columns) // 2, FORMS[left]
    sums = ", ".join(f"%{k}" for k in range(count))
    held = ", ".join(f'"+{letter}"(sums[{k}])' for k in range(count))
    kept = across[0] == "r"
    # Signs and, of halves, which tiles lie across: integers have neither.
    halves = across.replace("r", "") if depth == HALVES_DEPTH else ""
    forms = "".join([f", {n}" for n in ("11" + halves) * (of == "f32")])
    parts = 4 if kept else 1  # words of the rows: in registers, or their descriptor
    rows = ", ".join(f"%{count + k}" for k in range(parts))
    given = ", ".join(f'"r"(rows[{k}])' for k in range(parts)) if kept else '"l"(rows)'
    return f"""void {name}({ctype} (&sums)[{count}], {"const unsigned *" if kept else "unsigned long long "}rows,
    unsigned long long columns, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{count + parts + 1}, 0; "
    "wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{of}.{left}.{right} "
    "{{{sums}}}, {f"{{{rows}}}" if kept else rows}, %{count + parts}, p{forms}; }}"
    : {held} : {given}, "l"(columns), "r"(more) : "memory");
}}"""

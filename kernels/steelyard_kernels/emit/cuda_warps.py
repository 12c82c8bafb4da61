"""Tensor cores by warps, as inline PTX: `ldmatrix` and `mma.sync`, from sm_80 on.

PTX ISA, "Matrix fragments for mma.m16n8k16", of "mma.m16n8k8" and "mma.m16n8k32", and
"ldmatrix": a lane names a row of 16 bytes for the others and gets 4 bytes of a row, which
are as many elements as every kind of product has from a lane. Tiles lie as wgmma has
them, so that sums and fragments of both do.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from steelyard_kernels.emit.cuda_tiles import FORMS, KINDS
from steelyard_kernels.ir.loops import Multiply, Tile

HALF: Final = 2  # bytes
WORD: Final = 4  # bytes of a register
PAIR: Final = 16  # columns of two products: one ldmatrix brings both
NAME: Final = "warps_"


def _matrices(name: str, how: str) -> str:
    return f"""void {name}(unsigned (&to)[4], unsigned at) {{
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{how}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
    : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}}"""


def _product(left: str, right: str) -> str:
    depth, ctype, of, letter = FORMS[left]
    held = ", ".join([f'"+{letter}"(sums[{k}])' for k in range(4)])
    return f"""void product_{left}_{right}({ctype} *sums, const unsigned *rows, unsigned low, unsigned high) {{
  asm("mma.sync.aligned.m16n8k{depth}.row.col.{of}.{left}.{right}.{of} {{%0, %1, %2, %3}}, "
    "{{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
    : {held}
    : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(low), "r"(high));
}}"""


HELPERS: Final = {
    "copy_commit": """void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}""",
    "matrices": _matrices("matrices", ""),
    "matrices_across": _matrices("matrices_across", ".trans"),
    **{
        f"product_{left}_{right}": _product(left, right)
        for left, right in product(FORMS, FORMS)
        if FORMS[left] == FORMS[right]
    },
    # Where a byte of a tile lies, whose rows have so many units of 16 bytes.
    "swizzled": """unsigned swizzled(unsigned at, unsigned units) {
  return at ^ (at >> 7 & (units - 1)) << 4;
}""",
}


def multiply(node: Multiply, sums: str, tiles: list[str], more: str) -> tuple[str, ...]:
    """Return the statement of products of tiles, and the helpers that it calls."""
    count = int(getattr(node.sums.extent, "value", 0)) // len(node.rows)
    kinds = "_".join(KINDS[tile.buffer.dtype] for tile in (node.rows[0], node.columns))
    size = node.columns.buffer.dtype.bytes
    every = [tile for tile in (*node.rows, node.columns) if isinstance(tile, Tile)]
    forms = [_form(tile) for tile in every]
    left = forms[0] if len(every) > 1 else "r"
    name = f"{NAME}{2 * count}_{kinds}_{len(node.rows)}_{left}_{forms[-1]}"
    given = [
        f"shared_address({at}) + {_far(tile)}"
        if isinstance(tile, Tile)
        else f"{at} + {tile.first * size // WORD}"
        for at, tile in zip(tiles, (*node.rows, node.columns), strict=True)
    ]
    inside = [tile.first * size - _far(tile) for tile in (every[0], every[-1])]
    words = ", ".join((sums, *given, *map(str, inside), more))
    loads = {f"matrices{'_across' * tile.across}" for tile in every}
    return f"{name}({words});", name, f"product_{kinds}", "swizzled", *sorted(loads)


def _far(tile: Tile) -> int:
    """Return the bytes to where a tile begins that change none of its rows' swizzle."""
    first = tile.first * tile.buffer.dtype.bytes
    return first if tile.across else first - first % tile.swizzle


def _form(tile: Tile) -> str:
    return f"{tile.swizzle}x{tile.leading}" if tile.across else f"{tile.swizzle}"


def helper(name: str) -> str:
    """Return the device function of products of tiles, by the name that says its form."""
    columns, *kinds, repeats, left, right = name.removeprefix(NAME).split("_")
    ctype = FORMS[kinds[0]][1]
    each, count = int(columns) // 2, int(repeats)
    kept = left == "r"
    rows = [f"rows_{k}" for k in range(count)]
    taken = ", ".join(f"{'const unsigned *' if kept else 'unsigned '}{x}" for x in rows)
    lines = [
        f"void {name}({ctype} (&sums)[{count * each}], {taken}, unsigned columns,",
        "    unsigned row_inside, unsigned column_inside, int more) {",
        "  unsigned lane = threadIdx.x % 32, low = lane % 8, odd = lane / 8 % 2 * 8;",
        "  unsigned high = lane / 16 * 8;",
        f"  if (!more) for (int k = 0; k < {count * each}; ++k) sums[k] = 0;",
    ]
    if not kept:
        lines.append("  unsigned own = threadIdx.x / 32 % 4 * 16 + odd;")
        places = ("low + high", "own"), ("own + low", "high")
        how, at = _lane(left, *places, "row_inside", 0)
        lines += [f"  unsigned a[{count}][4];"]
        lines += [f"  {how}(a[{k}], {row} + {at});" for k, row in enumerate(rows)]
        rows = [f"a[{k}]" for k in range(count)]
    lines += ["  unsigned b[4];"]
    for first in range(0, int(columns), PAIR):
        places = ("low + odd", "high"), ("low + high", "odd")
        how, at = _lane(right, *places, "column_inside", first)
        lines.append(f"  {how}(b, columns + {at});")
        for k, row in enumerate(rows):
            to = k * each + first // 2
            lines += [
                f"  product_{'_'.join(kinds)}(sums + {to + 4 * n}, {row}, b[{2 * n}], b[{2 * n + 1}]);"
                for n in range(2)
            ]
    return "\n".join([*lines, "}"])


def _lane(
    form: str, across: tuple[str, str], plain: tuple[str, str], inside: str, first: int
) -> tuple[str, str]:
    """Return how a lane loads four matrices, and where it finds its row of them.

    That is so far down and along a tile `across`, or a `plain` one; the matrices begin
    with the column `first`.
    """
    row, _, leading = form.partition("x")
    size, units = int(row), int(row) // 16
    if leading:
        chunk, rest = divmod(first * HALF, size)
        at = f"({across[0]}) * {size} + ({across[1]}) * {HALF} + {rest}"
        return "matrices_across", f"{chunk * int(leading)} + swizzled({at}, {units})"
    at = f"({plain[0]}) * {size} + ({plain[1]}) * {HALF} + {inside}"
    return "matrices", f"{first * size} + swizzled({at}, {units})"

"""Runs the text of a product by warps: `ldmatrix` and `mma.sync` as the PTX ISA has them.

Lanes are NumPy arrays of 128 threads. The memory is of halves, from address 0 on.
"""

import re

import numpy as np

LANE = np.arange(128) % 32


def ldmatrix(memory, at, *, across):
    """Return (4, 128, 2): of four 8 x 8 matrices each lane's two neighbours of a row.

    Lane 8 m + r names where row r of matrix m lies; `across` transposes.
    """
    assert (at % 16 == 0).all()
    rows = memory[(at[:, None] // 2 + np.arange(8)).reshape(4, 4, 8, 8)]  # by warp
    rows = rows.swapaxes(2, 3) if across else rows
    lane = np.arange(32)
    pair = 2 * (lane % 4)[:, None] + np.arange(2)
    return rows[:, :, (lane // 4)[:, None], pair].swapaxes(0, 1).reshape(4, 128, 2)


def mma(sums, rows, low, high):
    """Add m16n8k16's products to (128, 4) sums in place."""
    lane = np.arange(32)
    first, pair = lane // 4, 2 * (lane % 4)[:, None] + np.arange(2)
    for warp in range(4):
        here = slice(32 * warp, 32 * warp + 32)
        a, b = np.empty((16, 16)), np.empty((16, 8))
        for k in range(4):
            a[(first + 8 * (k % 2))[:, None], pair + 8 * (k // 2)] = rows[k][here]
        for k, part in enumerate((low, high)):
            b[pair + 8 * k, first[:, None]] = part[here]
        c = a @ b
        both = [c[(first + 8 * k)[:, None], pair] for k in range(2)]
        sums[here] += np.concatenate(both, axis=1)


def run(text, memory, count, given):
    """Run a helper's text on its arguments by name; return (128, count) sums."""
    names = dict(given) | {"lane": LANE}
    sums, held = np.zeros((128, count)), {}

    def swizzled(at, units):
        return at ^ (at >> 7 & (units - 1)) << 4

    def value(expression):
        thread = expression.replace("threadIdx.x", "thread").replace("/", "//")
        scope = {**names, "thread": np.arange(128), "swizzled": swizzled}
        return np.broadcast_to(eval(thread, {}, scope), 128)

    for line in text.splitlines()[2:-1]:
        if found := re.fullmatch(r"  (matrices\w*)\((\w[^,]*), (.*)\);", line):
            how, to, at = found.groups()
            held[to] = ldmatrix(memory, value(at), across=how != "matrices")
        elif found := re.fullmatch(
            r"  product_\w+\(sums \+ (\d+), (.*), b\[(\d)\], b\[(\d)\]\);", line
        ):
            first, rows, low, high = found.groups()
            own = sums[:, int(first) : int(first) + 4]
            mma(own, held[rows], held["b"][int(low)], held["b"][int(high)])
        elif line.startswith("  unsigned ") and "=" in line:
            for name, made in re.findall(r"(\w+) = ([^,;]+)", line):
                names[name] = value(made)
        else:
            assert line.startswith(("  unsigned a", "  unsigned b", "  if (!more)"))
    return sums

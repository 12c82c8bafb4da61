"""The corpus' programs of small values, loops, chains, gradients and updates."""

from __future__ import annotations

import numpy as np
from corpus import Row

from steelyard_kernels import array as xp
from steelyard_kernels import random
from steelyard_kernels.grad import grad, value_and_grad
from steelyard_kernels.vmap import vmap

FLOATS = "float32 float64"
OVERWRITTEN = {"*": "is overwritten"}


def reshaped(x):
    """Change shapes in registers: rows, broadcasts, reductions of what was computed."""
    y = x * 2.0
    (first, *_), size = x.shape, int(np.prod(x.shape))
    flat, column = xp.reshape(y, (size,)), xp.reshape(y, (size, 1))
    return {
        "flat": flat,
        "outer": flat + column,
        "turned": column.T - flat,
        "last": y[first - 1] + y[0],
        "total": xp.sum(flat * flat, axis=-1),
        "spread": xp.var(y, axis=-1, keepdims=True) + y,
        "least": xp.min(column, axis=-1) + xp.max(flat, axis=-1),
        "counted": xp.arange(size) + 1,
    }


def products(a, b):
    """Multiply small matrices both ways, reshape and reduce."""
    c = a @ b
    m, n = c.shape
    d = xp.sum(xp.maximum(c, 0.0), axis=-1) + xp.max(a, axis=-1)
    return c.T @ a, d, xp.reshape(c, (m * n,)), (a * 2.0) @ (b + 1.0).T.T


def no_products(a, b, c):
    """Sum over nothing, which is 0, and return a value without elements."""
    return a @ b, xp.reshape(c, (3, 0)), a @ b + xp.sum(a, axis=-1, keepdims=True)


def columns(x):
    """Take the variance of columns, which lie in registers."""
    var = xp.var(x.T, axis=-1, keepdims=True)
    return var, (x.T - xp.mean(x.T, axis=-1, keepdims=True)) * var


def network(x, noise, w1, w2):
    """Iterate a small network with noise that is read; keep every state."""

    def step(x, n):
        x = xp.tanh(xp.tanh(x @ w1) @ w2) + n
        return x, x

    return xp.scan(step, x, noise)


def linear(x, noise, w):
    """Do so without functions: what nvptx has too."""

    def step(x, n):
        x = xp.maximum(x @ w, -1.0) * 0.25 + n
        return x, (x, xp.max(x, axis=-1))

    last, (every, tops) = xp.scan(step, x, noise)
    return last, every, tops


def drawn(x, key):
    """Iterate with something that only the index decides: it can go ahead."""

    def step(x, i):
        noise = xp.cospi(i.astype("float64") * key)
        far = noise * noise - noise * key + xp.exp(noise)
        return x * 0.5 + far.astype(x.dtype), x

    return xp.scan(step, x, xp.arange(70))


def counting(x, *, n=1):
    """Run as often as a launch says."""

    def step(carry, _):
        total, turns = carry
        return (total + turns, turns + 1), None

    return xp.scan(step, (x, 0), length=n)[0]


def until(x, *, most=20):
    """End before the iteration that the condition forbids."""

    def body(carry):
        y, turns, total = carry
        return y + 1.0, turns + 1, total + y * 0.5

    return xp.while_loop(lambda c: c[0] < 7.0, body, (x, 0, x), most)


def begins_again(x):
    """Its condition would hold once more behind the one that it ended at."""
    return xp.while_loop(lambda c: (c < 2.9) | (c > 3.5), lambda c: c + 1.0, x, 20)


def both_ways(x, xs):
    """Read rows of an input and of what an earlier loop stacked, from either end."""

    def first(x, row):
        x = x * 0.5 + row
        return x, x

    def second(x, pair):
        row, kept = pair
        x = x * 0.5 - kept * row
        return x, (x, xp.sum(kept, axis=-1))

    last, kept = xp.scan(first, x, xs)
    back, _ = xp.scan(second, last, (xs, kept), reverse=True)
    last, (ys, sums) = xp.scan(second, last, (xs, kept))
    return back, last, ys, sums


def viewed(x, xs):
    """Read columns, and rows from the last; carry what is shifted, cut and padded."""

    def step(x, pair):
        column, row = pair
        pile = xp.stack([xp.roll(x, 1), column, xp.pad(row[1:], ((1, 0),))], axis=0)
        x = xp.sum(pile, axis=0) * 0.25
        return x, (xp.flip(x), xp.max(xp.abs(pile[:, ::2]), axis=(0, 1)))

    last, (every, tops) = xp.scan(step, x, (xs.T, xs[::-1].T))
    return last, every, tops, xp.mean(every, axis=0)


def reshaped_rows(x):
    """Read rows of six by five elements that lie in another shape, and keep them so."""

    def step(c, row):
        c = c * 0.5 + row
        return c, c

    rows = xp.reshape(x, (6, 5))
    last, kept = xp.scan(step, xp.zeros((5,), x.dtype), rows)
    back = xp.scan(step, xp.zeros((3,), x.dtype), xp.reshape(kept, (10, 3)))[0]
    return last, back


def looked_up(x, table, tokens, pairs):
    """Take rows and elements at places that are read, computed and carried."""

    def step(carry, pair):
        x, at = carry
        token, row = pair
        x = x * 0.5 + xp.sum(xp.take(table, token, axis=0), axis=0)
        turned = xp.take(x * 2.0, xp.flip(row), axis=0)
        at = (at * 3 + token) % 7
        return (x + xp.sum(turned) * 0.125, at), xp.take(x, at, axis=0)

    start = (x, xp.zeros((1,), "int64"))
    (x, at), kept = xp.scan(step, start, (xp.reshape(tokens, (-1, 1)), pairs))
    return x, at, kept


def loop_in_loop(x, xs):
    """Keep rows of an inner loop in scratch memory, read back by the next."""

    def turn(x, row):
        def forth(y, i):
            y = y * 0.5 + row * xp.astype(i, "float32")
            return y, y * 2.0

        y, kept = xp.scan(forth, x, xp.arange(5))
        z, _ = xp.scan(lambda z, k: (z * 0.25 + k, None), y, kept, reverse=True)
        return z, xp.sum(z, axis=-1)

    return xp.scan(turn, x, xs)


def gathered(x):
    """Compute with what a loop stacked once it has ended."""
    _, ys = xp.scan(lambda x, i: (x * 0.5, x), x, xp.arange(6))
    return ys, ys * 2.0, xp.sum(ys, axis=-1)


def carried(x):
    """Carry integers that wrap, bools, halves that round."""

    def step(x, i):
        if x.dtype.kind == "bool":
            x = xp.logical_not(x)
        elif x.dtype.kind == "int":
            x = x * 77 + 123
        else:
            x = x * 0.75 + 0.5
        return x, x

    return xp.scan(step, x, xp.arange(11))


def halving(x, y):
    """Halve until all is small: every chain its own number of times."""

    def step(carry):
        x, count = carry
        return x * 0.5 + y * 0.25, count + 1

    start = (x, xp.zeros_like(xp.sum(x)).astype("int64"))
    return xp.while_loop(lambda c: xp.max(xp.abs(c[0])) > 1.0, step, start, 1000)


def halves(_):
    """Return chains that take no turn, many, or are not numbers."""
    x = np.array([[0.5, 0.1, 0], [7, -900, 3], [np.nan, 1, 1], [33, 0, 0], [2, 2, -3]])
    return [x, np.full_like(x, 0.125)]


def of_own_length(x, most, w):
    """Turn each chain its own number of times, given in memory."""
    return xp.fori_loop(0, most, lambda i, x: x @ w + 1.0, x)


def lengths(rng):
    """Return states, how often each goes on, and weights."""
    counts = np.array([0, 3, 1, 7, 2] * 4)
    return [rng.uniform(-1, 1, (20, 3)), counts, rng.uniform(-0.3, 0.3, (3, 3))]


def picked(rng):
    """Return rows and which is wanted, some out of range."""
    return [rng.standard_normal((5, 4)), np.array([2, 0, 3, 9, -1])]


def tokens(rng):
    """Return a state, a table, which of its rows, some out of range, and of x."""
    which, pairs = np.array([2, 0, 9, -1, 3, 3]), rng.integers(0, 5, (6, 2))
    return [np.ones(5), rng.uniform(-1, 1, (4, 5)), which, pairs]


def noisy(x, key):
    """Draw bits and numbers of a key and a counter, in a loop and as an array."""
    last = xp.fori_loop(0, 5, lambda i, x: x * 0.5 + random.normal(key, i, (3,)), x)
    return last, random.bits(key, 7, (5,)), random.uniform(key, 3, (2, 3), "float64")


def key_of(rng):
    """Return a state and a key of any bits."""
    return [np.zeros(3, np.float32), rng.integers(-(2**62), 2**62, ())]


def loss(w1, w2, x):
    """Return a loss of two layers."""
    off = xp.maximum(x @ w1, 0.0) @ w2 - 1.0
    return xp.sum(xp.sum(off * off, axis=-1), axis=-1)


def trained(w1, w2, x):
    """Return a loss and its gradients; update the weights in place."""
    value, (by_w1, by_w2) = value_and_grad(loss, (0, 1))(w1, w2, x)
    return {"value": value, "w1": w1 - by_w1 * 0.1, "w2": w2 - by_w2 * 0.1}


def through_time(x, w):
    """Return the gradients of a loop: one there, and one back."""

    def last(x, w):
        def step(x, i):
            return x @ w + xp.sin(i.astype("float32")) * x, x

        return xp.sum(xp.scan(step, x, xp.arange(9))[0])

    value, found = value_and_grad(last, (0, 1))(x, w)
    return (value, *found)


def through_views(x, xs):
    """Return the gradients of a loop of views by its start and its rows."""

    def total(x, xs):
        last, every, tops, mean = viewed(x, xs)
        return xp.sum(last * mean) + xp.sum(every) + xp.sum(tops)

    value, found = value_and_grad(total, (0, 1))(x, xs)
    return (value, *found)


SMALL = [
    Row("reshaped", reshaped, "1; 5; 3,4; 4,3; 2,17; 17,2", FLOATS),
    Row(
        "products",
        products,
        "7,33 33,4; 3,5 5,2; 1,1 1,1; 2,3 3,40; 3,5 5,2; 5,16 16,17",
        "float32 float16 float64",
        data="unit",
    ),
    Row(
        "batched product", lambda a, b: a @ b, "2,3,7 7,5; 3 3,5; 20,1 1,2", data="unit"
    ),
    Row("no products", no_products, "2,0 0,3 0,3"),
    Row("columns", columns, "7,4; 1,5; 37,3"),
    Row("rowwise", lambda x, i: (x[i] + x[0], x.T * 2.0), "4,3 ():int64"),
    Row("turned", lambda x: (x.T + 1, xp.sum(x.T, -1), x[0] - x[-1]), "7,33; 8,8; 1,5"),
]
LOOPS = [
    Row(
        "network",
        network,
        "1 0,1 1,12 12,1; 3 7,3 3,40 40,3; 2 1,2 2,67 67,2",
        FLOATS,
        data="unit",
    ),
    Row(
        "linear", linear, "17 9,17 17,17; 33 2,1 33,33; 1 3,1 1,1", FLOATS, data="unit"
    ),
    Row("drawn", drawn, "3:float64 3:float64; 1:float64 ():float64"),
    *(
        Row(f"counting {n}", counting, "():int64; 2:int64", scalars={"n": n})
        for n in (-3, 0, 1, 7)
    ),
    *(
        Row(f"until {n}", until, "()", scalars={"most": n}, data="unit")
        for n in (0, 3, 99)
    ),
    Row("both ways", both_ways, "5 13,5; 1 1,1; 17 2,17", data="unit"),
    Row("viewed", viewed, "5 5,9; 1 1,3; 33 33,2; 3:float64 3,4:float64", data="unit"),
    Row("reshaped rows", reshaped_rows, "2,3,5; 30; 5,6; 10,3,1", data="unit"),
    Row("looked up", looked_up, data=tokens, times=3),
    Row("loop in loop", loop_in_loop, "3 4,3; 40 3,40; 1 0,1", data="unit"),
    Row("gathered", gathered, "3; 33"),
    Row(
        "carried",
        carried,
        "5",
        "int32 int64 uint8 int16 uint64 bool float16 bfloat16 float64",
    ),
    Row("noisy", noisy, data=key_of),
    Row(
        "large carry",
        lambda x, w: xp.scan(lambda x, _: (x * w, None), x, length=3)[0],
        "8192 8192",
        refused={"*": "takes registers for 8192"},
    ),
]
CHAINS = [
    Row(
        "chains",
        vmap(linear, (0, 0, None)),
        "5,12 5,7,12 12,12; 2,1 2,3,1 1,1; 33,3 33,2,3 3,3",
        data="unit",
    ),
    Row(
        "networks",
        vmap(network, (0, None, None, 0)),
        "7,1 5,1 1,12 7,12,1; 17,1 3,1 1,5 17,5,1",
        data="unit",
    ),
    Row("chains in step", vmap(halving), data=halves, times=6),
    Row(
        "ended",
        vmap(begins_again),
        data=lambda _: [np.array([0.0, 3.25, 1.0, 9.0, 2.0], np.float32)],
    ),
    Row("own lengths", vmap(of_own_length, (0, 0, None)), data=lengths, times=2),
    Row("own rows", vmap(lambda x, i: x[i] * 2.0), data=picked),
    Row("viewed chains", vmap(viewed), "5,3 5,3,4; 33,4 33,4,2", data="unit"),
    Row(
        "looked up by chains",
        vmap(looked_up, (0, None, None, None)),
        data=lambda rng: [rng.standard_normal((7, 5)), *tokens(rng)[1:]],
        times=3,
    ),
    Row("kept rows", vmap(loop_in_loop), "6,3 6,4,3; 3,33 3,2,33", data="unit"),
    Row("shared", vmap(lambda x, w: (w * 0.5, x + 1.0), (0, None)), "3,2 2,3; 1,1 5"),
]
GRADIENTS = [
    Row("gradient", grad(lambda x: xp.mean(xp.square(x))), "100; 33:float64; 1"),
    Row("trained", trained, "5,7 7,1 3,5; 2,1 1,3 4,2", FLOATS, data="unit"),
    Row("through time", through_time, "3 3,3; 1 1,1", data="unit"),
    Row("through views", through_views, "3 3,4; 5 5,2", data="unit"),
    Row("through time, wide", through_time, "8 8,8", data="unit"),
]


# What an item alone reads may be overwritten.


def running_sum(xs):
    """Stack rows where they were read."""
    return {"xs": xp.scan(lambda c, r: (c + r, c + r), xp.zeros_like(xs[0]), xs)[1]}


def running_sum_back(xs):
    """Do so from the last row on, and read a part of each row twice."""

    def step(c, r):
        return c + r, c + r * r[1]

    return {"xs": xp.scan(step, xp.zeros_like(xs[0]), xs, reverse=True)[1]}


def before_and_after(xs):
    """Read the array before the loop, and its results behind it."""
    first = xs.T + 1
    rows = xp.scan(lambda c, r: (c + r, c + r), xp.zeros_like(xs[0]), xs)[1]
    return {"xs": rows, "first": first, "last": rows.T}


def read_back(x, c):
    """Overwrite rows that nobody reads, and return what they become in another shape."""
    end, rows = xp.scan(lambda c, row: (-c, c * 2.0), c, x)
    return {"x": rows, "end": end, "columns": xp.reshape(rows, (-1, 1))}


def whole_rows(x, w):
    """Overwrite rows by themselves, normalised; one value a row too."""
    s = xp.sum(x * x, -1, keepdims=True)
    return {"x": x / s + w, "w": w + s}


def stepping(x, count, w):
    """Replace a state by its next one, and count."""
    return {"x": x @ w + xp.sum(x), "count": count + 1}


def of_a_chain(x, v):
    """Let a chain read its own part in full, then overwrite it."""
    return {"x": x @ x, "v": v @ x}


def turned_around(xs):
    """Read rows that other iterations have written."""
    return {"xs": xp.scan(lambda x, i: (x, xs[7 - i] + x), xs[0], xp.arange(8))[1]}


def behind(read):
    """Return a program that reads behind a loop what this has overwritten."""

    def function(x, w):
        _, rows = xp.scan(lambda c, r: (c + r, c + r), x[0], x)
        return {"w": rows, "o": read(x, w)}

    return function


def multiplied(r, w):
    """Add up rows of w, weighed."""
    return xp.scan(lambda c, q: (c + q * r, None), r, w)[0]


ON_ONE_THREAD = {
    "cuda": OVERWRITTEN["*"],
    "simt": OVERWRITTEN["*"],
    "nvptx": OVERWRITTEN["*"],
}
SQUARES = "8,8 8,8"
UPDATES = [
    Row("running sum", running_sum, "8,8", refused=ON_ONE_THREAD),
    Row("running sum back", running_sum_back, "3,8", refused=ON_ONE_THREAD),
    Row("before and after", before_and_after, "3,8", refused=ON_ONE_THREAD),
    Row("read back", read_back, "8 ()"),
    Row(
        "running chains",
        vmap(lambda x: running_sum(x)["xs"]),
        "7,5,3",
    ),
    Row("whole rows", whole_rows, "5,33 5,1; 1,9 1,1", "float64 float32", times=2),
    Row("stepping", vmap(stepping, (0, 0, None)), "5,5 5:int64 5,5; 33,3 33:int64 3,3"),
    Row("of a chain", vmap(of_a_chain), "19,3,3 19,3"),
    Row(
        "one row",
        lambda x, v: {"v": xp.sum(x * v, -1, keepdims=True)},
        "1,9 1,1",
    ),
    Row(
        "power iteration",
        lambda m, v: {"v": xp.sum(m * v, -1)},
        "8,8 8",
        refused=OVERWRITTEN,
    ),
    Row(
        "mean beside",
        lambda m, v: {"v": xp.mean(m, -1), "o": m * v},
        "8,8 8",
        refused=OVERWRITTEN,
    ),
    Row(
        "crossed",
        lambda m, v, w: {"v": xp.sum(m * w, -1), "w": xp.max(m + v, -1)},
        "8,8 8 8",
        refused=OVERWRITTEN,
    ),
    Row(
        "batched",
        lambda t, m: {"m": xp.sum(t * m, -1)},
        "8,8,8 8,8",
        refused=OVERWRITTEN,
    ),
    Row(
        "product of chains",
        lambda x, w: {"w": vmap(lambda r, w: r @ w, (0, None))(x, w)},
        SQUARES,
        refused=OVERWRITTEN,
    ),
    Row(
        "scan of chains",
        lambda x, w: {"w": vmap(multiplied, (0, None))(x, w)},
        SQUARES,
        refused=OVERWRITTEN,
    ),
    Row("turned around", turned_around, "8,8", refused=OVERWRITTEN),
    Row("read behind", behind(lambda x, w: w.T + 1), SQUARES, refused=OVERWRITTEN),
    Row("row behind", behind(lambda x, w: w[2] + 1), SQUARES, refused=OVERWRITTEN),
    Row(
        "next loop",
        behind(lambda x, w: xp.scan(lambda c, r: (c + r, None), x[0], w)[0]),
        SQUARES,
        refused=OVERWRITTEN,
    ),
    Row("smaller", lambda x, y: {"both": x + y, "y": y + 1.0}, "7,3 3"),
    Row(
        "smaller read again",
        lambda x, y: {"both": x + y, "y": y + 1.0},
        "5000,3 3",
        refused=OVERWRITTEN,
    ),
    Row(
        "column as row",
        lambda x, v: {"a": v * 2, "o": xp.sum(x, -1)},
        "8,8 8",
    ),
]

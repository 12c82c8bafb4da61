"""The corpus' loops whose bodies are launches: registers do not hold what they carry or read."""

from __future__ import annotations

import numpy as np
from corpus import Row
from corpus_loops import FLOATS

from steelyard_kernels import array as xp
from steelyard_kernels import random
from steelyard_kernels.grad import grad, value_and_grad
from steelyard_kernels.vmap import vmap


def recurrent(x, w):
    """Stack every state of a network, whose weights are larger than a value may be."""
    zero = xp.zeros_like(x[0]) if x.shape[0] else xp.zeros(x.shape[1:], x.dtype)
    return xp.scan(lambda c, row: (xp.maximum(c @ w, -1.0) * 0.25 + row, c), zero, x)


def backward(x, w):
    """Do so from the last row on; the same state is carried and stacked."""

    def step(c, row):
        c = xp.tanh(c @ w + row)
        return c, (c, xp.sum(c, axis=-1))

    last, (every, sums) = xp.scan(step, xp.ones_like(x[0]) * 0.5, x, reverse=True)
    return last, every, sums


def spread(x, *, n=3):
    """Move neighbours together: no element may be overwritten before others read it."""

    def step(i, c):
        near = xp.roll(c, 1, axis=0) + xp.roll(c, -1, axis=0)
        return c * 0.5 + near * 0.125 + xp.astype(i, "float32").astype(c.dtype)

    return xp.fori_loop(0, n, step, x)


def until(x, *, most=20):
    """End before the turn that the condition forbids, after an odd or even number."""

    def step(c):
        x, count, total = c
        return xp.roll(x, 1) * 0.5, count + 1, total + xp.sum(x) * 0.001

    start = (x, 0, xp.zeros((), x.dtype))
    return xp.while_loop(lambda c: xp.max(xp.abs(c[0])) > 0.25, step, start, most)


def of_length(x, n):
    """Take as many turns as lies in memory."""
    return xp.fori_loop(0, n, lambda i, c: xp.roll(c, 1) * 0.5 + 1.0, x)


def more_each_turn(x, n):
    """Take more inner turns in each outer one, by its number and by a carry."""

    def moved(i, c):
        return xp.roll(c, 1) * 0.5 + xp.astype(i, "float32")

    def step(i, c):
        x, count = c
        x = xp.fori_loop(0, i, moved, x)
        return xp.fori_loop(0, count, moved, x), count * 2 - n

    return xp.fori_loop(0, 3, step, (x, n))


def exchanged(x, y):
    """Exchange two carries, one of which changes, and leave a third."""

    def step(i, c):
        a, b, kept = c
        return b, a * 3 - b, kept

    return xp.fori_loop(0, 5, step, (x, y, x))


def swapped(x, y):
    """Exchange two carries and do nothing else."""
    return xp.fori_loop(0, 3, lambda i, c: (c[1], c[0]), (x, y))


def conjugate(a, b):
    """Solve systems of a definite matrix, some steps of it; each column is one."""
    a = a @ a.T * 0.01 + xp.eye(b.shape[0]) * 4.0

    def dot(x, y):
        return xp.sum(x * y, axis=0)

    def step(i, c):
        x, r, p, rr = c
        q = a @ p
        alpha = rr / dot(p, q)
        x, r = x + alpha * p, r - alpha * q
        new = dot(r, r)
        return x, r, r + new / rr * p, new

    return xp.fori_loop(0, 3, step, (xp.zeros_like(b), b, b, dot(b, b)))[:2]


def nested(x, w):
    """Repeat within a repeat: rows of rows, and what the inner one stacked."""

    def outer(c, rows):
        c, kept = xp.scan(lambda d, row: (d @ w * 0.25 + row, d), c, rows)
        c = xp.fori_loop(0, 2, lambda i, d: d * 0.5 + xp.roll(d, 1, axis=0), c)
        return c, (kept, xp.sum(kept, axis=(0, 2)))

    last, (kept, sums) = xp.scan(outer, xp.zeros_like(x[0, 0]), x)
    return last, kept, sums


def within(x, w):
    """Hold an inner loop in registers within turns that are launches."""

    def outer(c, row):
        few = xp.fori_loop(0, 4, lambda i, s: s * 0.5 + row[0, :3], c[0, :3])
        return c @ w * 0.25 + row * xp.sum(few), few

    return xp.scan(outer, xp.zeros_like(x[0]), x)


def behind(x, w):
    """Begin a loop with what another one ended at, and read what that stacked."""
    last, kept = recurrent(x, w)
    again, _ = xp.scan(lambda c, k: (c * 0.5 - k @ w.T, None), last, kept, reverse=True)
    return again, xp.sum(kept, axis=0), kept[-1]


def places(x, which):
    """Read columns, every other row from the last, and rows at places that are read."""
    x_ = x.T[::-1][1:]

    def step(c, pair):
        column, at = pair
        return c * 0.5 + column, xp.take(x.T, at, axis=0) + c

    return xp.scan(step, xp.zeros_like(x[:, 0]), (x_, which))


def reshaped(x):
    """Read rows that lie in another shape, every other one, and at numbers of a byte."""
    rows = xp.reshape(x, (-1, 4100))

    def step(i, c):
        near = xp.take(rows, xp.astype(i * 100 + 1, "uint8"), axis=0)  # 1, 101, 201
        return c * 0.5 + xp.take(rows, 2 * i + 1, axis=0) + near

    last = xp.fori_loop(0, 3, step, xp.zeros((4100,), x.dtype))
    return xp.scan(lambda c, row: (c * 0.5 - row, None), last, rows)[0]


def descended(w, x, y):
    """Go down a gradient, and keep what there was to lose."""

    def loss(w):
        return xp.mean(xp.square(x @ w - y))

    def step(c, _):
        value, slope = value_and_grad(loss)(c)
        return c - 0.1 * slope, value

    return xp.scan(step, w, xp.arange(3))


def through(x, w):
    """Return gradients of a loop by its rows and its weights."""

    def total(x, w):
        last, every = recurrent(x, w)
        return xp.sum(last * last) + xp.sum(every)

    return grad(total, (0, 1))(x, w)


def noisy(x, key):
    """Draw numbers in each turn, of the turn's own counter."""
    return xp.fori_loop(
        0, 3, lambda i, c: c * 0.5 + random.normal(key, i, c.shape, c.dtype), x
    )


def looked_up(x, at, table):
    """Multiply by matrices that each chain chooses, and by one that is its own."""

    def step(c, i):
        w = xp.take(table, (at + i) % 5, axis=0)
        c = (c @ w) * 0.25 + xp.flip(c)
        own = c[:, None] * x
        return c, (c @ own, xp.max(own, axis=0))

    last, (every, tops) = xp.scan(step, x, xp.arange(3))
    return last, every, tops


def ordered(x):
    """Put a line in order in each turn, one way and the other."""
    return xp.fori_loop(0, 3, lambda i, c: xp.sort(c * -1.0), x)


def begun_taken(x, at):
    """Begin with elements that were taken, and read them in each turn."""
    taken = xp.take(x, at)
    last = xp.fori_loop(0, 3, lambda i, c: taken - xp.roll(c, 1) * 0.5, taken)
    return {"x": xp.flip(x), "last": last, "taken": taken}


def key_of(rng):
    """Return a state and a key of any bits."""
    return [np.zeros(4097, np.float32), rng.integers(-(2**62), 2**62, ())]


def marks(values):
    """Return a state with a number that is none among others."""
    found = np.linspace(-1, 1, 4100, dtype=np.float32)
    found[values] = np.nan
    return found


REPEATS = [
    Row(
        "recurrent", recurrent, "3,2,65 65,65; 0,1,67 67,67; 1,1,65 65,65", data="unit"
    ),
    Row(
        "recurrent halves", recurrent, "2,16,80 80,80", "float16 bfloat16", data="unit"
    ),
    Row("recurrent wide", recurrent, "2,3,65 65,65", "float64", data="unit"),
    Row("backward", backward, "4,1,66 66,66; 1,3,65 65,65", data="unit"),
    *(
        Row(f"spread {n}", spread, "65,64; 4099", scalars={"n": n}, data="unit")
        for n in (-1, 0, 1, 2, 5)
    ),
    Row("spread wide", spread, "4099", FLOATS, data="unit"),
    *(
        Row(f"until {n}", until, "4100", scalars={"most": n}, data="unit")
        for n in (0, 1, 2, 9)
    ),
    Row("until nan", until, data=lambda _: [marks([7])], scalars={"most": 3}),
    *(
        Row(
            f"of length {n}",
            of_length,
            data=lambda rng, n=n: [
                rng.uniform(-1, 1, 4101).astype(np.float32),
                np.asarray(n),
            ],
        )
        for n in (-2, 0, 1, 4)
    ),
    Row(
        "more each turn",
        more_each_turn,
        data=lambda rng: [
            rng.uniform(-1, 1, 4101).astype(np.float32),
            np.asarray(2),
        ],
    ),
    Row("exchanged", exchanged, "4200 4200; 65,64 65,64", "float32 int32"),
    Row("swapped", swapped, "4200 4200", "bool uint8 float64"),
    Row("conjugate", conjugate, "66,66:float64 66,8:float64", data="unit"),
    Row("nested", nested, "2,3,5,65 65,65; 2,1,1,66 66,66", data="unit"),
    Row("within", within, "3,5,65 65,65", data="unit"),
    Row("behind", behind, "3,2,65 65,65", data="unit"),
    Row(
        "places",
        places,
        data=lambda rng: [
            rng.uniform(-1, 1, (4100, 4)).astype(np.float32),
            np.array([2, 9, -1]),
        ],
    ),
    Row("reshaped", reshaped, "2,3,4100; 24600", data="unit"),
    Row("descended", descended, "40,10 70,40 70,10", data="unit"),
    Row("through", through, "3,2,65 65,65", data="unit"),
    Row("noisy", noisy, data=key_of),
    Row("ordered", ordered, "4100", data="unit", exact=True),
    Row("begun taken", begun_taken, "4100 4100:int32", data="unit"),
    Row(
        "beside an array",  # which registers do not hold
        lambda x, y: (xp.fori_loop(0, 2, lambda i, c: c * 0.5 + 1.0, x), y),
        "8 70,60",
    ),
    Row("chains", vmap(recurrent, (0, None)), "3,2,1,65 65,65", data="unit"),
    Row("chains of weights", vmap(recurrent), "2,2,1,65 2,65,65", data="unit"),
    Row(
        "chains until",
        vmap(lambda x: until(x, most=9)),
        data=lambda rng: [
            (rng.uniform(-1, 1, (3, 4100)) * [[2], [0.1], [1]]).astype(np.float32)
        ],
    ),
    Row(
        "chains of length",
        vmap(of_length),
        data=lambda rng: [
            rng.uniform(-1, 1, (4, 4100)).astype(np.float32),
            np.array([0, 3, -1, 1]),
        ],
    ),
    Row(
        "chains look up",
        vmap(looked_up, (0, 0, None)),
        data=lambda rng: [
            rng.uniform(-1, 1, (3, 65)).astype(np.float32),
            np.array([2, 0, 9]),
            rng.uniform(-1, 1, (5, 65, 65)).astype(np.float32),
        ],
    ),
    Row("chains nested", vmap(nested, (0, None)), "2,2,1,2,65 65,65", data="unit"),
    Row("rows overwritten", lambda x, w: {"x": recurrent(x, w)[1]}, "3,1,65 65,65"),
    Row(
        "carry overwritten",
        lambda c, x, w: {
            "c": xp.scan(lambda c, r: (c @ w * 0.25 + r, None), c, x)[0],
            "first": c + 1.0,
        },
        "2,65 3,2,65 65,65",
        data="unit",
    ),
    Row(
        "chains overwritten",
        vmap(lambda x, w: {"x": xp.maximum(x @ w, 0.0) + xp.sum(w)}),
        "3,65,65 3,65,65",
        data="unit",
    ),
]

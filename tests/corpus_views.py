"""The corpus' programs of views, reductions of any axes and products of any size.

Outputs of several spaces must be small for one kernel: larger ones are marked.
"""

from __future__ import annotations

from corpus import Row

from steelyard_kernels import array as xp
from steelyard_kernels.grad import grad, value_and_grad

SPACES = {"*": "outputs have shapes"}


def stencil(x):
    """Return second differences, of ends that are repeated."""
    return xp.roll(x, 1, axis=-1) - 2.0 * x + xp.roll(x, -1, axis=-1)


def joined(x, y):
    """Return arrays behind one another, beside one another, and again."""
    every = xp.concat([x, y, x], axis=0)
    return every * 2.0, xp.stack([x, x + 1.0], axis=1), xp.tile(y, (2, 3))


def cut(x):
    """Return every second element, the middle, and rows from the last."""
    return x[1:, ::2] + 1.0, x[1:-1, 1:-1] * 2.0, xp.flip(x, axis=0) - x


def column_softmax(x):
    """Normalise columns."""
    e = xp.exp(x - xp.max(x, axis=0, keepdims=True))
    return e / xp.sum(e, axis=0, keepdims=True)


def both_ways(x):
    """Reduce rows, columns and both; use them together."""
    row, column = xp.mean(x, axis=1, keepdims=True), xp.mean(x, axis=0, keepdims=True)
    return x - row - column + xp.mean(x, axis=(0, 1), keepdims=True)


def dense(x, w, b):
    """Return a layer."""
    return xp.maximum(x @ w + b, 0.0)


def dense_softmax(a, w):
    """Normalise what a product gives."""
    s = (a @ w) * 0.25
    t = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return t / xp.sum(t, axis=-1, keepdims=True)


def attention(q, k, v, *, scale=0.125):
    """Return attention of one head."""
    s = (q @ k.T) * scale
    p = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
    return (p @ v) / xp.sum(p, axis=-1, keepdims=True)


def cross_entropy(x, w, target):
    """Return a loss and its gradient: of a product, a softmax and a sum."""

    def loss(w, x, target):
        s = x @ w
        top = xp.max(s, axis=-1, keepdims=True)
        total = xp.log(xp.sum(xp.exp(s - top), axis=-1, keepdims=True)) + top
        return xp.mean(total - s * target)

    return value_and_grad(loss)(w, x, target)


def class_loss(x, target):
    """Return the cross-entropy of classes that are named by number."""
    top = xp.max(x, axis=-1, keepdims=True)
    total = xp.log(xp.sum(xp.exp(x - top), axis=-1, keepdims=True)) + top
    return total - xp.take_along_axis(x, xp.expand_dims(target, 1), axis=1)


def embedding_gradient(table, tokens):
    """Return what rows get that are taken, some twice and some not at all."""
    return grad(lambda t: xp.sum(xp.square(xp.take(t, tokens, axis=0))))(table)


def squared_taken(x, i):
    """Multiply an array by itself, which has elements that were taken."""
    x = x + xp.take(x[:, 0], i)[:, None]
    return x @ x.T


def square_mean(x):
    """Return what a large gradient is of."""
    return xp.mean(xp.square(x))


VIEWS = [
    Row("transpose", lambda x: x.T + 1, "100,1000; 65,67; 129,33"),
    Row(
        "joined",
        lambda x, y: xp.concat([x, y, x], axis=1),
        "3,5 3,7; 1,33 1,2",
        "float8_e4m3fn float8_e5m2 bool",
        exact=True,
    ),
    Row(
        "diagonal of float8",
        lambda x: xp.diagonal(x, offset=-1),
        "5,7; 40,3",
        "float8_e4m3fn",
        exact=True,
    ),
    Row(
        "products of no elements in another order",
        lambda x, y: xp.reshape(xp.permute_dims(x, (2, 0, 1)), (0,)) @ y,
        "0,16,17 0,3",
    ),
    Row("small transpose", lambda x: x + xp.transpose(x) * 2.0, "17,17; 1,1; 7,7"),
    Row(
        "permute",
        lambda x: xp.permute_dims(x, (2, 0, 1)),
        "3,5,7; 1,33,2; 17,16,31; 2,3,2",
        "float32 float16 int32 bool int8 uint16 float8_e5m2",
    ),
    Row(
        "turned in memory",  # beside what is not, by tiles and in pieces of them
        lambda x, y: xp.permute_dims(x, (0, 2, 1)) * 2 + y,
        "2,33,40 2,40,33; 3,64,72 3,72,64; 1,129,65 1,65,129; 2,16,48 2,48,16",
        "float32 float16 int8 float64",
        times=2,
    ),
    Row("turned from the first", lambda x: xp.transpose(x) + x[0, 0, 0], "33,3,40"),
    Row("stencil", stencil, "7,33; 3,2; 1000"),
    Row("joined", joined, "3,5 2,5; 1,33 7,33"),
    Row("cut", cut, "7,33; 3,4"),
    Row("large cut", cut, "65,67", refused=SPACES),
    Row(
        "padded",
        lambda x: xp.pad(x, ((1, 2), (0, 3))),
        "7,33; 1,1",
        "float32 int32",
    ),
    Row(
        "repeated",
        lambda x: xp.repeat(x, 3, axis=0) * x[:1],
        "5,7",
    ),
    Row("first row off", lambda x: x - x[0], "100,100"),
]
AXES = [
    Row(
        "columns",
        lambda x: (xp.sum(x, axis=0), xp.max(x, axis=0), xp.var(x, axis=0)),
        "100,33; 7,5; 1,1; 33,257",
        "float32 float16 float64",
    ),
    Row(
        "some axes",
        lambda x: (xp.sum(x, axis=(0, 2)), xp.mean(x, axis=1), xp.min(x, axis=(0, 1))),
        "3,5,7; 33,2,31",
    ),
    Row(
        "all axes",
        lambda x: (xp.sum(x), xp.mean(x)),
        "33,7; 3,4,5",
    ),
    Row(
        "column softmax",
        column_softmax,
        "33,7; 100,65",
    ),
    Row("both ways", both_ways, "33,7; 65,100"),
]
PRODUCTS = [
    Row(
        "product",
        lambda x, w: x @ w,
        "100,96 96,48; 33,257 257,129",
        "float32 float16 float64",
        data="unit",
    ),
    Row(
        "convolution",
        lambda x, w: xp.maximum(xp.conv2d(x, w, padding=1, stride=2) + 0.5, 0),
        "2,3,9,8 5,3,3,3; 1,17,11,13 20,17,3,2",
        "float32 float16",
        data="unit",
    ),
    Row(
        "convolution by groups",
        lambda x, w: xp.conv1d(x, w, dilation=2, groups=4),
        "2,4,21 8,1,3; 1,8,33 4,2,4",
        data="unit",
    ),
    Row(
        "features by groups",  # and a window of one element
        lambda x, w: xp.conv1d(x, w, padding=1, groups=3),
        "1,24,1 3,8,1; 2,24,2 6,8,1; 1,48,3 3,16,2",
        data="unit",
        times=2,
    ),
    Row(
        "sum of a convolution",
        lambda x: xp.sum(xp.conv1d(x, x, padding=1), axis=0),
        "2,2,0; 16,16,2; 3,3,5",
        "float64 float32",
        data="unit",
    ),
    Row(
        "transposed convolution",
        lambda x, w: xp.conv_transpose2d(x, w, stride=2, padding=1),
        "2,3,5,4 3,4,3,3",
        data="unit",
    ),
    Row(
        "convolution's gradient",
        grad(lambda w, x: xp.sum(xp.square(xp.conv2d(x, w, stride=2)))),
        "4,3,3,2 2,3,7,6",
        data="unit",
    ),
    Row("product of integers", xp.matmul, "20,33 33,40", "int8 uint8 int32"),
    Row("dense", dense, "100,96 96,48 48; 129,33 33,65 65", data="unit"),
    Row(
        "batched",
        xp.matmul,
        "2,5,7 2,7,3; 3,33,17 1,17,65",
        data="unit",
    ),
    Row(
        "vectors by rows",  # one query's scores, and what they weigh
        lambda q, k: xp.einsum("bd,bnd->bn", q, k),
        "3,33 3,7,33; 2,64 2,40,64; 1,1 1,5,1",
        "float32 float16 float32",
        data="unit",
    ),
    Row(
        "vectors by columns",
        lambda w, v: xp.einsum("bn,bnd->bd", w, v),
        "3,33 3,33,7; 2,640 2,640,64; 5,0 5,0,2",
        "float32 float16 int32",
        data="unit",
    ),
    Row(
        "einsum",
        lambda a, b: xp.einsum("bhqd,bkhd->bhqk", a, b),
        "2,3,5,8 2,7,3,8",
        data="unit",
    ),
    Row(
        "product of what is taken with itself",
        squared_taken,
        "33,130 33:int32",
        data="unit",
    ),
    Row("dense softmax", dense_softmax, "33,20 20,17", data="unit"),
    Row(
        "attention",
        attention,
        "19,16 19,16 19,16; 13,9 33,9 33,5",
        data="unit",
    ),
    Row("large gradient", grad(square_mean), "5003"),
    Row(
        "cross-entropy",
        cross_entropy,
        "9,8 8,5 9,5",
        data="unit",
    ),
]
TAKEN = [
    Row(
        "embedding",
        lambda table, tokens: xp.take(table, tokens, axis=0),
        "40,33 5,7:int32; 3,64 9:int64; 1,5 4:int64; 300,3 9:int8; 7,3 9:uint16",
        "float32 float16",
    ),
    Row(
        "products of rows that are taken and begin anywhere",
        lambda x, i, y: xp.sum(xp.take(x, i, axis=0) * y, axis=1),
        "50,1001 7:int64 7,1001",
        "float32 float16",
        data="unit",
    ),
    Row(
        "taken of a view",
        lambda x, i: xp.take(xp.flip(x, axis=1) * 2.0, i, axis=1),
        "9,40 7:int64",
    ),
    Row(
        "taken of a reshaped view",
        lambda x, i: xp.take(xp.reshape(x.T, (-1, 3)), i, axis=0),
        "9,40 7:int64; 6,5 4:int8",
    ),
    Row(
        "taken along several axes",
        lambda x, i, j: (x[i, :, j], x[:, 1:, ::-2][..., i, j] * 2.0),
        "9,4,40 7:int64 3,1:int32; 2,3,300 5:int8 5:uint8",
    ),
    Row(
        "gradient of what is taken along two axes",
        lambda x, i, j: grad(lambda x: xp.sum(xp.square(x[:, i, j])))(x),
        "3,7,5 9:int64 9:int16",
    ),
    Row("rows by constants", lambda x: x[[0, -1, 0]] + x[1:][[1]], "5,40; 3,7"),
    Row(
        "taken twice",
        lambda x, i, j: xp.take_along_axis(xp.take_along_axis(x, i, axis=1), j, axis=1),
        "5,9 5,7:uint8 5,4:uint8",
    ),
    Row(
        "taken of rows",
        lambda x, i: xp.take(xp.sum(x, axis=1), i, axis=0),
        "9,40 7:int64",
    ),
    Row(
        "zeros around what is taken",
        lambda x, i: xp.pad(xp.take(x, i, axis=0), [(0, 1), (1, 2)]),
        "6,5 3:int64; 1,40 7:int32",
        "float32 int8",
    ),
    Row(
        "orders taken along another axis",
        lambda x, i: xp.take(xp.argsort(x, axis=1), i, axis=0),
        "9,40 7:int64; 47,2 131:int32",
    ),
    Row(
        "columns of the largest",
        lambda x, i: xp.take(xp.topk(x, 3, axis=0)[1], i, axis=1),
        "9,40 7:int64; 5,3 4:int32",
    ),
    Row(
        "a row beside a product of all rows",
        lambda x, w, i: (x * x[i]) @ w,
        "70,9 9,5 :int32",
        data="unit",
    ),
    Row("classes", class_loss, "33,40 33:int64; 9,7 9:int32", data="unit"),
    Row("rows taken twice", embedding_gradient, "12,5 30:int64"),
]

"""Many chains of one function: each as if it were alone."""

import numpy as np
import pytest

from steelyard_kernels import array as xp
from steelyard_kernels import cost, reference
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.vmap import vmap

F32 = "float32"


def test_each_chain_runs_as_often_as_its_own_length_says():
    """Given in memory, one for each; with a condition that ends some earlier."""

    def counted(x, most):
        far = xp.fori_loop(0, most, lambda i, c: c + 1.0, x)
        return far, xp.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, x, most)

    x, most = np.zeros(6, F32), np.array([0, 5, 2, -1, 9, 3])
    made = kernel(vmap(counted))
    oracle = reference.evaluate(made.program(x, most), [x, most])
    for far, near in (made(x, most), oracle.values()):
        assert far.tolist() == [0, 5, 2, 0, 9, 3]
        assert near.tolist() == [0, 3, 2, 0, 3, 3]


def test_the_mapped_function_keeps_its_name_and_parameters():
    """Errors and outputs speak of what its user wrote."""

    def walk(x, key, w, *, most: int = 20):
        return x * most + key * w

    made = kernel(vmap(walk, (0, 0, None)))
    assert (made.name, made.signature.arrays) == ("walk", ("x", "key", "w"))


def test_what_is_the_same_for_all_chains_counts_once():
    """Weights are prepared once, products are of each chain and iteration."""

    def one(x, w):
        return xp.scan(lambda c, _: (c @ xp.exp(w), None), x, length=10)[0]

    alone = kernel(one).program(((3,), F32), ((3, 3), F32))
    many = kernel(vmap(one, (0, None))).program(((6, 3), F32), ((3, 3), F32))
    assert cost.operations(alone) == 9 + 10 * 18
    assert cost.operations(many) == 9 + 6 * 10 * 18
    assert cost.bytes_moved(many) == 4 * (18 + 9 + 18)


def test_what_loops_keep_is_moved_twice():
    """Hidden memory is written by one loop and read by another."""

    def twice(x):
        _, ys = xp.scan(lambda c, _: (c * 2.0, c), x, length=5)
        return xp.scan(lambda g, y: (g + y, None), x, ys)[0]

    made = kernel(twice).program(((3,), F32))
    assert cost.bytes_moved(made) == 4 * (3 + 3 + 2 * 15)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (vmap(lambda a, b: a + b, (0, 0)), "b has 5 chains, expect"),
        (vmap(lambda a, b: a + b, (0,)), "1 axes for 2 arrays"),
        (vmap(lambda a, b: a, (0, 1)), r"axes \(0, 1\), expected 0"),
        (vmap(lambda a, b: a, None), "expected 0 for one array"),
        (
            lambda x, y: vmap(lambda a: a)(x) * 2.0,
            "is computed with, expected it to be",
        ),
        (lambda x, y: (vmap(lambda a: a)(x), y), "out1 of shape .* is of no chain"),
        (lambda x, y: vmap(vmap(lambda a: a))(x), "expected an array parameter"),
        (lambda x, y: vmap(lambda a: a)(x[0]), "expected an array parameter"),
        (
            lambda x, y: vmap(lambda a: a)(2.0),
            "a mapped function got a float, expected",
        ),
        (lambda x, y: vmap(lambda a: a)([x, y]), "a mapped function got a list"),
        (lambda x, y: vmap(lambda a: a, [[0]])(x), r"axes \(\[0\],\), expected 0"),
    ],
)
def test_chains_that_are_not_independent_are_refused(write, words):
    """In one sentence that says what to do instead."""
    with pytest.raises(KernelError, match=words):
        kernel(write).program(((4, 3), F32), ((5, 3), F32))

"""Runtime ints that are computed with in an array's narrower dtype."""

import numpy as np
import pytest

from steelyard_kernels import KernelError, kernel, random
from steelyard_kernels import array as xp


@kernel
def added(x, *, k: int = 300):
    """Return a sum in the array's dtype."""
    return x + k


@kernel
def limited(x, *, k: int):
    """Return values that a loop compares with a scalar."""
    return xp.fori_loop(0, 2, lambda _, c: xp.maximum(c, k), x)


REFUSED = (
    r"scalar k is -?\d+, expected a number of u?int\d+, .* cast the array to a wider"
)


@pytest.mark.parametrize("made", [added, limited])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_a_number_that_the_dtype_does_not_hold_is_refused(made, dtype):
    """As NumPy does; also in calls that native code recognises."""
    x, ends = np.zeros(3, dtype), np.iinfo(dtype)
    for _ in range(4):
        for k in {int(ends.min), 7, int(ends.max)}:
            expected = x + k if made is added else np.maximum(x, k)
            assert made(x, k=k).tolist() == expected.tolist()
        for k in {int(ends.min) - 1, int(ends.max) + 1}:
            with pytest.raises(KernelError, match=f"{REFUSED}|does not fit a scalar"):
                made(x, k=k)
    with pytest.raises(KernelError, match=f"{REFUSED}|does not fit a scalar"):
        made.bind(x, k=int(ends.max) + 1)


def test_a_default_has_to_fit_as_well():
    """In every call, whatever scalars calls in between give."""
    for _ in range(4):
        with pytest.raises(KernelError, match=REFUSED):
            added(np.zeros(2, "int8"))
        assert added(np.zeros(2, "int8"), k=3).tolist() == [3, 3]
        assert added(np.zeros(2, "int16")).tolist() == [300, 300]


def test_a_number_given_by_another_kernel_has_to_fit():
    """It is a constant there."""
    with pytest.raises(KernelError, match="300 out of bounds for int8"):
        kernel(lambda x: added(x, k=300))(np.zeros(2, "int8"))


@kernel
def affine(x, *, n: int = 3):
    """Return what is computed of a scalar, in int64 and then in the array's dtype."""
    return x + ((n * 1000 - 2) // 7) * n


def test_what_is_computed_of_a_number_has_to_fit_as_well():
    """In the dtype that it is computed in, and in the array's."""
    for _ in range(4):
        for n in (0, 15, -15):
            found = affine(np.zeros(2, "int16"), n=n)
            assert found.tolist() == [(n * 1000 - 2) // 7 * n] * 2
        assert affine(np.zeros(2, "int16")).tolist() == [1284, 1284]
        with pytest.raises(KernelError, match=r"n is 16, of which 36560 is computed"):
            affine(np.zeros(2, "int16"), n=16)
        with pytest.raises(KernelError, match=r"expected a number of int8"):
            affine(np.zeros(2, "int8"))
        for n in (2**33, 2**60):
            with pytest.raises(KernelError, match=r"expected a number of int64"):
                affine(np.zeros(2, "int64"), n=n)
    within = kernel(lambda x: affine(x, n=16))
    with pytest.raises(KernelError, match=r"36560 is computed of numbers, expected"):
        within(np.zeros(2, "int16"))


def test_arithmetic_of_another_dtype_may_wrap():
    """As that of arrays, where a scalar was cast on purpose."""
    mixed = kernel(lambda x, *, n=3: x ^ (xp.astype(n, "uint32") * 2654435761))
    assert mixed(np.zeros(1, "uint32"), n=3).tolist() == [3 * 2654435761 % 2**32]


def test_keys_of_random_numbers_are_whole_int64():
    """Of a scalar both words count."""

    @kernel
    def drawn(x, *, key: int):
        return x + random.uniform(key, 0, x.shape, "float32")

    of_array = kernel(lambda x, key: x + random.uniform(key, 0, x.shape, "float32"))
    x = np.zeros(2, "float32")
    found = [drawn(x, key=key) for key in (1, -1, 2**40 + 1)]
    for key, values in zip((1, -1, 2**40 + 1), found, strict=True):
        assert values.tolist() == of_array(x, np.asarray(key)).tolist()
    assert found[0].tolist() != found[2].tolist()

"""Calls take arrays of any strides, in and out, and numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel

RNG = np.random.default_rng(11)


@kernel
def mixed(a, b):
    """Read both."""
    return 2 * a + xp.abs(b)


@kernel
def itself(a):
    """Give it back."""
    return a


@kernel
def both(a):
    """Give two results."""
    return a + 1, a - 1


@kernel
def stepped(a, b):
    """Update the first, and add it up."""
    return {"a": a + b, "sums": xp.sum(a, axis=0)}


@kernel
def chain(x, w):
    """Multiply twice, in several launches."""
    y = x @ w
    return (y - xp.mean(y, axis=-1, keepdims=True)) @ w


def view(order, steps):
    """Return an array of shape 3 x 4 x 5 whose axes lie in an order, walked by steps."""
    lengths = [
        (3, 4, 5)[axis] * abs(step) for axis, step in zip(order, steps, strict=True)
    ]
    array = RNG.integers(-9, 9, lengths).astype("float32")
    array = array[tuple(slice(None, None, step) for step in steps)]
    return array.transpose(np.argsort(order))


steps = st.sampled_from([1, 2, -1, -3])
views = st.builds(view, st.permutations([0, 1, 2]), st.tuples(steps, steps, steps))


@given(a=views, b=views, out=views)
def test_a_call_takes_and_fills_arrays_of_any_strides(a, b, out):
    """The result is `out` itself; the third call is native where all are contiguous."""
    for _ in range(3):
        assert mixed(a, b, out=out) is out
        np.testing.assert_array_equal(out, 2 * a + np.abs(b))
        np.testing.assert_array_equal(mixed(a, b), 2 * a + np.abs(b))


@given(a=views, b=views)
def test_a_call_updates_an_array_of_any_strides_in_place(a, b):
    """What lies between its elements stays as it was."""
    base = a.base if a.base is not None else a
    around, wanted, sums = base.copy(), a + b, a.sum(axis=0)
    first = a.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    np.ndarray(a.shape, a.dtype, around, first, a.strides)[...] = wanted
    done = stepped(a, b)
    assert done["a"] is a
    np.testing.assert_array_equal(done["sums"], sums)
    np.testing.assert_array_equal(base, around)


def test_programs_of_several_launches_take_them_too():
    """Their products read rows."""
    x, w = RNG.random((48, 24)).T, RNG.random((48, 48))[::-1]
    np.testing.assert_allclose(chain(x, w), chain(x.copy(), w.copy()), rtol=0)


def test_broadcast_empty_and_scalar_arrays_are_taken():
    """A number of NumPy's or Python's is an array without axes, of NumPy's dtype."""
    a = np.broadcast_to(np.float32(3), (4, 2))
    assert mixed(a, np.float32(-1)).tolist() == [[7.0, 7.0]] * 4
    assert mixed(a[::2, :0], a[::2, :0]).shape == (2, 0)
    assert mixed(np.float64(1), np.float64(2)) == mixed(1.0, 2.0) == 4.0
    assert mixed(np.ones(3), -2.5).tolist() == [4.5] * 3
    kinds = {"int64": 3, "float64": 3.0, "bool": True, "int8": np.int8(3)}
    for kind, number in kinds.items():
        found = itself(number)
        assert (found.dtype, found.shape, found) == (kind, (), number)
    assert mixed.build(1.0, 2.0) is mixed.build(np.ones(()), np.float64(3))
    assert mixed.build(1.0, 2.0) is not mixed.build(1, 2)
    with pytest.raises(KernelError, match="a: dtype object is not supported"):
        mixed(2**70, 1)
    with pytest.raises(KernelError, match="out is a float, expected an array"):
        mixed(1.0, 2.0, out=3.0)


def test_an_output_may_be_a_view_of_an_input():
    """The input is copied before it is written."""
    x = np.arange(9.0).reshape(3, 3)
    wanted = (2 * x + x).T
    mixed(x, x, out=x.T)
    np.testing.assert_array_equal(x, wanted)


def test_outputs_that_share_memory_are_left_as_they_were():
    """Nobody can tell which of them would be kept."""
    memory = np.zeros((4, 4))
    with pytest.raises(KernelError, match="two outputs share memory"):
        both(np.ones((2, 4)), out=(memory[::2], memory[2::-2]))
    assert not memory.any()
    with pytest.raises(KernelError, match="two outputs share memory"):
        both(np.ones((2, 4)), out=(memory[:2], memory[2:0:-1]))
    assert not memory.any()
    update = kernel(lambda a, b: {"a": a + 1.0, "b": b + 2.0})
    with pytest.raises(KernelError, match="two outputs share memory"):
        update(memory, memory.T)
    with pytest.raises(KernelError, match="two elements of an output share memory"):
        update(memory, np.lib.stride_tricks.as_strided(np.zeros(4), (4, 4), (8, 0)))
    assert not memory.any()
    with pytest.raises(KernelError, match="masked array"):
        update(np.ma.masked_array(memory), memory.T)


def test_read_only_and_masked_arrays_are_refused_as_before():
    """A copy changes nothing of what may be written."""
    a = np.ones((4, 3)).T
    a.flags.writeable = False
    assert mixed(a, a).tolist() == [[3.0] * 4] * 3
    with pytest.raises(KernelError, match="read-only"):
        stepped(a, a)
    with pytest.raises(KernelError, match="read-only"):
        mixed(a, a, out=a)
    with pytest.raises(KernelError, match="read-only"):
        kernel(lambda a: {"a": a + 1})(1.0)
    with pytest.raises(KernelError, match="masked array"):
        mixed(np.ma.masked_array(np.ones((3, 4))).T, a)


def test_what_is_too_large_to_be_copied_is_refused_before():
    """A broadcast of terabytes has the error of every array of its size."""
    wide = np.broadcast_to(np.float32(1), (2**20, 2**20))
    for call in (kernel(lambda x: x + 1), kernel(lambda x: x + 1).bind):
        with pytest.raises(KernelError, match="at most 2147483647 are supported"):
            call(wide)


@given(a=views, b=views, out=views)
def test_launches_of_what_is_bound_copy_around_each(a, b, out):
    """What the arrays hold then; also those of a window, and an update in place."""
    work = mixed.bind(a, b, out=out)
    assert work.arrays["a"] is a
    assert work.outputs["out"] is out
    for factor in (1, 3):
        a *= factor
        work.launch()
        np.testing.assert_array_equal(out, 2 * a + np.abs(b))
    updated, before = stepped.bind(a, b), a.copy()
    start, end = updated.window(2)
    assert start < end
    np.testing.assert_array_equal(a, before + b + b)
    np.testing.assert_array_equal(updated.outputs["sums"], (before + b).sum(axis=0))


def test_what_is_bound_is_as_what_is_called():
    """Programs of several launches, numbers, binaries, outputs that share memory."""
    x, w = RNG.random((48, 24)).T, RNG.random((48, 48))[::-1]
    work = chain.bind(x, w)
    work.launch()
    np.testing.assert_allclose(work.outputs["out"], chain(x, w), rtol=0)
    numbers = mixed.bind(1.0, np.float32(2).astype("float64"))
    numbers.launch()
    assert numbers.outputs["out"] == 4
    a, out = np.ones((4, 3)).T, np.zeros((4, 3)).T
    work = mixed.bind(a, a, out=out)
    again = work.of_binary(work.binary())
    again.launch()  # on the copies that the kernel walks
    assert not out.any()
    work.build("cold")
    assert mixed.build(a, a) is mixed.build(a.copy(), a.copy())
    memory = np.zeros((4, 4))
    with pytest.raises(KernelError, match="two outputs share memory"):
        both.bind(np.ones((2, 4)), out=(memory[::2], memory[2::-2]))


def test_results_without_elements_share_no_memory():
    """Their strides, which NumPy leaves at 0, are none."""
    made = kernel(lambda x, y: (x + 1.0, y[1:1]))
    x, y = np.ones((6, 4)).T, np.ones((1, 3, 2))
    seen, nothing = made(x, y)
    np.testing.assert_array_equal(seen, x + 1)
    assert nothing.shape == (0, 3, 2)

import numpy as np
import pytest
from fakes import prepared
from hypothesis import given
from hypothesis import strategies as st
from test_device_buffers import DTYPES, buffers_of

from steelyard import BenchmarkError, Builder
from steelyard.prepare.buffers import STAGGER, Buffers, poison


@given(
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    dtype=st.sampled_from(DTYPES),
)
def test_buffers_of_any_shape_are_whole_and_apart(shape, dtype):
    """Contiguous, staggered within their pages, zones intact, no two overlapping."""
    buffers = buffers_of(shape, dtype, None)
    buffers.check_zones()
    buffers.check_inputs()
    starts = [array.ctypes.data % 4096 for array in buffers.arrays.values()]
    assert starts == [0, STAGGER, 2 * STAGGER]
    for array in buffers.arrays.values():
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.flags.c_contiguous
    assert buffers.nbytes == sum(a.nbytes for a in buffers.arrays.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.__setitem__(0, x[0] + 1),
        lambda x: x.sort(),
        lambda x: x.__setitem__(slice(None), x[::-1].copy()),
        lambda x: x.__setitem__([5, 5 + 1024], x[[5 + 1024, 5]]),
        lambda x: x.__setitem__([1000, 2999], x[[2999, 1000]]),
        lambda x: np.negative(x, out=x),
    ],
    ids=["one", "sorted", "reversed", "same column", "swapped", "negated"],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_a_changed_input_is_seen_even_if_its_sum_is_the_same(change, dtype):
    """Sorting an input in place once went unseen."""
    b = Builder()
    buffers = Buffers((b.input(3000, dtype, name="x"),), 0, {})
    buffers.check_inputs()
    change(buffers.arrays["x"])
    with pytest.raises(BenchmarkError, match=r"changed its input x; .* b\.inout"):
        buffers.check_inputs()


def test_an_updated_argument_may_change_and_gets_its_data_back():
    """As often as it is restored; what it was filled with first stays known."""
    buffers = buffers_of(context=None)
    first = buffers.arrays["u"].copy()
    for _ in range(2):
        buffers.arrays["u"] += 1
        buffers.check_inputs()
        buffers.restore()
        assert np.array_equal(buffers.arrays["u"], first)
    handle = next(h for h in buffers.handles if h.name == "u")
    buffers.arrays["u"][...] = 0
    assert np.array_equal(buffers.pristine(handle), first)
    assert buffers.updates
    assert not Buffers((), 0, {}).updates


@pytest.mark.parametrize("value", [False, True])
def test_an_output_of_one_truth_value_was_written(value):
    """NumPy takes the poison of a bool for true: isfinite once read as no result."""
    buffers = buffers_of((4, 3), "bool", None)
    buffers.arrays["y"][...] = value
    buffers.check_written("y")


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_finite(dtype):
    """NaN would hide a kernel that reads its output and keeps NaN."""
    array = np.zeros((2, 2), dtype)
    poison(array)
    assert np.isfinite(array).all()
    assert array.all()


def test_a_file_may_stand_for_an_input(tmp_path):
    """Named on the command line; its shape must fit."""
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))

    def body(b):
        x = b.input((4, 3))
        return b.launch(print, x)

    _, buffers = prepared(body, x=str(tmp_path / "x.npy"))
    assert buffers.arrays["x"].ravel().tolist() == list(range(12))


@pytest.mark.parametrize("shape", [(1 << 45,), (1 << 62,), (1 << 40, 1 << 40)])
def test_what_does_not_fit_into_memory_is_named(shape):
    """Before anything is allocated, with what is needed and what is free."""
    said = r"do not fit into memory: they need .*iB, .* are free"
    with pytest.raises(BenchmarkError, match=said):
        Buffers((Builder().output(shape, name="y"),), 0, {})


def test_arrays_stand_for_handles_wherever_these_stand():
    """Lists and keywords of handles reach NumPy as arrays."""
    b = Builder()
    x = b.input(3)
    buffers = Buffers((x,), 0, {})
    array = buffers.arrays["x"]
    assert buffers.resolve(x) is array
    assert buffers.resolve([(x, 1)])[0][0] is array
    assert buffers.resolve({"where": x})["where"] is array
    assert buffers.resolve("x") == "x"


@given(st.lists(st.integers(-9, 9), max_size=5), st.integers(1, 300))
def test_turned_data_is_the_cases_own_in_another_order(turns, size):
    """However often it is turned; and drawn again it is as it was."""

    def body(b):
        x = b.input(size)
        u = b.inout(size, "int32")
        return b.launch(lambda *_: None, x, u, b.input(size, dist="constant", name="z"))

    _, buffers = prepared(body)
    first = {name: buffers.read(name).copy() for name in "xuz"}
    for by in turns:
        buffers.turn(by)
        for name in "xu":
            assert (buffers.read(name) == np.roll(first[name], by)).all()
        assert (buffers.read("z") == first["z"]).all()
    assert buffers.draw(buffers.seed + 1)
    assert size < 9 or (buffers.read("x") != first["x"]).any()
    buffers.draw(buffers.seed)
    assert all((buffers.read(name) == first[name]).all() for name in "xuz")
    buffers.check_inputs()

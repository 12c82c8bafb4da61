"""Questions to buffers on a GPU, against NumPy's answers."""

import gpu
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.declare import dtypes
from steelyard_device import cuda
from steelyard_device.cuda import tools
from steelyard_device.errors import DeviceError

SIZES = (0, 1, 7, 8, 9, 4096, 10_007, 1 << 20)


def view(context, data, offset):
    """Return bytes on the GPU that start ``offset`` behind a multiple of 256."""
    buffer = cuda.Buffer(context, (offset + data.size,), np.uint8)
    part = buffer.part(offset, data.shape, np.uint8)
    part.write(data)
    return part


def random(size, seed=1):
    """Return random bytes."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_a_checksum_depends_on_bytes_and_not_on_where_they_lie(context, size):
    """At any alignment, and twice over."""
    data = random(size)
    sums = {tools.checksum(view(context, data, offset)) for offset in (0, 0, 1, 4, 8)}
    assert len(sums) == 1


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_checksum_sees_every_change(context, size):
    """Of a bit anywhere, of the order, of the length."""
    data = random(size)
    data[-1] |= 1
    known = tools.checksum(view(context, data, 0))
    for place in {0, size // 2, size - 1}:
        other = data.copy()
        other[place] ^= 0x80
        assert tools.checksum(view(context, other, 0)) != known
    longer = np.append(data, np.uint8(0))
    assert tools.checksum(view(context, longer, 0)) != known
    if size > 16:
        other = data.copy()
        other[:8], other[8:16] = data[8:16], data[:8]
        assert tools.checksum(view(context, other, 0)) != known


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_a_pattern_is_held_until_one_byte_is_another(context, size, length):
    """At any alignment; nothing holds every pattern."""
    pattern = bytes(range(1, length + 1))
    data = np.resize(np.frombuffer(pattern, np.uint8), size)
    for offset in (0, 3, 8):
        assert tools.holds_only(view(context, data, offset), pattern)
        for place in {0, size // 3, size - 1} if size else ():
            other = data.copy()
            other[place] ^= 1
            assert not tools.holds_only(view(context, other, offset), pattern)


def test_a_pattern_of_three_bytes_is_refused(context):
    """Elements have powers of two."""
    with pytest.raises(DeviceError, match="a pattern of 3 bytes"):
        tools.holds_only(view(context, random(9), 0), b"abc")


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16", "S3"])
@pytest.mark.parametrize("size", [0, 1, 5, 10_007])
def test_elements_that_differ_are_counted(context, dtype, size):
    """Bit by bit: NaN is equal to itself, and an element counts once."""
    kind = np.dtype(dtype)
    a = random(size * kind.itemsize).view(kind)
    b = a.copy()
    for place in {0, size // 2, size - 1} if size else ():
        b.view(np.uint8).reshape(size, -1)[place] ^= 0xFF
    x, y = cuda.copy_of(context, a), cuda.copy_of(context, b)
    assert tools.differing(x, x) == 0
    assert tools.differing(x, y) == len({0, size // 2, size - 1} if size else ())


def test_elements_differ_at_any_alignment(context):
    """Of one side or both."""
    a = random(10_007)
    b = a.copy()
    b[[0, 8, 9, 10_006]] ^= 3
    for left in (0, 1, 8):
        for right in (0, 3):
            found = tools.differing(view(context, a, left), view(context, b, right))
            assert found == 4


def test_buffers_of_two_shapes_are_not_compared(context):
    """Nor of two dtypes."""
    with pytest.raises(DeviceError, match="are not compared"):
        tools.differing(view(context, random(8), 0), view(context, random(9), 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 3, 10_007])
def test_normal_numbers_are_counted(context, dtype, size):
    """As NumPy counts them: no zeros, denormals, infinities or NaN."""
    kind = dtypes.named(dtype)
    tiny = float(dtypes.limits(kind).tiny)
    values = np.array([0, tiny / 2, tiny, 1, -1, np.inf, np.nan, -tiny], kind)
    data = np.resize(values, size)
    normal = np.count_nonzero((np.abs(data) >= tiny) & np.isfinite(data))
    found = tools.normal_count(cuda.copy_of(context, data))
    assert found == (normal, size == 1)


def test_one_value_everywhere_is_told(context):
    """And one that is another."""
    data = np.full(10_007, 3, np.float16)
    assert tools.normal_count(cuda.copy_of(context, data)) == (10_007, True)
    data[-1] = 4
    assert tools.normal_count(cuda.copy_of(context, data)) == (10_007, False)
    with pytest.raises(DeviceError, match="normal numbers of int32"):
        tools.normal_count(cuda.copy_of(context, np.zeros(3, np.int32)))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(0, 20), max_size=3).map(tuple),
    dtype=st.sampled_from(["u1", "f2", "f4", "c16", "S3"]),
    offset=st.sampled_from([0, 16]),
    data=st.data(),
)
def test_rows_are_those_asked_for(shape, dtype, offset, data):
    """In their order, some twice, none of none; of a scalar the only one."""
    context = gpu.context()
    kind = np.dtype(dtype)
    array = random(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)
    buffer = cuda.Buffer(context, (offset + array.nbytes,), np.uint8)
    part = buffer.part(offset, shape, kind)
    part.write(array)
    height = shape[0] if shape else 1
    places = st.integers(0, max(height - 1, 0))
    rows = data.draw(st.lists(places, max_size=9 if height else 0))
    expected = (array if shape else array.reshape(1))[np.array(rows, np.intp)]
    found = tools.gather(part, rows)
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def test_a_row_that_is_not_there_is_refused(context):
    """Whichever side it lies on."""
    buffer = cuda.copy_of(context, np.zeros((4, 3), np.float32))
    for rows in ([4], [-1], [0, 9]):
        with pytest.raises(DeviceError, match="expected 0 to 3"):
            tools.gather(buffer, rows)

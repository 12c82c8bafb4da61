"""The buffers of a case on a GPU, and what other libraries see of them."""

import gc

import gpu
import numpy as np
import pytest

from steelyard import BenchmarkError, Builder
from steelyard.gpu.buffers import DeviceBuffers
from steelyard.preparing import inputs
from steelyard.preparing.buffers import ZONE, Buffers
from steelyard_device import cuda
from steelyard_device.cuda import dlpack
from steelyard_device.errors import DeviceError

DTYPES = ["bool", "int8", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(), (0, 3), (1,), (7,), (3, 5000), (101, 257)]


@pytest.fixture(scope="module")
def context():
    """Give the first GPU; skip without one."""
    return gpu.context()


def handles_of(shape, dtype):
    """Return an input x, an inout u and an output y of one shape."""
    b = Builder()
    return tuple(
        declare(shape, dtype, name=n)
        for declare, n in ((b.input, "x"), (b.inout, "u"), (b.output, "y"))
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpus_buffers_hold_what_a_hosts_do(context, shape, dtype):
    """The same bits at first, restored, poisoned, in rows; zones whole."""
    handles = handles_of(shape, dtype)
    here = Buffers(handles, 3, {})
    there = DeviceBuffers(context, handles, 3, {})
    for name in "xuy":
        assert there.read(name).tobytes() == here.read(name).tobytes()
        view = there.arrays[name]
        assert (view.shape, view.dtype) == (shape, dtype)
        assert view.address % cuda.ALIGNMENT == 0
    if shape and shape[0]:
        rows = np.array([0, shape[0] // 2, shape[0] - 1])
        assert np.array_equal(there.rows("x", rows), here.rows("x", rows))
    assert np.array_equal(there.pristine(handles[1]), here.pristine(handles[1]))
    there.check_zones()
    there.check_inputs()
    assert (there.nbytes, there.updates) == (here.nbytes, here.updates)
    there.arrays["u"].fill(0)
    there.arrays["y"].fill(0)
    there.restore()
    there.poison()
    for name in "uy":
        assert there.read(name).tobytes() == here.read(name).tobytes()


@pytest.mark.parametrize("shape", [(1,), (3, 5000)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_was_left_alone_is_seen(context, shape, dtype):
    """Of every dtype; one element that was written is enough."""
    there = DeviceBuffers(context, handles_of(shape, dtype), 0, {})
    with pytest.raises(BenchmarkError, match="wrote nothing to y"):
        there.check_written("y")
    view = there.arrays["y"]
    view.part(view.nbytes - view.dtype.itemsize, (1,), view.dtype).fill(0)
    there.check_written("y")


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (0, "1 bytes behind the end of"),
        (ZONE - 1, f"{ZONE} bytes behind the end of"),
        (-1, "1 bytes before the start of"),
        (-ZONE, f"{ZONE} bytes before the start of"),
    ],
)
@pytest.mark.parametrize("shape", [(0, 3), (7,), (4, 3)])
def test_a_write_outside_a_buffer_is_seen_and_measured(context, shape, offset, said):
    """Afterwards the zone is whole again."""
    there = DeviceBuffers(context, handles_of(shape, "int8"), 0, {})
    view = there.arrays["u"]
    at = offset if offset < 0 else view.nbytes + offset
    view.owner.part(ZONE + at, (1,), np.uint8).fill(0)
    with pytest.raises(BenchmarkError) as caught:
        there.check_zones()
    assert f"the work wrote up to {said} u {shape}" in str(caught.value)
    there.check_zones()


def test_a_changed_input_is_seen(context):
    """Also when only the order of its elements changed."""
    there = DeviceBuffers(context, handles_of((3000,), "float32"), 0, {})
    there.arrays["x"].write(there.read("x")[::-1].copy())
    with pytest.raises(BenchmarkError, match=r"changed its input x; .* b\.inout"):
        there.check_inputs()


def test_copies_are_compared_by_value_and_not_by_number(context):
    """NaN is equal to NaN, and 0 to -0."""
    there = DeviceBuffers(context, handles_of((3,), "float32"), 0, {})
    there.arrays["u"].write(np.array([np.nan, 0, 1], np.float32))
    copies = there.snapshot()
    assert set(copies) == {"u", "y"}
    there.arrays["u"].write(np.array([-np.nan, -0.0, 1], np.float32))
    assert there.same_as(copies)
    there.arrays["u"].write(np.array([np.nan, 0, 2], np.float32))
    assert not there.same_as(copies)
    assert there.same_as({"y": copies["y"]})


@pytest.mark.parametrize(
    "data", [[0.0, 0, 0, 1], [0.0, 0, 2, 1], [1.0] * 4, [np.nan] * 4, [1.0, 2, 3, 4]]
)
def test_data_that_users_do_not_have_is_seen_as_on_the_host(context, data):
    """Mostly zeros, or all of one value."""
    there = DeviceBuffers(context, handles_of((4,), "float32"), 0, {})
    there.arrays["u"].write(np.array(data, np.float32))
    assert there.collapsed("u") is inputs.collapsed(np.array(data, np.float32))


def test_what_does_not_fit_is_named(context):
    """Before the driver is asked."""
    handles = (Builder().output((1 << 45,), name="y"),)
    with pytest.raises(BenchmarkError, match=r"they need .*iB, .* are free"):
        DeviceBuffers(context, handles, 0, {})


def test_a_part_lies_within_its_array(context):
    """Or is refused."""
    whole = cuda.copy_of(context, np.arange(10, dtype=np.int32))
    assert whole.part(8, (2,), np.int32).read().tolist() == [2, 3]
    for offset, count in ((-4, 1), (36, 2), (44, 0)):
        with pytest.raises(DeviceError, match="do not lie within"):
            whole.part(offset, (count,), np.int32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_takes_a_buffer_without_a_copy(context, shape, dtype):
    """By DLPack and by the interface for arrays; it may outlive the buffer."""
    torch = pytest.importorskip("torch")
    data = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    buffer = cuda.copy_of(context, data)
    for tensor in (torch.from_dlpack(buffer), torch.as_tensor(buffer, device="cuda")):
        if data.size:
            assert tensor.data_ptr() == buffer.address
        assert tensor.dtype == getattr(torch, dtype)
        assert np.array_equal(tensor.cpu().numpy(), data)
    lent = len(dlpack._LENT)
    kept = torch.from_dlpack(buffer)
    del buffer, tensor
    gc.collect()
    assert np.array_equal(kept.cpu().numpy(), data)
    assert len(dlpack._LENT) >= lent
    del kept
    gc.collect()
    assert len(dlpack._LENT) <= lent


def test_cupy_and_numba_take_a_buffer_without_a_copy(context):
    """By its address."""
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = cuda.copy_of(context, data)
    cupy = pytest.importorskip("cupy")
    for array in (cupy.from_dlpack(buffer), cupy.asarray(buffer)):
        assert array.data.ptr == buffer.address
        assert np.array_equal(cupy.asnumpy(array), data)
    numba = pytest.importorskip("numba.cuda")
    array = numba.as_cuda_array(buffer)
    assert np.array_equal(array.copy_to_host(), data)

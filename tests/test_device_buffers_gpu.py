"""The buffers of a case on a GPU, and what other libraries see of them."""

import gc

import numpy as np
import pytest
from test_device_buffers import (
    DTYPES,
    SHAPES,
    test_a_changed_input_is_seen,
    test_a_gpus_buffers_hold_what_a_hosts_do,
    test_a_part_lies_within_its_array,
    test_a_write_outside_a_buffer_is_seen_and_measured,
    test_an_output_that_was_left_alone_is_seen,
    test_copies_are_compared_by_value,
    test_data_that_users_do_not_have_is_seen_as_on_the_host,
    test_outputs_get_back_what_a_snapshot_holds,
)

from steelyard import BenchmarkError, Builder
from steelyard.prepare.gpu_buffers import DeviceBuffers
from steelyard_device import cuda
from steelyard_device.cuda import dlpack

__all__ = [
    "test_a_changed_input_is_seen",
    "test_a_gpus_buffers_hold_what_a_hosts_do",
    "test_a_part_lies_within_its_array",
    "test_a_write_outside_a_buffer_is_seen_and_measured",
    "test_an_output_that_was_left_alone_is_seen",
    "test_copies_are_compared_by_value",
    "test_data_that_users_do_not_have_is_seen_as_on_the_host",
    "test_outputs_get_back_what_a_snapshot_holds",
]
"""What holds of a GPU whose memory is the host's, on one of its own."""


@pytest.fixture
def place(context):
    """Give the GPU's context."""
    return context


def test_what_does_not_fit_is_named(context):
    """Before the driver is asked."""
    handles = (Builder().output((1 << 45,), name="y"),)
    with pytest.raises(BenchmarkError, match=r"they need .*iB, .* are free"):
        DeviceBuffers(context, handles, 0, {})


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

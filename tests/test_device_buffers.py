"""The buffers of a case on a GPU whose memory is the host's, and what all buffers do.

Those that want nothing of the driver but its work run on a GPU too, where `context` and
`place` are its own: `test_device_buffers_gpu`.
"""

import gc

import host_memory_gpu
import numpy as np
import pytest

from steelyard import BenchmarkError, Builder
from steelyard.prepare import inputs
from steelyard.prepare.buffers import SMALL, ZONE, Buffers
from steelyard.prepare.gpu_buffers import DeviceBuffers
from steelyard_device import cuda
from steelyard_device.cuda.device import KEPT
from steelyard_device.errors import DeviceError

SHAPES = [(), (0, 3), (1,), (7,), (3, 5000), (101, 257)]
DTYPES = ["bool", "int8", "int32", "int64", "float16", "float32", "float64"]


@pytest.fixture
def driver(monkeypatch):
    """Give a GPU whose memory is the host's."""
    fake = host_memory_gpu.install(monkeypatch)
    yield fake
    if fake.memory:  # what an error's traceback holds goes back to the fake
        gc.collect()


@pytest.fixture
def context(driver):
    """Give its context."""
    return host_memory_gpu.CONTEXT


@pytest.fixture(params=["host", "gpu"])
def place(request):
    """Give the context of the GPU where buffers lie; None is the host's memory."""
    return request.getfixturevalue("context") if request.param == "gpu" else None


def handles_of(shape=(4, 3), dtype="float32"):
    """Return an input x, an inout u and an output y of one shape."""
    b = Builder()
    return tuple(
        declare(shape, dtype, name=n)
        for declare, n in ((b.input, "x"), (b.inout, "u"), (b.output, "y"))
    )


def buffers_of(shape=(4, 3), dtype="float32", context=host_memory_gpu.CONTEXT):
    """Allocate them."""
    if context is None:
        return Buffers(handles_of(shape, dtype), 3, {})
    return DeviceBuffers(context, handles_of(shape, dtype), 3, {})


def put(buffers, name, values):
    """Write values to a buffer."""
    view = buffers.arrays[name]
    data = np.array(values, view.dtype)
    view.write(data) if buffers.context else np.copyto(view, data)


def spoil(view, offset):
    """Write to the byte that far before (below 0) or behind a buffer."""
    at = offset if offset < 0 else view.nbytes + offset
    if isinstance(view, np.ndarray):
        view.base[view.ctypes.data - view.base.ctypes.data + at] ^= 1
    else:
        view.owner.part(ZONE + at, (1,), np.uint8).fill(1)


def end(view):
    """Write a zero to a buffer's last element."""
    if isinstance(view, np.ndarray):
        view.reshape(-1)[-1] = 0
    else:
        view.part(view.nbytes - view.dtype.itemsize, (1,), view.dtype).fill(0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpus_buffers_hold_what_a_hosts_do(context, shape, dtype):
    """The same bits at first and restored, on the alignment of a pool; zones whole."""
    here, there = (
        Buffers(handles_of(shape, dtype), 3, {}),
        buffers_of(shape, dtype, context),
    )
    for _ in range(2):
        for name in "xuy":
            assert there.read(name).tobytes() == here.read(name).tobytes()
            view = there.arrays[name]
            assert (view.shape, view.dtype) == (shape, dtype)
            assert view.address % cuda.ALIGNMENT == 0
        there.check_zones()
        there.check_inputs()
        there.arrays["u"].fill(0)
        there.arrays["y"].fill(0)
        there.restore()
        there.poison()
    handle = there.handles[1]
    assert there.pristine(handle).tobytes() == here.pristine(handle).tobytes()
    assert (there.nbytes, there.updates) == (here.nbytes, here.updates)
    if shape and shape[0]:
        rows = np.array([0, shape[0] // 2, shape[0] - 1])
        assert np.array_equal(there.rows("x", rows), here.rows("x", rows))


def test_memory_is_given_back_with_the_buffers(driver):
    """All of it, copies that restore among it."""
    buffers = buffers_of()
    assert len(driver.memory) == 4
    view = buffers.arrays["x"]
    del buffers
    gc.collect()
    assert len(driver.memory) == 1  # what somebody holds a part of stays
    del view
    gc.collect()
    assert not driver.memory


def test_restoring_and_poisoning_wait_for_nothing(driver):
    """They stand between a flush and a launch."""
    buffers = buffers_of()
    driver.calls.clear()
    buffers.restore()
    buffers.poison()
    assert driver.calls
    assert "wait" not in driver.calls


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (0, "1 bytes behind the end of"),
        (5, "6 bytes behind the end of"),
        (ZONE - 1, f"{ZONE} bytes behind the end of"),
        (-1, "1 bytes before the start of"),
        (-ZONE, f"{ZONE} bytes before the start of"),
    ],
)
@pytest.mark.parametrize("shape", [(4, 3), (), (0, 3)])
def test_a_write_outside_a_buffer_is_seen_and_measured(place, shape, offset, said):
    """Of a buffer of no bytes too; afterwards the zone is whole again."""
    buffers = buffers_of(shape, context=place)
    for name, view in buffers.arrays.items():
        spoil(view, offset)
        with pytest.raises(BenchmarkError) as caught:
            buffers.check_zones()
        assert f"the work wrote up to {said} {name} {shape}" in str(caught.value)
        buffers.check_zones()


def test_a_changed_input_is_seen(context):
    """Also when only the order of its elements changed; and what to declare instead."""
    buffers = buffers_of((3000,), context=context)
    buffers.arrays["x"].write(buffers.read("x")[::-1].copy())
    with pytest.raises(BenchmarkError, match=r"changed its input x; .* b\.inout"):
        buffers.check_inputs()


@pytest.mark.parametrize("shape", [(), (1,), (3, 5000)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_that_was_left_alone_is_seen(place, shape, dtype):
    """Again after it is poisoned on request; one element that was written is enough."""
    buffers = buffers_of(shape, dtype, place)
    for _ in range(2):
        with pytest.raises(BenchmarkError, match="wrote nothing to y"):
            buffers.check_written("y")
        end(buffers.arrays["y"])
        buffers.check_written("y")
        buffers.poison()


def test_copies_are_compared_by_value(place):
    """Of what the work may write; NaN is equal to NaN whatever its bits, and 0 to -0."""
    buffers = buffers_of((3,), context=place)
    put(buffers, "u", [np.nan, 0, 1])
    copies = buffers.snapshot()
    assert set(copies) == {"u", "y"}
    put(buffers, "u", [-np.nan, -0.0, 1])
    assert buffers.same_as(copies)
    put(buffers, "u", [np.nan, 0, 2])
    assert not buffers.same_as(copies)
    assert buffers.same_as({"y": copies["y"]})


def test_outputs_get_back_what_a_snapshot_holds(place):
    """By a copy where they lie; in-place arguments keep what they have."""
    buffers = buffers_of((3,), context=place)
    held = np.array([1, np.nan, 3], np.float32)
    put(buffers, "y", held)
    copies = buffers.snapshot()
    buffers.poison()
    buffers.arrays["u"].fill(7)
    buffers.put(copies)
    assert np.array_equal(buffers.read("y"), held, equal_nan=True)
    assert (buffers.read("u") == 7).all()


@pytest.mark.parametrize(
    "data",
    [[], [0.0], [0.0, 0, 0, 1], [0.0, 0, 2, 1], [1.0] * 4, [np.nan] * 4, [1.0, 2, 3]],
)
def test_data_that_users_do_not_have_is_seen_as_on_the_host(place, data):
    """Of no elements and of one too."""
    buffers = buffers_of((len(data),), context=place)
    put(buffers, "u", data)
    assert buffers.collapsed("u") is inputs.collapsed(np.array(data, np.float32))


def test_what_does_not_fit_is_named_before_it_is_asked_for(driver):
    """What our pool keeps is as good as free."""
    driver.free = SMALL
    count = (SMALL + KEPT) // 4 + 1
    with pytest.raises(BenchmarkError, match=r"they need 1\.\d+ GiB, .* are free"):
        DeviceBuffers(
            host_memory_gpu.CONTEXT, (Builder().output(count, name="y"),), 0, {}
        )
    assert not driver.memory


def test_what_the_driver_refuses_is_named_too(driver):
    """With what is needed and what is free."""
    driver.refuses.add("alloc")
    with pytest.raises(BenchmarkError, match="do not fit into memory: they need"):
        buffers_of()


def test_a_part_lies_within_its_array(context):
    """Or is refused."""
    whole = cuda.copy_of(context, np.arange(10, dtype=np.int32))
    part = whole.part(8, (2,), np.int32)
    assert part.read().tolist() == [2, 3]
    assert part.owner is whole
    assert whole.part(40, (0, 3), np.int32).nbytes == 0
    for offset, count in ((-4, 1), (36, 2), (44, 0)):
        with pytest.raises(DeviceError, match="do not lie within"):
            whole.part(offset, (count,), np.int32)


def test_arrays_of_two_sizes_are_not_copied_over_each_other(driver):
    """Neither would be whole."""
    one, two = (cuda.Buffer(host_memory_gpu.CONTEXT, (n,), "float32") for n in (3, 4))
    with pytest.raises(DeviceError, match="16 bytes were to be copied over 12"):
        one.copy_from(two)


@pytest.mark.parametrize(
    ("stream", "waits"),
    [(None, True), (1, True), (-1, False), (host_memory_gpu.CONTEXT.stream, False)],
)
def test_an_array_is_handed_over_when_it_is_ready(driver, stream, waits):
    """On the stream of who takes it; ours needs no waiting."""
    buffer = cuda.Buffer(host_memory_gpu.CONTEXT, (3,), "float32")
    driver.calls.clear()
    assert "dltensor" in repr(buffer.__dlpack__(stream=stream, max_version=(1, 0)))
    assert ("wait" in driver.calls) is waits
    assert buffer.__dlpack_device__() == (2, 0)
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.address, False)
    assert interface["stream"] == host_memory_gpu.CONTEXT.stream

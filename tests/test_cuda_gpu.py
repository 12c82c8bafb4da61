"""The CUDA half of the device layer on a GPU."""

import ctypes
import functools
import gc
import subprocess
import sys
import threading

import gpu
import numpy as np
import pytest

from steelyard_device import cubin as reader
from steelyard_device import cuda, nvrtc
from steelyard_device.cuda.device import KEPT
from steelyard_device.cuda.driver import CUDAError
from steelyard_device.errors import DeviceError

TEXT = r"""
extern "C" __global__ void add(float* x, float y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y;
}
extern "C" __global__ void append(int* list, int value) { list[++list[0]] = value; }
struct Wide { double a[3]; short b; };
extern "C" __global__ void wide(Wide given, double* out) {
  out[0] = given.a[0] + given.a[1] + given.a[2] + given.b;
}
extern "C" __global__ void __launch_bounds__(256) tile(float* x) {
  extern __shared__ float own[];
  __shared__ float fixed[100];
  own[threadIdx.x] = x[threadIdx.x];
  fixed[threadIdx.x % 100] = 1;
  __syncthreads();
  x[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x] + fixed[0] - 1;
}
extern "C" __global__ void fault(int* x) { *x = 1; }
extern "C" __global__ void chase(const char* x, long long step, long long* cycles) {
  unsigned at = 0;
  long long before, after;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(before) :: "memory");
  #pragma unroll 1
  for (int i = 0; i < 256; ++i)
    asm volatile("ld.global.cg.u32 %0, [%1];"
                 : "=r"(at) : "l"(x + i * step + at) : "memory");
  cycles[1] = at;  // loads that nobody needs would be left out
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(after) :: "memory");
  cycles[0] = after - before;
}
"""


@functools.cache
def compiled(arch):
    """Compile the kernels of these tests."""
    return nvrtc.compile(TEXT, arch).cubin


def function(context, entry):
    """Return one of them."""
    return cuda.load(context, compiled(context.device.arch)).function(entry)


def word(value):
    """Return a float32 as a kernel takes it."""
    return bytes(ctypes.c_float(value))


def test_a_gpu_says_what_it_is(context):
    """As its cubins and nvidia-smi name it."""
    found = cuda.devices()[0]
    assert found == context.device
    assert found.arch.startswith("sm_")
    assert found.uuid.startswith("GPU-")
    assert found.multiprocessors > 0
    assert found.l2_bytes > 1 << 20
    assert found.memory_bytes > context.free_bytes() > 0


def test_a_gpu_that_is_not_there_is_named(context):
    """With the numbers that there are."""
    with pytest.raises(DeviceError, match="there is no GPU 99, expected 0 to"):
        cuda.device(99)


@pytest.mark.parametrize("count", [0, 1, 31, 1 << 20, 1_000_003])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_a_buffer_keeps_what_is_written(context, count, dtype):
    """Of any number of elements, none among them, on the alignment that is stated."""
    array = np.random.default_rng(count).integers(0, 100, count).astype(dtype)
    buffer = cuda.copy_of(context, array)
    assert buffer.address % cuda.ALIGNMENT == 0
    assert np.array_equal(buffer.read(), array)


@pytest.mark.parametrize("count", [0, 1, 1000, 1 << 20])
@pytest.mark.parametrize("value", [0, 3, -1])
@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "float64", "complex128"]
)
def test_a_buffer_is_filled_with_any_value(context, dtype, value, count):
    """Of one, two, four, eight or sixteen bytes."""
    buffer = cuda.Buffer(context, (count,), dtype)
    buffer.fill(value)
    assert np.array_equal(buffer.read(), np.full(count, value, dtype))


def test_arrays_that_do_not_fit_a_buffer_are_refused(context):
    """In shape, in dtype, in order, or to be written."""
    buffer = cuda.Buffer(context, (4, 4), "float32")
    with pytest.raises(DeviceError, match=r"float32 \(4,\) does not fit"):
        buffer.write(np.zeros(4, np.float32))
    with pytest.raises(DeviceError, match=r"float64 \(4, 4\) does not fit"):
        buffer.read(np.zeros((4, 4)))
    with pytest.raises(DeviceError, match="cannot be read into"):
        buffer.read(np.zeros((4, 4), np.float32).T)
    turned = np.arange(16, dtype=np.float32).reshape(4, 4).T
    buffer.write(turned)
    assert np.array_equal(buffer.read(), turned)


def test_memory_given_back_is_used_again(context):
    """A hundred buffers of a tenth of the memory, one after another; free twice is once."""
    size = context.free_bytes() // 10
    for _ in range(100):
        cuda.Buffer(context, (size,), np.uint8)
    gc.collect()
    buffer = cuda.Buffer(context, (size,), np.uint8)
    buffer.free()
    buffer.free()


def test_a_launch_may_outlive_the_handle_of_its_memory(context):
    """Memory goes back behind the launches that were queued before."""
    spin = cuda.Spin(context)
    x = cuda.Buffer(context, (1 << 20,), np.float32)
    x.fill(0)
    add = function(context, "add")
    launch = cuda.Launch(add, [x.address, word(1), 1 << 20], grid=4096, block=256)
    y = cuda.Buffer(context, (1 << 20,), np.float32)
    with spin.held():
        launch.launch()
        x.free()
        z = cuda.Buffer(context, (1 << 20,), np.float32)
        z.fill(5)
        y.fill(2)
    assert (z.read() == 5).all()
    assert (y.read() == 2).all()


def test_too_much_memory_is_refused_in_a_sentence_and_nothing_is_lost(context):
    """The next allocation works."""
    with pytest.raises(CUDAError, match="CUDA_ERROR_OUT_OF_MEMORY") as caught:
        cuda.Buffer(context, (context.device.memory_bytes * 2,), np.uint8)
    assert not caught.value.lost
    assert cuda.copy_of(context, np.arange(3)).read().tolist() == [0, 1, 2]


def test_a_cubin_is_loaded_once(context):
    """Whoever asks, from a copy of its bytes too."""
    code = compiled(context.device.arch)
    assert cuda.load(context, code) is cuda.load(context, bytes(bytearray(code)))


def test_an_entry_that_is_not_there_is_named(context):
    """With the driver's own name of the error."""
    with pytest.raises(CUDAError, match=r"finding nothing in .* CUDA_ERROR_NOT_FOUND"):
        function(context, "nothing")


def test_code_for_another_gpu_is_refused(context):
    """The sentence says what to make."""
    other = "sm_80" if context.device.arch != "sm_80" else "sm_90a"
    with pytest.raises(CUDAError, match=r"CUDA_ERROR_NO_BINARY_FOR_GPU.*this very GPU"):
        cuda.load(context, nvrtc.compile(TEXT, other).cubin)


@pytest.mark.parametrize("entry", ["add", "append", "wide", "tile", "fault"])
def test_the_driver_and_the_cubin_say_the_same(context, entry):
    """Of registers, shared memory, threads and architecture."""
    seen = function(context, entry)
    read = reader.read(compiled(context.device.arch))[entry]
    said = seen.attributes
    assert said.registers == read.registers
    assert said.shared == read.shared
    assert said.local == read.stack
    assert said.arch == read.arch
    assert said.max_threads == (read.max_threads or 1024)


def test_parameters_are_as_the_kernel_declares_them(context):
    """A struct by value among them."""
    assert function(context, "add").parameters == (8, 4, 4)
    assert function(context, "wide").parameters == (32, 8)
    assert cuda.null(context).function.parameters == ()


def test_occupancy_falls_with_shared_memory(context):
    """A block that needs more than half of it is alone."""
    tile = function(context, "tile")
    assert tile.occupancy(256) >= 2
    tile.allow_shared(64 << 10)
    assert 0 < tile.occupancy(256, 64 << 10) < tile.occupancy(256)


def test_a_launch_runs_as_often_as_it_is_asked(context):
    """Count by count, and natively in a window."""
    x = cuda.Buffer(context, (1000,), np.float32)
    x.fill(0)
    add = function(context, "add")
    launch = cuda.Launch(add, [x.address, word(1), 1000], grid=4, block=256)
    launch.launch()
    launch.launch(10)
    launch.launch(0)
    start, stop = launch.window(100)
    assert start < stop
    assert x.read().tolist() == [111.0] * 1000
    assert launch.facts()["registers"] == add.attributes.registers


def test_a_struct_goes_by_value(context):
    """As bytes, its padding too."""
    out = cuda.Buffer(context, (1,), np.float64)
    given = np.array([1, 2, 3]).astype(np.float64).tobytes() + b"\7\0" + bytes(6)
    wide = function(context, "wide")
    cuda.Launch(wide, [given, out.address], grid=1, block=1).launch()
    assert out.read().tolist() == [13.0]


def test_a_block_can_have_more_shared_memory_than_is_free(context):
    """With the driver's leave, which the launch asks for."""
    x = cuda.copy_of(context, np.arange(256, dtype=np.float32))
    tile = function(context, "tile")
    cuda.Launch(tile, [x.address], grid=1, block=256, shared=90 << 10).launch()
    assert x.read().tolist() == list(range(255, -1, -1))
    with pytest.raises(
        CUDAError, match="1073741824 bytes of shared memory failed with"
    ):
        cuda.Launch(tile, [x.address], grid=1, block=256, shared=1 << 30)


def test_a_block_that_is_too_large_is_refused_in_a_sentence(context):
    """And the next launch runs."""
    null = cuda.null(context).function
    with pytest.raises(
        CUDAError, match=r"block \(2048, 1, 1\) failed with CUDA_ERROR_"
    ):
        cuda.Launch(null, [], grid=1, block=2048).launch()
    cuda.null(context).window(3)


def appended(context, values):
    """Return a list on the GPU and launches that append each value to it."""
    out = cuda.Buffer(context, (1000,), np.int32)
    out.fill(0)
    append = function(context, "append")
    launches = [
        cuda.Launch(append, [out.address, value], grid=1, block=1) for value in values
    ]
    return out, launches


def test_arguments_rotate_in_order(context):
    """And go on where they stopped."""
    out, launches = appended(context, [5, 6, 7])
    rotation = cuda.Rotation(launches)
    rotation.launch(4)
    rotation.launch()
    rotation.window(2)
    assert out.read()[:8].tolist() == [7, 5, 6, 7, 5, 6, 7, 5]


def test_a_graph_runs_its_launches_in_order_and_takes_new_arguments(context):
    """Made once: an update changes what it passes, and a rotation goes on."""
    out, launches = appended(context, [5, 6, 7])
    graph = cuda.Graph(cuda.Rotation(launches), 4)
    assert out.read()[0] == 0, "making a graph runs nothing"
    graph.launch(2)
    graph.wait()
    assert out.read()[:9].tolist() == [8, 5, 6, 7, 5, 5, 6, 7, 5]
    launches[2].set(1, 70)
    graph.update()
    out.fill(0)
    graph.launch()
    assert out.read()[:5].tolist() == [4, 6, 70, 5, 6]


def test_a_stream_takes_launches_after_a_graph_that_failed(context):
    """It is not left recording."""
    null = cuda.null(context)
    wrong = cuda.Launch(null.function, [], grid=1, block=2048)
    with pytest.raises(CUDAError):
        cuda.Graph(wrong, 3)
    null.window(3)


def test_any_thread_may_launch(context):
    """It has no context of its own, and is left with none."""
    x = cuda.Buffer(context, (1,), np.float32)
    x.fill(0)
    add = function(context, "add")
    launch = cuda.Launch(add, [x.address, word(1), 1], grid=1, block=1)
    left = []

    def work():
        from cuda.bindings import driver

        launch.launch(10)
        launch.wait()
        left.append(int(driver.cuCtxGetCurrent()[1]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert left == [0] * 4
    assert x.read()[0] == 40


def test_nothing_behind_a_spin_runs_before_it_is_released(context):
    """And everything does then; several are released together."""
    out, launches = appended(context, [5])
    context.wait()
    event = cuda.Event(context)
    spin = cuda.Spin(context)
    spin.launch()
    launches[0].launch(10)
    spin.launch()
    launches[0].launch(10)
    event.record()
    assert not event.passed()
    spin.release()
    event.wait()
    assert event.passed()
    assert not spin.expired
    assert out.read()[0] == 20


def test_a_spin_that_nobody_releases_ends_by_itself(context):
    """And says so; the next one is good again."""
    spin = cuda.Spin(context, seconds=0.001)
    spin.launch()
    context.wait()
    assert spin.expired
    spin.release()
    with spin.held():
        spin.release()
    context.wait()
    assert not spin.expired


def test_a_spin_is_released_when_what_it_holds_up_fails(context):
    """Or the next wait would be for nothing."""
    spin = cuda.Spin(context)
    with pytest.raises(ZeroDivisionError), spin.held():
        raise ZeroDivisionError
    context.wait()
    assert not spin.expired


def test_as_many_launches_as_promised_fit_behind_a_spin(context):
    """Without waiting for it, with an event at either end."""
    spin, pair = cuda.Spin(context), cuda.EventPair(context)
    null = cuda.null(context)
    with spin.held():
        pair.before.record()
        null.launch(cuda.QUEUE)
        pair.after.record()
    pair.after.wait()
    assert not spin.expired
    assert pair.nanoseconds() > 0


def test_a_delay_takes_four_cycles_a_step_and_the_clocks_agree(context):
    """By the multiprocessor's own counter: steps are dependent and nothing else counts.

    Four cycles is the latency of a multiply-add since Volta; the loop's jump adds 1 %.
    """
    steps = (256_000, 2_560_000)
    short, long = (cuda.Delay(context, count) for count in steps)
    short.launch(3)
    long.launch(3)
    slope = (long.cycles() - short.cycles()) / (long.steps - short.steps)
    assert 4 <= slope < 4.1
    assert long.nanoseconds() > short.nanoseconds() > 0


@pytest.mark.parametrize(("asked", "made"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_a_delay_makes_the_steps_it_says(context, asked, made):
    """Whole turns of its loop."""
    delay = cuda.Delay(context, asked)
    delay.launch()
    assert delay.steps == made
    assert delay.cycles() >= 4 * made


def test_a_flush_reads_twice_the_cache_at_least(context):
    """More where more is asked."""
    flush = cuda.Flush(context)
    assert flush.nbytes >= 2 * context.device.l2_bytes
    assert cuda.Flush(context, 1 << 30).nbytes == 1 << 30
    flush()
    context.wait()


def said_by(script):
    """Return the lines of a process of its own, which ends well and complains of nothing."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=gpu.__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 24 << 20])
def test_a_flush_leaves_nothing_of_others_in_the_cache(context, nbytes):
    """Each of 256 loads that wait for each other takes twice as long, or more."""
    flush = cuda.Flush(context)
    x = cuda.Buffer(context, (nbytes,), np.uint8)
    cycles = cuda.Buffer(context, (2,), np.int64)
    args = [x.address, nbytes // 256, cycles.address]
    chase = cuda.Launch(function(context, "chase"), args, grid=1, block=1)
    x.fill(0)
    chase.launch(2)
    warm = cycles.read()[0]
    x.fill(0)
    flush()
    chase.launch()
    assert cycles.read()[0] > 2 * warm > 0


FAULTY = """
import gpu, test_cuda_gpu as t
from steelyard_device import cuda
context = gpu.context()
kept = [cuda.Buffer(context, (9,), "int8"), cuda.Event(context), cuda.Spin(context)]
kept.append(cuda.Graph(cuda.null(context), 3))
dropped = cuda.Buffer(context, (9,), "int8"), cuda.Graph(cuda.null(context), 3)
cuda.Launch(t.function(context, "fault"), [16], grid=1, block=1).launch()
for act in (context.wait, context.wait, cuda.null, kept[-1].launch):
    try:
        act(context) if act is cuda.null else act()
    except cuda.CUDAError as error:
        print(error.lost, error)
del dropped
"""


def test_a_kernel_that_faults_ends_in_sentences(context):
    """Whatever is called next, in a process that still ends well; this one goes on."""
    first, second, *others = said_by(FAULTY)
    assert first.startswith("True waiting for GPU 0 failed with CUDA_ERROR_ILLEGAL_ADD")
    assert second == first
    assert len(others) == 2
    assert all(line.startswith("True ") for line in others)
    context.wait()


FORKED = """
import os, warnings
from steelyard_device import cuda
context = cuda.context()
buffer = cuda.Buffer(context, (9,), "int8")
warnings.simplefilter("ignore")  # Python's own, of the driver's threads
if child := os.fork():
    os.waitpid(child, 0)
    print(buffer.read().size)
else:
    try:
        buffer.read()
    except cuda.CUDAError as error:
        print(error, flush=True)
    del buffer
    os._exit(0)
"""


def test_a_forked_process_is_told_to_spawn(context):
    """And its parent goes on."""
    child, parent = said_by(FORKED)
    assert "CUDA_ERROR_NOT_INITIALIZED" in child
    assert child.endswith("start processes with multiprocessing's spawn.")
    assert parent == "9"


def test_memory_that_is_given_back_is_there_for_other_programs(context):
    """But for what the pool keeps."""
    before = context.free_bytes()
    buffer = cuda.Buffer(context, (context.free_bytes() // 2,), np.uint8)
    assert context.free_bytes() < before * 0.6
    buffer.free()
    context.wait()
    assert context.free_bytes() >= before - KEPT


def test_pytorch_shares_memory_and_streams(context):
    """Both ways, on our stream and on its own; it goes on working."""
    torch = pytest.importorskip("torch", reason="shares the GPU with PyTorch")
    ours = cuda.copy_of(context, np.arange(1000, dtype=np.float32))
    add = function(context, "add")
    theirs = torch.arange(1000, device="cuda", dtype=torch.float32)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        seen = torch.as_tensor(ours, device="cuda")
        assert seen.data_ptr() == ours.address
        seen += theirs
        args = [seen.data_ptr(), word(0.5), 1000]
        handle = stream.cuda_stream
        cuda.Launch(add, args, grid=4, block=256, stream=handle).launch()
        total = seen.sum()
    stream.synchronize()
    expected = 2.0 * np.arange(1000) + 0.5
    assert total.item() == expected.sum()
    assert np.array_equal(ours.read(), expected.astype(np.float32))
    assert torch.cuda.current_device() == 0
    assert (torch.ones(10, device="cuda") * 2).sum().item() == 20

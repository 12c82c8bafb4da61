"""Other people's work on a GPU: in their arrays, on our stream, and off it."""

import ctypes
import functools
import threading

import numpy as np
import pytest
from fakes import case_of

from steelyard import BenchmarkError
from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import allocation, cubins, work
from steelyard_device import cuda, nvrtc

TEXT = r"""
extern "C" __global__ void scale(const float* x, float* y, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = by * x[i];
}
"""


pytestmark = pytest.mark.usefixtures("context")


@functools.cache
def cubin():
    """Compile the kernel of these tests."""
    return nvrtc.compile(TEXT, cuda.device().arch).cubin


def prepared(target, *, form="numpy", size=1000, stream=False, settings=None, **more):
    """Prepare a case that negates: ``target(x, y)``, checked."""

    def body(b):
        b.on("cuda")
        x = b.input(size)
        y = b.output(size)
        b.check(lambda x: -x, x)
        given = (x, y, b.stream) if stream else (x, y)
        return b.launch(target, *given, as_=form, **more)

    return PreparedCase(case_of(body), settings or Settings())


def launched(case):
    """Launch it again on poisoned buffers and check what a timed launch leaves."""
    case.buffers.restore()
    case.buffers.poison()
    case.work.launch(2)
    case.check(2)
    return case


def grid(x, *_):
    """Return blocks for each element."""
    return -(-x.size // 128)


@pytest.mark.parametrize("scalar", [-1.0, np.float32(-1), ctypes.c_float(-1)])
@pytest.mark.parametrize("by_path", [True, False])
def test_anyones_cubin_is_work(context, tmp_path, scalar, by_path):
    """Native, its scalars as the kernel takes them; from a file too."""
    (tmp_path / "it.cubin").write_bytes(cubin())
    source = tmp_path / "it.cubin" if by_path else cubin()
    target = cubins.Cubin(source, "scale", grid=grid, block=128)

    def body(b):
        b.on("cuda")
        x = b.input(1000)
        y = b.output(1000)
        b.check(lambda x: -x, x)
        return b.launch(target, x, y, 1000, scalar)

    case = launched(PreparedCase(case_of(body), Settings()))
    assert isinstance(case.work, work.NativeWork)
    assert isinstance(case.work, work.DeviceWork)
    facts = case.facts()
    assert facts["registers"] > 0
    assert facts["grid"] == (8, 1, 1)
    assert len(facts["code_hash"]) == 32
    case.work.null().launch()
    graph = cuda.Graph(case.work, 3)
    graph.launch()
    graph.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1000,), "takes 4 parameters of"),
        ((1000, "no"), "argument 3 of scale is 'no', which does not fit"),
        ((1 << 40, -1.0), "argument 2 of scale is"),
    ],
)
def test_arguments_that_a_kernel_does_not_take_are_named(arguments, said):
    """By place."""
    target = cubins.Cubin(cubin(), "scale", grid=1, block=128)

    def body(b):
        b.on("cuda")
        x = b.input(1000)
        y = b.output(1000)
        return b.launch(target, x, y, *arguments)

    with pytest.raises(BenchmarkError, match=said):
        PreparedCase(case_of(body), Settings())


def test_pytorchs_current_stream_is_ours(context):
    """Eager and by b.stream; the version is in the row."""
    torch = pytest.importorskip("torch")
    case = launched(prepared(lambda x, y: torch.neg(x, out=y), form="torch"))
    assert case.facts()["library"].startswith(f"torch {torch.__version__}")
    assert "synchronises" not in case.facts()
    assert torch.cuda.current_stream().cuda_stream == context.stream
    graph = cuda.Graph(case.work, 5)
    graph.launch()
    graph.wait()


def test_work_on_a_side_stream_that_is_joined_passes():
    """Ours waits for it."""
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()

    def target(x, y):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.neg(x, out=y)
        torch.cuda.current_stream().wait_stream(side)

    launched(prepared(target, form="torch"))


@pytest.mark.parametrize("size", [1000, 1 << 24])
def test_work_on_a_side_stream_is_caught(size):
    """Nothing there waits for ours, nor ours for it."""
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()

    def target(x, y):
        with torch.cuda.stream(side):
            torch.neg(x, out=y)

    with pytest.raises(BenchmarkError, match=r"wrote y while .* Pass it b\.stream"):
        prepared(target, form="torch", size=size)


@pytest.mark.parametrize("after", [0.0, 0.01])
def test_work_of_another_thread_is_caught(after):
    """Whose current stream is the default one; a while later too."""
    torch = pytest.importorskip("torch")

    def target(x, y):
        threading.Timer(after, lambda: torch.neg(x, out=y)).start()

    with pytest.raises(BenchmarkError, match="another stream"):
        prepared(target, form="torch")


def test_work_that_waits_inside_is_known_by_it():
    """It passes; clocks must not hold its stream."""
    torch = pytest.importorskip("torch")

    def target(x, y):
        torch.neg(x, out=y)
        torch.cuda.synchronize()

    case = launched(prepared(target, form="torch"))
    assert case.facts()["synchronises"] is True
    assert case.work.facts()["synchronises"] is True


def test_triton_launches_on_our_stream():
    """PyTorch's current one."""
    torch = pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    from triton_negate import negate

    def target(x, y):
        negate[(8,)](x, y, 1000, 128)

    case = launched(prepared(target, form="torch"))
    assert f"triton {triton.__version__}" in case.facts()["library"]
    assert torch.__version__ in case.facts()["library"]


CUPY = r"""
extern "C" __global__ void negate(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = -x[i];
}
"""


def test_cupys_current_stream_is_ours():
    """Its own kernels and raw ones; on the default stream they are caught."""
    cupy = pytest.importorskip("cupy")
    kernel = cupy.RawKernel(CUPY, "negate")

    def raw(x, y):
        kernel((8,), (128,), (x, y, np.int32(1000)))

    def default(x, y):
        with cupy.cuda.Stream.null:
            raw(x, y)

    case = launched(prepared(lambda x, y: cupy.negative(x, out=y), form="cupy"))
    assert case.facts()["library"] == f"cupy {cupy.__version__}"
    launched(prepared(raw, form="cupy"))
    with pytest.raises(BenchmarkError, match="wrote y while its stream was held"):
        prepared(default, form="cupy")


def test_numba_is_given_our_stream(monkeypatch):
    """Without it a launch is on the default one, and caught."""
    numba = pytest.importorskip("numba.cuda")
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0)
    # Some ask NumPy for a name that it had until 2.4.
    monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)

    @numba.jit
    def negate(x, y):
        i = numba.grid(1)
        if i < x.size:
            y[i] = -x[i]

    def on_stream(x, y, stream):
        negate[8, 128, stream](x, y)

    launched(prepared(on_stream, form="numba", stream=True))
    with pytest.raises(BenchmarkError, match="another stream"):
        prepared(negate[8, 128], form="numba")


@pytest.mark.parametrize("form", ["torch", "cupy", "numba", "numpy"])
def test_outputs_may_be_new_in_each_call(context, form):
    """Allocated as the library's users do."""
    if form != "numpy":
        pytest.importorskip(form)
    seen = []

    def body(b):
        b.on("cuda")
        x = b.input(4)
        y = b.output((2, 3), "float16")
        return b.launch(lambda x, out: seen.append(out), x, out=y, as_=form)

    description = case_of(body).describe()
    buffers = allocation.allocate(description, Settings())
    call = work.allocating(description, buffers)
    call()
    call()
    one, two = seen
    assert one is not two
    assert tuple(one.shape) == (2, 3)
    assert str(one.dtype).removeprefix("torch.") == "float16"


def test_a_later_block_needs_no_reference(tmp_path):
    """It compares the rows that the first one kept, and sees what is wrong."""
    torch = pytest.importorskip("torch")
    settings = Settings(scratch=str(tmp_path))
    asked = []

    def reference(x):
        asked.append(1)
        return -x

    def body(b):
        b.on("cuda")
        x = b.input((3000, 5))
        y = b.output((3000, 5))
        b.check(reference, x)
        return b.launch(lambda x, y: torch.neg(x, out=y), x, y, as_="torch")

    case = case_of(body)
    PreparedCase(case, settings)
    again = launched(PreparedCase(case, settings))
    assert asked == [1]
    again.buffers.arrays["y"].fill(0)
    with pytest.raises(BenchmarkError, match="y is wrong in"):
        again.check(1)

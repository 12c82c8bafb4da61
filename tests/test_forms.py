"""Buffers as other libraries' arrays: which library, which stream, without any."""

import sys
from types import ModuleType, SimpleNamespace

import host_memory_gpu
import numpy as np
import pytest
from fakes import prepared

from steelyard import BenchmarkError
from steelyard.prepare import frameworks, work
from steelyard_device import cuda

CONTEXT = host_memory_gpu.CONTEXT


class Stream:
    """A library's stream, which remembers the one that is current."""

    current = None

    def __init__(self, handle, index=None):
        self.handle, self.index = handle, index

    @classmethod
    def from_external(cls, stream):
        """Take another's."""
        return cls(stream.__cuda_stream__()[1])

    def use(self):
        """Make it current."""
        type(self).current = self


@pytest.fixture
def cupy(monkeypatch):
    """Pretend that CuPy is installed."""
    monkeypatch.setattr(Stream, "current", None)
    library = ModuleType("cupy")
    library.__version__ = "14.0"
    library.from_dlpack = lambda view: ("cupy", view)
    library.empty = np.empty
    library.used = []
    device = lambda index: SimpleNamespace(use=lambda: library.used.append(index))  # noqa: E731 # in one line
    library.cuda = SimpleNamespace(Stream=Stream, Device=device)
    monkeypatch.setitem(sys.modules, "cupy", library)
    monkeypatch.setitem(sys.modules, "torch", None)
    return library


def test_cupy_works_on_our_stream_and_takes_no_copies(cupy):
    """On the GPU of the case; its version is told."""
    form = frameworks.adapter("cupy", CONTEXT)
    assert Stream.current.handle == CONTEXT.stream
    assert cupy.used == [CONTEXT.device.index]
    assert form.convert("view") == ("cupy", "view")
    assert form.library == "cupy 14.0"
    assert form.stream.handle == CONTEXT.stream
    assert form.empty((2, 3), "float16").shape == (2, 3)


def test_an_older_cupy_takes_the_handle(cupy):
    """Before 14."""
    cupy.cuda.Stream = SimpleNamespace()
    cupy.cuda.ExternalStream = Stream
    assert frameworks.adapter("cupy", CONTEXT).stream.handle == CONTEXT.stream


def test_a_library_that_is_there_already_works_on_our_stream_too(cupy):
    """The work may use it, whatever it is handed; one that is not is left alone."""
    assert frameworks.adapter("numpy", CONTEXT).library == ""
    assert Stream.current.handle == CONTEXT.stream


@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_a_library_that_is_not_there_is_named(monkeypatch, name):
    """With what to do."""
    for module in ("torch", "cupy", "numba", "numba.cuda"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BenchmarkError, match=f"as_='{name}' needs .* not installed"):
        frameworks.adapter(name, CONTEXT)


@pytest.mark.parametrize("name", ["cupy", "numba"])
def test_arrays_of_a_gpu_are_not_to_be_had_on_the_cpu(name):
    """Whether the library is installed or not."""
    with pytest.raises(BenchmarkError, match=r"the case is on the cpu. Say b\.on"):
        frameworks.adapter(name, None)


def test_a_stream_is_a_gpus():
    """A case on the CPU has none."""
    description, buffers = prepared(lambda b: b.launch(print, b.stream))
    with pytest.raises(BenchmarkError, match=r"b\.stream is of a GPU"):
        work.realise(description, buffers)


def test_a_callable_on_a_gpu_gets_views_and_the_stream(monkeypatch):
    """In containers and keywords; what it is launched on is told."""
    monkeypatch.setattr(frameworks.sys, "modules", {})
    seen = []

    def body(b):
        b.on("cuda")
        x = b.input(3)
        return b.launch(lambda *a, **k: seen.append((a, k)), [x], on={"s": b.stream})

    description, buffers = prepared(body)
    monkeypatch.setattr(type(buffers), "context", CONTEXT)
    realised = work.realise(description, buffers)
    assert isinstance(realised, work.DeviceWork)
    assert not isinstance(realised, work.NativeWork)
    realised.launch(2)
    (arrays, keywords), _ = seen
    assert arrays[0][0] is buffers.arrays["x"]
    assert keywords == {"on": {"s": cuda.Stream(CONTEXT.stream)}}
    assert realised.facts() == {}
    realised.synchronises = True
    assert realised.facts() == {"synchronises": True}


@pytest.mark.parametrize("available", [True, False])
def test_a_pytorch_without_a_gpu_is_told_only_where_it_is_asked_for(
    monkeypatch, available
):
    """Loaded beside our own arrays it is left alone."""
    torch, set_to = ModuleType("torch"), []
    torch.__version__ = "2.11"
    torch.device = lambda *of: of
    torch.from_dlpack = lambda view: ("torch", view)
    torch.cuda = SimpleNamespace(
        is_available=lambda: available,
        set_stream=set_to.append,
        ExternalStream=lambda handle, device: (handle, device),
        current_stream=lambda _: set_to[-1],
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.6"))
    frameworks.adapter("numpy", CONTEXT)
    ours = (CONTEXT.stream, ("cuda", CONTEXT.device.index))
    assert set_to == ([ours] if available else [])
    if available:
        form = frameworks.adapter("torch", CONTEXT)
        assert form.library == "torch 2.11, triton 3.6"
        assert form.stream == ours
        assert form.convert("view") == ("torch", "view")
    else:
        with pytest.raises(BenchmarkError, match=r"PyTorch 2\.11 was built without"):
            frameworks.adapter("torch", CONTEXT)

"""Calls and bound kernels take a GPU's arrays of any strides, in and out."""

from dataclasses import dataclass

import numpy as np
import pytest
from test_strides import both, chain, mixed, stepped

from steelyard_device import cuda
from steelyard_device.cuda import strided
from steelyard_kernels.errors import KernelError

RNG = np.random.default_rng(11)


@dataclass(eq=False)
class Elsewhere:
    """A view of memory on a GPU, with the same of the host beside it."""

    host: np.ndarray
    memory: cuda.Buffer

    def __init__(self, context, base, view):
        self.host, self.base = view(base), base
        self.view = view
        self.memory = cuda.copy_of(context, base)
        first = self.host.ctypes.data - base.ctypes.data
        self.__cuda_array_interface__ = {
            "shape": self.host.shape,
            "strides": self.host.strides,
            "typestr": self.host.dtype.str,
            "data": (self.memory.address + first, False),
            "stream": context.stream,
            "version": 3,
        }

    def read(self):
        """Return what the view has there, and hold what lies between to what it was."""
        found = self.memory.read()
        before, now = self.base.copy(), found.copy()
        self.view(before)[...] = self.view(now)[...] = 0
        np.testing.assert_array_equal(now, before)
        return self.view(found)


def drawn(context, shape=(37, 5, 66), dtype="float32"):
    """Return an array whose axes lie in a random order, walked by random steps."""
    order = RNG.permutation(len(shape))
    steps = RNG.choice([1, 1, 2, -1, -3], len(shape))
    lengths = [shape[axis] * abs(step) for axis, step in zip(order, steps, strict=True)]
    base = RNG.integers(-9, 9, lengths).astype(dtype)
    cut = tuple(slice(None, None, int(step)) for step in steps)
    back = np.argsort(order)
    return Elsewhere(context, base, lambda x: x[cut].transpose(back))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_call_takes_and_fills_arrays_of_any_strides(context, seed, bound, dtype):
    """The result is `out` itself, and nothing beside it is written."""
    del seed
    a, b, out = [drawn(context, dtype=dtype) for _ in range(3)]
    want = 2 * a.host + np.abs(b.host)
    if bound:
        made = mixed.bind(a, b, out=out)
        for _ in range(3):
            made.launch()
        made.wait()
        assert made.outputs["out"] is out
    else:
        for _ in range(3):
            assert mixed(a, b, out=out) is out
        context.wait()
    np.testing.assert_array_equal(out.read(), want)
    np.testing.assert_array_equal(mixed(a, b).read(), want)


def test_updates_are_copied_back(context):
    """Beside a result that is new."""
    a, b = drawn(context), drawn(context)
    found = stepped(a, b)
    assert found["a"] is a
    want = a.host + b.host
    np.testing.assert_array_equal(a.read(), want)
    np.testing.assert_allclose(found["sums"].read(), a.host.sum(0))


def test_several_launches_take_them_too(context):
    """Between the first copy and the last."""
    x = Elsewhere(
        context, RNG.standard_normal((64, 96)).astype("float32"), np.transpose
    )
    w = Elsewhere(context, RNG.standard_normal((64, 64)).astype("float32"), np.flip)
    y = x.host @ w.host
    want = (y - y.mean(-1, keepdims=True)) @ w.host
    np.testing.assert_allclose(chain(x, w).read(), want, 1e-3, 1e-3)
    made = chain.bind(x, w)
    made.launch()
    made.wait()
    np.testing.assert_allclose(made.outputs["out"].read(), want, 1e-3, 1e-3)


def test_outputs_that_share_memory_are_refused(context):
    """Two of them, or elements of one."""
    base = np.zeros((8, 8), np.float32)
    one = Elsewhere(context, base, np.transpose)
    alike = Elsewhere(context, base, lambda x: np.broadcast_to(x[:, 0], (8, 8)))
    x = cuda.copy_of(context, np.ones((8, 8), np.float32))
    for run in (both, both.bind):
        with pytest.raises(KernelError, match="share"):
            run(x, out=(one, one))
    for run in (mixed, mixed.bind):
        with pytest.raises(KernelError, match="elements of an output share"):
            run(x, x, out=alike)


@pytest.mark.parametrize("side", [31, 4096])
def test_a_transpose_is_copied_by_squares(context, side):
    """Each element once."""
    base = np.arange(side * side, dtype=np.int32).reshape(side, side)
    source, to = (
        cuda.copy_of(context, base),
        cuda.Buffer(context, base.shape, base.dtype),
    )
    lying = strided.Lying(to.address, base.strides)
    turned = strided.Lying(source.address, base.T.strides)
    strided.copy(context, base.shape, 4, lying, turned, stream=context.stream).launch()
    np.testing.assert_array_equal(to.read(), base.T)


def test_tensors_are_taken_on_the_stream_that_pytorch_uses(context):
    """Transposed, sliced and expanded, in and out."""
    torch = pytest.importorskip("torch")
    x = torch.randn(300, 200, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(200, 2, device="cuda", dtype=torch.bfloat16)[:, :1].expand(200, 300)
    out = torch.empty(300, 400, device="cuda", dtype=torch.bfloat16)[:, ::2].T
    assert mixed(x.T, y, out=out) is out
    assert torch.equal(out, 2 * x.T + y.abs())

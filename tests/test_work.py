import sys

import numpy as np
import pytest
from fakes import prepared

from steelyard import BenchmarkError
from steelyard.prepare import work
from steelyard.prepare.work import (
    CallableWork,
    realise,
)
from steelyard_device import cpu


class Kernel:
    """Something compiled: it is bound once."""

    def __init__(self):
        self.bound = []

    def bind(self, *args, out=None, **scalars):
        """Keep what it was bound to."""
        self.bound.append((args, out, scalars))
        return cpu.null()

    def __call__(self, *_, **__):
        """Be callable, as a launch's target must be."""


def test_a_callable_gets_its_buffers_wherever_handles_stand():
    """In its arguments, in lists, in keywords; numpy.concatenate takes a list."""

    def body(b):
        x, w = b.input(2, name="x"), b.input(3, name="w")
        mask = b.input(5, "bool", dist="constant", value=True)
        y, z = b.output(5, name="y"), b.output(5, name="z")

        def target(arrays, *, where, out, scale):
            np.concatenate(arrays, out=out[0])
            np.multiply(out[0], scale, out=out[1], where=where)

        return b.launch(target, [x, w], out=(y, z), where=mask, scale=2)

    description, buffers = prepared(body)
    realised = realise(description, buffers)
    assert isinstance(realised, CallableWork)
    realised.launch(2)
    x, w, y, z = (buffers.arrays[name] for name in "xwyz")
    assert np.array_equal(y, np.concatenate([x, w]))
    assert np.array_equal(z, 2 * y)


@pytest.mark.parametrize("by_out", [True, False])
def test_outputs_may_be_new_in_each_call(by_out):
    """As users write it, whether the output is a keyword or an argument."""
    seen = []

    def body(b):
        x = b.input(2)
        u = b.inout(2)
        y = b.output((3, 2), "float64")
        if by_out:
            return b.launch(lambda *a, out: seen.append((*a, out)), x, u, out=y)
        return b.launch(lambda *a: seen.append(a), x, u, y)

    description, buffers = prepared(body)
    call = work.allocating(description, buffers)
    call()
    call()
    (x0, u0, y0), (x1, u1, y1) = seen
    assert x0 is x1 is buffers.arrays["x"]
    assert u0 is u1 is buffers.arrays["u"]
    assert y0 is not y1
    assert buffers.arrays["y"] is not y0
    assert (y0.shape, y0.dtype) == ((3, 2), np.float64)


def test_a_form_that_is_not_installed_says_what_to_install(monkeypatch):
    """Nothing is measured on arrays instead of tensors."""
    monkeypatch.setitem(sys.modules, "torch", None)
    description, buffers = prepared(lambda b: b.launch(print, as_="torch"))
    with pytest.raises(BenchmarkError, match="needs PyTorch, which is not installed"):
        realise(description, buffers)


@pytest.mark.parametrize("names", [(), ("out",), ("_0", "_"), ("a b",), ("class",)])
def test_a_callable_gets_its_arguments_by_place_and_by_name(names):
    """Whatever the names, and each time the same objects."""
    seen = []
    args, keywords = [object(), object()], {name: object() for name in names}
    work = CallableWork(lambda *a, **k: seen.append((a, k)), *args, **keywords)
    work.launch(2)
    assert seen == [(tuple(args), keywords)] * 2
    assert work.called[1:] == (tuple(args), keywords)

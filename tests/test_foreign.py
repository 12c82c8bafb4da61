"""A binary of another build, launched on a bound kernel's arrays."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_device import memory
from steelyard_device.errors import DeviceError
from steelyard_kernels import array as xp
from steelyard_kernels.errors import KernelError
from steelyard_kernels.function import kernel
from steelyard_kernels.schedule import strategies
from steelyard_kernels.targets import machine


def triad_of(scale):
    """Return a kernel as a commit has it; another commit's has another number."""

    @kernel
    def triad(a, b, *, s=3.0):
        return scale * (a + s * b)

    return triad


@kernel
def rows(a, b):
    """Return what a reduction needs, whose lowering has extents of its own."""
    return a - xp.max(a + b, axis=-1, keepdims=True)


@kernel
def update(a, b):
    """Update a, return the difference."""
    return {"a": a + b, "difference": a - b}


def arrays(*shape):
    """Return two arrays of numbers on cache lines."""
    made = [memory.empty(shape, np.float32) for _ in range(2)]
    for seed, one in enumerate(made):
        one[...] = np.random.default_rng(seed).standard_normal(shape)
    return made


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 13), (300_000,)])
def test_another_commits_binary_does_that_commits_work_on_our_arrays(shape):
    """Its launch writes what base would have, where head's launch writes its own."""
    base = triad_of(2).bind(*arrays(*shape), s=0.5)
    a, b = arrays(*shape)
    out = memory.empty(shape, np.float32)
    head = triad_of(1).bind(a, b, out=out, s=0.5)
    foreign = head.of_binary(base.binary())
    for work, scale in ((head, 1), (foreign, 2), (head, 1)):
        out[...] = np.nan
        work.launch(2)
        work.wait()
        np.testing.assert_allclose(out, scale * (a + 0.5 * b), rtol=1e-6)
    assert foreign.facts() == json.loads(json.dumps(base.facts()))


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_two_schedules_of_a_kernel_can_stand_beside_each_other(data):
    """Threads, extents and vectors are each binary's own."""
    a, b = arrays(37, data.draw(st.sampled_from([1, 16, 257, 1031])))
    kinds = [schedule for schedule, _ in strategies.rank(rows.program(a, b), machine())]
    base, head = (data.draw(st.sampled_from(kinds)) for _ in range(2))
    out = memory.empty(a.shape, np.float32)
    other = rows.bind(*arrays(*a.shape), schedule=base)
    foreign = rows.bind(a, b, out=out, schedule=head).of_binary(other.binary())
    out[...] = np.nan
    start, stop = foreign.window(1)
    assert stop >= start
    np.testing.assert_allclose(out, a - (a + b).max(-1, keepdims=True), rtol=1e-5)


def test_programs_of_several_launches_can_stand_beside_each_other():
    """Each with its own number of launches, and memory between them of its own."""

    def products(times):
        def chain(x, w):
            for _ in range(times):
                x = x @ w
                x = x - xp.mean(x, axis=-1, keepdims=True)
            return x

        return kernel(chain)

    x, w = arrays(48, 48)
    out = memory.empty(x.shape, np.float32)
    head = products(1).bind(x, w, out=out)
    three = products(3).bind(*arrays(48, 48))
    assert len(three.built.parts) == 3 * len(head.built.parts) > 3
    foreign = head.of_binary(three.binary())
    expected = dict.fromkeys((1, 3), x)
    for times in expected:
        for _ in range(times):
            y = expected[times].astype(np.float64) @ w
            expected[times] = y - y.mean(axis=-1, keepdims=True)
    for work, times in ((head, 1), (foreign, 3), (head, 1)):
        out[...] = np.nan
        work.launch(2)
        work.wait()
        np.testing.assert_allclose(out, expected[times], rtol=1e-3, atol=1e-2)
    assert len(foreign.facts()["launches"]) == 3 * len(head.facts()["launches"])


def test_an_update_in_place_is_one():
    """The parameter is read and written where it lies."""
    a, b = arrays(5, 9)
    before = a.copy()
    head = update.bind(a, b)
    head.of_binary(update.bind(*arrays(5, 9)).binary()).launch()
    np.testing.assert_allclose(a, before + b, rtol=1e-6)
    np.testing.assert_allclose(head.outputs["difference"], before - b, rtol=1e-6)


def test_a_number_is_the_one_that_the_other_build_was_bound_with():
    """Of which a commit may have changed the default."""
    a, b = arrays(64)
    head = triad_of(1).bind(a, b, s=5.0)
    head.of_binary(triad_of(1).bind(a, b, s=2.0).binary()).launch()
    np.testing.assert_allclose(head.outputs["out"], a + 2 * b, rtol=1e-6)


def test_other_memory_is_refused():
    """Fewer elements, another dtype, a parameter that only one side updates, a name."""
    head = triad_of(1).bind(*arrays(8, 8))
    halves = [one.astype(np.float16) for one in arrays(8, 8)]

    @kernel
    def triad(b, a, *, s=3.0):
        return {"a": b + s * a}

    @kernel
    def renamed(a, c):
        return a + 3.0 * c

    others = [
        triad_of(1).bind(*arrays(64)),
        triad_of(1).bind(*arrays(8, 9)),
        triad_of(1).bind(*halves),
        update.bind(*arrays(8, 8)),
        triad.bind(*arrays(8, 8)),
        renamed.bind(*arrays(8, 8)),
    ]
    for other in others:
        with pytest.raises(KernelError, match="triad: the other build is called on"):
            head.of_binary(other.binary())


def test_an_argument_that_only_the_other_reads_is_where_it_was_bound():
    """Though this build takes no address of it."""

    @kernel
    def one(a, b):
        return a + 0 * a

    @kernel
    def both(a, b):
        return a + b

    a, b = arrays(4)
    head = one.bind(a, b)
    head.of_binary(both.bind(*arrays(4)).binary()).launch()
    np.testing.assert_allclose(head.outputs["out"], a + b, rtol=1e-6)


@pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"{}\n", b'{"format": 0}\nx'])
def test_bytes_of_another_format_are_refused(data):
    """A commit may have packed them in another way, or they were cut short."""
    with pytest.raises(KernelError, match=r"bytes of format .*, expected 1"):
        triad_of(1).bind(*arrays(4)).of_binary(data)


def test_an_image_that_was_cut_short_is_refused():
    """The head is whole, the code is not."""
    bound = triad_of(1).bind(*arrays(4))
    with pytest.raises(DeviceError):
        bound.of_binary(bound.binary()[:-400])


def test_stores_round_the_caches_want_arrays_on_cache_lines():
    """They would end the process where one is not."""
    a, b = arrays(1 << 20)
    kinds = [s for s, _ in strategies.rank(triad_of(1).program(a, b), machine())]
    streaming = next(s for s in kinds if s.streaming)
    data = triad_of(1).bind(a, b, schedule=streaming).binary()
    off = memory.empty(((1 << 20) + 1,), np.float32)[1:]
    with pytest.raises(KernelError, match="needs out on a cache line"):
        triad_of(1).bind(a, b, out=off).of_binary(data)

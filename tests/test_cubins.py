"""Anyone's cubin: what becomes of its arguments, without a GPU."""

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import BenchmarkError
from steelyard.prepare import cubins
from steelyard.prepare.cubins import Cubin
from steelyard_device import cuda

CONTEXT = object()


def view(size, address=4096):
    """Return an array on the GPU that nobody reads."""
    return cuda.View(CONTEXT, address, (size,), "float32")


@pytest.fixture
def bound(monkeypatch):
    """Give a function that binds a cubin of parameters of some sizes."""
    seen = {}

    class Work:
        def __init__(self, function, slots, **how):
            seen.update(how, slots=slots, function=function, launches=0)

        def launch(self):
            seen["launches"] += 1

    def load(context, code):
        seen.update(context=context, code=code)
        return SimpleNamespace(
            function=lambda entry: SimpleNamespace(name=entry, parameters=seen["sizes"])
        )

    monkeypatch.setattr(cubins.cuda, "load", load)
    monkeypatch.setattr(cubins, "CubinWork", Work)
    code = SimpleNamespace(code_hash="hash")
    monkeypatch.setattr(cubins.reader, "read", lambda _: {"entry": code})

    def bind(cubin, sizes, *args, **keywords):
        seen["sizes"] = sizes
        seen["work"] = cubin.bind(*args, **keywords)
        return seen

    return bind


def test_handles_become_addresses_and_results_come_last(bound):
    """Where the arrays lie is where it is loaded; they are kept."""
    x, y, z = view(5), view(5, 8192), view(5, 512)
    cubin = Cubin(b"code", "entry", grid=lambda x, *_: x.size, block=(32, 2), shared=64)
    seen = bound(cubin, (8, 4, 8, 8), x, 3, out=(y, z))
    assert seen["slots"] == [4096, 3, 8192, 512]
    assert (seen["grid"], seen["block"], seen["shared"]) == (5, (32, 2), 64)
    assert (seen["context"], seen["code"]) == (CONTEXT, b"code")
    assert seen["work"].arguments == (x, 3, y, z)
    assert seen["work"].code_hash == "hash"


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        (np.float32(1.5), 4, struct.pack("<f", 1.5)),
        (np.int64(-2), 8, struct.pack("<q", -2)),
        (ctypes.c_short(-2), 2, struct.pack("<h", -2)),
        (b"abc", 3, b"abc"),
        (1.5, 2, struct.pack("<e", 1.5)),
        (1.5, 4, struct.pack("<f", 1.5)),
        (1.5, 8, struct.pack("<d", 1.5)),
        (True, 1, 1),
        (-1, 4, 2**32 - 1),
        (-(2**31), 4, 2**31),
        (2**32 - 1, 4, 2**32 - 1),
    ],
)
def test_a_scalar_takes_the_size_of_its_parameter(bound, value, size, expected):
    """Typed ones go in as they are."""
    cubin = Cubin(b"code", "entry", grid=1, block=1)
    assert bound(cubin, (8, size), view(1), value)["slots"][1] == expected


@given(value=st.integers(-(2**70), 2**70), size=st.sampled_from([1, 2, 4, 8]))
def test_a_whole_number_fits_or_is_refused(value, size):
    """Signed or unsigned, as the kernel reads it."""
    cubin = Cubin(b"code", "entry", grid=1, block=1)
    fits = -(2 ** (8 * size - 1)) <= value < 2 ** (8 * size)
    if fits:
        word = cubin._slot(0, value, size)
        assert word.to_bytes(size, "little") == (value % 2 ** (8 * size)).to_bytes(
            size, "little"
        )
    else:
        with pytest.raises(BenchmarkError, match=f"a parameter of {size} bytes"):
            cubin._slot(0, value, size)


@pytest.mark.parametrize("value", ["no", None, [1], 1.5])
def test_what_cannot_be_a_parameter_is_named(bound, value):
    """By its place."""
    cubin = Cubin(b"code", "entry", grid=1, block=1)
    with pytest.raises(BenchmarkError, match="argument 1 of entry is"):
        bound(cubin, (8, 1), view(1), value)


def test_arguments_that_are_too_many_or_nowhere_are_told(bound):
    """As is a file that is not there."""
    cubin = Cubin(b"code", "entry", grid=1, block=1)
    with pytest.raises(
        BenchmarkError, match=r"takes 1 parameters of \(8,\) bytes, got"
    ):
        bound(cubin, (8,), view(1), 2)
    with pytest.raises(BenchmarkError, match="got no array on a GPU"):
        bound(cubin, (4,), 3)
    gone = Cubin("/no/such/file", "entry", grid=1, block=1)
    with pytest.raises(BenchmarkError, match="/no/such/file cannot be read: No such"):
        bound(gone, (8,), view(1))


def test_a_file_is_read_and_a_call_launches_once(bound, tmp_path):
    """As a target of b.launch is called."""
    path = tmp_path / "it.cubin"
    path.write_bytes(b"bytes of a file")
    seen = bound(Cubin(path, "entry", grid=1, block=1), (8,), view(1))
    assert (seen["code"], seen["launches"]) == (b"bytes of a file", 0)
    Cubin(path, "entry", grid=1, block=1)(view(1))
    assert seen["launches"] == 1

import dis
import io

import numpy as np
import pytest

from steelyard import BenchmarkError, Builder, SteelyardError
from steelyard.declare.handles import Handle
from steelyard.declare.mode import parse


@pytest.fixture
def b():
    """Give the builder that a benchmark's function is given."""
    return Builder()


def test_a_buffer_is_named_by_its_variable(b):
    """Local, annotated and captured variables alike."""
    x = b.input(3)
    y: Handle = b.output((2, 3), "float16")
    z = b.inout(3)

    def inner():
        return z

    assert [x.name, y.name, inner().name] == ["x", "y", "z"]
    assert list(b.handles.values()) == [x, y, z]
    assert (y.role, y.shape, y.dtype, y.size) == ("output", (2, 3), "float16", 6)


def test_a_function_is_read_once_for_all_of_its_cases(monkeypatch):
    """Reading its code takes longer than all else that is done to list a case."""
    read, every = [], dis.get_instructions
    monkeypatch.setattr(
        dis, "get_instructions", lambda code: read.append(code) or every(code)
    )

    def declared(b):
        x = b.input(3)
        y = b.output(3)
        return [x.name, y.name]

    assert [declared(Builder()) for _ in range(9)] == [["x", "y"]] * 9
    assert len(read) == 1


def test_a_buffer_without_a_variable_asks_for_a_name(b):
    """In a list, an attribute, a tuple or a helper there is none to take."""

    def helper():
        return b.input(1)

    class Thing:
        pass

    with pytest.raises(BenchmarkError, match="give it a name="):
        helper()
    with pytest.raises(BenchmarkError, match="is not assigned to a variable"):
        [b.input(1)]
    with pytest.raises(BenchmarkError, match="is not assigned to a variable"):
        Thing().x = b.input(1)
    with pytest.raises(BenchmarkError, match="is not assigned to a variable"):
        _x, _y = b.input(1), b.input(2)
    assert not b.handles


def test_two_buffers_of_one_name_are_refused(b):
    """A loop that assigns one variable needs names."""
    for count in (1, 2):
        if count == 2:
            with pytest.raises(BenchmarkError, match="input x is declared twice"):
                x = b.input(count)
        else:
            x = b.input(count)
    assert list(b.handles.values()) == [x]


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        (5, (5,)),
        (0, (0,)),
        ((), ()),
        ([2, 3], (2, 3)),
        (np.int64(4), (4,)),
        (np.zeros((2, 3)).shape, (2, 3)),
        ((np.int32(1), True), (1, 1)),
        ((1 << 40, 1 << 40), (1 << 40, 1 << 40)),
    ],
)
def test_shapes_are_whole_numbers_of_any_kind(b, shape, lengths):
    """NumPy's integers become Python's; nothing is allocated for huge ones."""
    x = b.input(shape)
    assert x.shape == lengths
    assert all(type(length) is int for length in x.shape)


@pytest.mark.parametrize("shape", [-1, (3, -1), 1.0, (2, 1e3), "12", None, ("a",)])
def test_a_shape_of_anything_else_is_refused(b, shape):
    """The sentence names the buffer and shows the shape."""
    with pytest.raises(BenchmarkError) as caught:
        b.output(shape, name="y")
    said = str(caught.value)
    assert said.startswith(f"output y has shape {shape!r}; expected one length")


class TorchLike:
    """Prints itself as PyTorch's dtypes do."""

    def __str__(self):
        return "torch.float16"


TorchLike.__module__ = "torch"


@pytest.mark.parametrize(
    ("dtype", "name", "dist"),
    [
        ("float16", "float16", "normal"),
        ("bfloat16", "bfloat16", "normal"),
        (np.float32, "float32", "normal"),
        (np.dtype("float64"), "float64", "normal"),
        ("f4", "float32", "normal"),
        (">f8", "float64", "normal"),
        (float, "float64", "normal"),
        (bool, "bool", "integers"),
        ("int32", "int32", "integers"),
        (np.uint8, "uint8", "integers"),
        (TorchLike(), "float16", "normal"),
    ],
)
def test_dtypes_may_be_written_in_any_spelling(b, dtype, name, dist):
    """One name is recorded; floating-point data is normal, others whole numbers."""
    x = b.input(3, dtype)
    assert x.dtype == name
    assert x.recipe[0] == ("dist", dist)
    y = b.output(3, dtype)
    assert (y.dtype, y.recipe) == (name, ())


@pytest.mark.parametrize(
    "dtype", ["float17", "O", "S3", "datetime64[s]", "complex64", [("a", "f4")], 3, b""]
)
def test_a_dtype_of_no_real_numbers_is_refused(b, dtype):
    """The sentence lists what there is."""
    for declare in (b.input, b.output):
        with pytest.raises(BenchmarkError, match="Use float16, bfloat16, float32"):
            declare(3, dtype, name="x")


def test_a_distribution_has_its_defaults_and_what_is_asked_for(b):
    """Parameters stand in the recipe, so that they are part of the inputs' hash."""
    x = b.input(3, dist="uniform", high=2.0)
    assert x.recipe == (("dist", "uniform"), ("low", 0.0), ("high", 2.0))
    flag = b.inout(3, "bool")
    assert dict(flag.recipe)["high"] == 2
    default = b.input(3)
    spelled = b.input(3, dist="normal", mean=0.0)
    assert default.recipe == spelled.recipe


@pytest.mark.parametrize(
    ("declare", "how", "words"),
    [
        ("input", {"dist": "gauss"}, "expected one of normal, uniform"),
        ("input", {"dist": "uniform", "mean": 1}, r"mean=, which dist='uniform' does"),
        ("input", {"dist": ["normal"]}, r"has dist=\['normal'\]; expected one of"),
        ("input", {"dist": "constant", "value": "7"}, "value='7'; expected a number"),
        ("input", {"dist": "uniform", "high": np.arange(2)}, "Give an array to"),
        ("output", {"name": 5}, "output has name=5; expected a string"),
        ("input", {"dist": "uniform", "low": 2.0}, "from 2.0 to 1.0; expected a low="),
        ("input", {"dist": "uniform", "low": np.nan}, "low=nan; expected a finite"),
        ("inout", {"mean": 10**400, "deviation": np.inf}, "finite number above 0"),
        ("inout", {"deviation": 0}, "deviation=0; expected a finite number above 0"),
    ],
)
def test_what_is_unknown_is_named_where_it_is_declared(b, declare, how, words):
    """Of another type it was an error of the work, or of a line of ours."""
    with pytest.raises(BenchmarkError, match=words):
        getattr(b, declare)(3, **{"name": "x", **how})


def test_a_launch_takes_any_callable_and_any_keyword(b):
    """Even keywords that our own parameters might be called."""
    x = b.input(3)
    call = b.launch(np.add, x, 1.0, out=x, target=1, self=2, where=x)
    assert (call.target, call.args, call.out) == (np.add, (x, 1.0), x)
    assert dict(call.scalars) == {"target": 1, "self": 2, "where": x}


@pytest.mark.parametrize("target", [None, 1, "print", []])
def test_what_cannot_be_called_cannot_be_launched(b, target):
    """The sentence says what comes first."""
    with pytest.raises(BenchmarkError, match=r"cannot be called\. Pass a function"):
        b.launch(target)


async def _later(): ...


def _bit_by_bit():
    yield


@pytest.mark.parametrize("target", [_later, _bit_by_bit])
def test_a_call_that_runs_nothing_cannot_be_launched(b, target):
    """It would be timed as the making of an object that nobody awaits."""
    with pytest.raises(
        BenchmarkError, match=f"{target.__name__}, whose call only make"
    ):
        b.launch(target)


@pytest.mark.parametrize("wrong", [-1, np.nan, np.inf, "1e-6", True * 1j])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_a_tolerance_that_no_result_or_every_result_meets_is_refused(b, name, wrong):
    """An infinite one passed whatever the work wrote, and said it was checked."""
    with pytest.raises(BenchmarkError, match=f"check got {name}=.*from 0 up"):
        b.check(np.negative, **{name: wrong})


def test_a_case_has_one_reference_that_can_be_called(b):
    """A second one took the place of the first, which then held nothing."""
    with pytest.raises(BenchmarkError, match=r"check got array.*expected one function"):
        b.check(np.zeros(3))
    b.check(np.negative, b.input(3, name="x"), rtol=0, atol=np.float32(1e-3))
    with pytest.raises(BenchmarkError, match="beside an earlier one; expected one"):
        b.check(np.positive)


def test_buffers_are_handed_over_in_a_known_form(b):
    """Another word is refused before anything is measured."""
    with pytest.raises(BenchmarkError, match="one of numpy, torch, cupy, numba"):
        b.launch(print, as_="jax")


def test_counts_are_numbers_of_known_things(b):
    """NumPy's numbers become Python's, which the pipe carries."""
    b.count(bytes=np.int64(8), operations=np.prod((2, 3)), items=0)
    assert b.counts == {"bytes": 8.0, "operations": 6.0, "items": 0.0}
    assert all(type(value) is float for value in b.counts.values())
    for wrong in (-1, float("nan"), float("inf"), "many", None):
        with pytest.raises(BenchmarkError, match="a finite number from 0 up"):
            b.count(bytes=wrong)
    with pytest.raises(BenchmarkError, match="expected bytes, operations or items"):
        b.count(flops=1)


def test_modes_add_up(b):
    """Each call names some more."""
    b.mode("kernel/warm")
    b.mode("latency/warm/8", "build")
    assert b.modes == tuple(map(parse, ["kernel/warm", "latency/warm/8", "build"]))
    with pytest.raises(SteelyardError, match=r"mode \"\('kernel', 'warm'\)\""):
        b.mode(("kernel", "warm"))


def test_a_file_gives_shape_and_dtype(b, tmp_path):
    """Of either byte order, without reading its data."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=">f4").reshape(2, 3))
    x = b.load(path)
    assert (x.name, x.role, x.shape, x.dtype) == ("x", "input", (2, 3), "float32")


def saved(save, *given, **how):
    """Return the bytes that NumPy saves."""
    file = io.BytesIO()
    save(file, *given, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist. Name a .npy file."),
        (b"", "cannot be read as .npy"),
        (b"\x93NUMPY", "cannot be read as .npy"),
        (b"no array at all", "cannot be read as .npy"),
        (b"\x80\x04K\x01.", "cannot be read as .npy"),
        (saved(np.save, np.array([{}], object), allow_pickle=True), "cannot be read"),
        # In words of files, not in those of how it is read.
        (saved(np.save, np.arange(8.0))[:-8], "its data is cut short"),
        (saved(np.savez, a=np.zeros(3)), "begins with something else than a .npy"),
    ],
)
def test_a_file_that_is_no_array_is_named(b, tmp_path, content, said):
    """Missing, empty, cut, foreign, pickled or an archive; a folder too."""
    path = tmp_path / "x.npy"
    if content is not None:
        path.write_bytes(content)
    for place, words in ((path, said), (tmp_path, "is no file")):
        with pytest.raises(BenchmarkError) as caught:
            b.load(place, name="x")
        assert words in str(caught.value)
        assert str(place) in str(caught.value)


def test_a_kernel_may_be_only_built_for_a_target():
    """The call says for which; something that cannot be built so is refused."""
    b = Builder()
    x = b.input(4)
    kernel = type("Kernel", (), {"for_target": lambda *_: None})()
    call = b.build(kernel, x, target="cuda:sm_90a")
    assert (call.target, call.args, call.built_for) == (kernel, (x,), "cuda:sm_90a")
    with pytest.raises(
        BenchmarkError, match=r"len.*cannot be built for cuda:sm_90a.*b\.launch"
    ):
        b.build(len, x, target="cuda:sm_90a")

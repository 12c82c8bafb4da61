import itertools
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import Axis, BenchmarkError, SteelyardError, axis, benchmark
from steelyard.analyse import expression
from steelyard.declare.axes import parse_override, plain, text_of
from steelyard.declare.benchmark import raised, select
from steelyard.declare.mode import DEFAULTS, parse

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


def family(**axes):
    """Return a benchmark `family` that takes these axes and launches nothing."""

    def body(builder, /, **_):
        return builder.launch(print)

    body.__signature__ = signature("builder", *axes)
    body.__name__ = "family"
    return benchmark(**axes)(body)


def signature(*names):
    """Return the signature of a function of parameters with these names."""
    from inspect import Parameter, Signature

    return Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names])


def ids(one):
    """Return the ids of all cases."""
    return [case.id for case in one.cases()]


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        # The last axis turns fastest, as in nested loops.
        (
            {"n": [1, 2], "dtype": ["float16", "float32"]},
            [
                *("[n=1,dtype=float16]", "[n=1,dtype=float32]"),
                *("[n=2,dtype=float16]", "[n=2,dtype=float32]"),
            ],
        ),
        # Adding an axis to a benchmark leaves the old ids what they were.
        (
            {"n": [1, 2], "nt": axis(False, True, default=False)},
            ["[n=1]", "[n=1,nt=True]", "[n=2]", "[n=2,nt=True]"],
        ),
        # Values that compare equal but read otherwise are two values.
        ({"k": axis(1, True, 1.0, default=1)}, ["", "[k=True]", "[k=1.0]"]),
        # A tuple or list is one value, and reads as a shape.
        ({"shape": [(8, 16), [4, 4]]}, ["[shape=8x16]", "[shape=4x4]"]),
    ],
)
def test_cases_are_the_product_of_the_axes_in_order(axes, found):
    """An axis at its default does not show."""
    assert ids(family(**axes)) == [f"family{one}" for one in found]


def test_ids_of_odd_strings_stay_one_word():
    """Two cases had the same id when a value held a comma and the next axis a default.

    -k and a shell take the id as it is printed.
    """
    texts = ["x,b=1", "x", "p q", "[r]", "(s)", "", "\u202eevil", "\U000e0001"]
    odd = family(a=texts, b=axis(0, 1, default=0))
    found = ids(odd)
    assert len(set(found)) == len(found)
    assert found[0] == "family[a=x%2cb%3d1]"
    assert found[-4] == "family[a=%u202eevil]"
    for name in found:
        assert not set(name) & set("\"' ()")
        assert name.isprintable()
        case = select([odd], name)[0]
        assert case.id == name


@settings(max_examples=40)
@given(
    first=st.lists(VALUES, min_size=1, max_size=3, unique_by=text_of),
    second=st.lists(VALUES, min_size=1, max_size=3, unique_by=text_of),
)
def test_no_two_cases_share_an_id(first, second):
    """Whatever the values are, and each id is accepted by an expression of itself."""
    found = ids(family(a=first, b=Axis(tuple(second), second[0])))
    assert len(set(found)) == len(first) * len(second)
    assert all(expression.parse(name)(name) for name in found)


def test_numpys_scalars_are_numbers():
    """Sizes from numpy.arange read, travel and compare as Python's."""
    sizes = family(n=2 ** np.arange(3), x=np.float32([0.5]), flag=[np.bool_(1)])
    assert ids(sizes)[0] == "family[n=1,x=0.5,flag=True]"
    assert type(sizes.cases()[0].axes["n"]) is int
    assert plain([1, [2, 3]]) == (1, (2, 3))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "axis k of benchmark family has no values. Give it at least one."),
        (Axis(()), "has no values"),
        (7, "axis k of benchmark family is 7. Give it a list"),
        ("float16", "is 'float16'. Give it a list"),
        ([1, 2, 1], "two values that read '1'"),
        ([1, "1"], "two values that read '1'"),
        ([np.float32], "has the value <class 'numpy.float32'>; expected a number"),
        ([print], "expected a number, a string"),
        ([{"a": 1}], "expected a number, a string"),
        ([np.zeros(3)], "expected a number, a string"),
    ],
)
def test_values_that_cannot_name_a_case_are_refused_where_they_are_declared(
    values, said
):
    """The sentence names axis and benchmark."""
    with pytest.raises(SteelyardError) as caught:
        family(k=values)
    assert said in str(caught.value)


@pytest.mark.parametrize("taken", [["b"], ["b", "n", "m"], ["b", "m"]])
def test_function_and_decorator_name_the_same_axes(taken):
    """One that is missing on either side is a mistake."""

    def body(b, **_):
        return b.launch(print)

    body.__signature__ = signature(*taken)
    with pytest.raises(SteelyardError, match=r"benchmark body takes .* but declares n"):
        benchmark(n=[1])(body)


@pytest.mark.parametrize("wrong", [None, 5, print, "b.launch", [1]])
def test_a_function_that_returns_no_launch_is_told_to(wrong):
    """The sentence shows what it returned."""
    one = benchmark(lambda _b: wrong)
    with pytest.raises(BenchmarkError, match=r"expected what b\.launch gives"):
        one.cases()[0].describe()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a\n b"), SystemExit(0), RecursionError("deep")]
)
def test_a_function_that_raises_fails_its_case_alone(error):
    """sys.exit() in a benchmark once ended `steelyard list` as if all were fine."""

    @benchmark
    def one(_b):
        raise error

    case = one.cases()[0]
    with pytest.raises(BenchmarkError) as caught:
        case.describe()
    assert str(caught.value).startswith(f"one raised {type(error).__name__}: ")
    assert "test_benchmark.py:" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert case.modes() == DEFAULTS


def test_modes_are_those_the_function_asks_for():
    """Without any, a kernel is measured cold and warm."""

    @benchmark(own=[False, True])
    def one(b, own):
        if own:
            b.mode("latency/warm", "kernel/warm/dependent")
        return b.launch(print)

    plain_case, own_case = one.cases()
    assert plain_case.modes() == DEFAULTS
    assert own_case.modes() == (parse("latency/warm"), parse("kernel/warm/dependent"))


def test_a_benchmark_knows_where_it_stands():
    """Name, file, line and first line of its docstring come from the function."""

    @benchmark
    def told(b):
        """Say one thing.

        And another.
        """
        return b.launch(print)

    assert (told.name, told.doc) == ("told", "Say one thing.")
    assert told.path.name == "test_benchmark.py"
    assert told.line > 1
    assert told.source_hash() == told.source_hash()


def test_what_was_raised_is_one_line_and_names_the_users_line():
    """Frames of this package and of the import system are not the user's."""
    users = compile("raise ValueError('a\\n  b')", "/home/users.py", "exec")
    with pytest.raises(ValueError, match="b") as caught:
        exec(users)
    assert raised(caught.value) == "ValueError: a b (users.py:1)"
    assert raised(ValueError("x")) == "ValueError: x"
    users = compile("import json\njson.loads('')", "/home/users.py", "exec")
    with pytest.raises(ValueError, match="Expecting") as caught:
        exec(users)
    assert raised(caught.value).endswith("(users.py:2)")
    worker = {"__name__": "__main__", "__spec__": ModuleSpec("steelyard.worker", None)}
    with pytest.raises(TypeError) as caught:
        exec(compile("(lambda x: x)()", "/worker.py", "exec"), worker)
    assert "worker.py" not in raised(caught.value)


def test_a_second_launch_is_not_left_out_in_silence():
    """Only the one that was returned was measured."""

    @benchmark
    def twice(b):
        b.launch(print)
        return b.launch(print)

    (case,) = twice.cases()
    with pytest.raises(BenchmarkError, match="2 times; expected one"):
        case.describe()


# Selecting.

COPY = family(n=[1000, 100000], dtype=["float16", "float32"])


@pytest.mark.parametrize(
    ("one", "name", "asked", "taken"),
    [
        (COPY, "n", [7, 8], [7, 7, 8, 8]),  # numbers that are not listed
        (COPY, "n", [1e6], [10**6] * 2),  # whole, where the axis lists integers
        (family(n=[0.5]), "n", [2.0], [2.0]),
        (COPY, "n", [1000.0], [1000] * 2),  # listed values that read the same
        (family(shape=[(8, 16)]), "shape", ["8x16"], [(8, 16)]),
        (family(flag=[False, True]), "flag", [True], [True]),
    ],
)
def test_an_override_takes_what_is_asked_as_the_axis_lists_its_values(
    one, name, asked, taken
):
    """Any size may be measured; the other axes keep their values."""
    found = [case.axes[name] for case in select([one], overrides={name: asked})]
    assert [(type(value), value) for value in found] == [(type(v), v) for v in taken]


def test_an_override_of_choices_takes_only_listed_ones():
    """A value that another benchmark lists leaves this one out."""
    other = family(dtype=["float64"])
    found = select([COPY, other], overrides={"dtype": ["float64", "float16"]})
    assert {case.axes["dtype"] for case in found} == {"float64", "float16"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"dtyp": ["float16"]}, "no benchmark has an axis 'dtyp'; did you mean dtype?"),
        ({"zzz": [1]}, "known: dtype, n."),
        ({"dtype": ["float61"]}, "expected one of float16, float32."),
        ({"dtype": ["float16", "float61"]}, "-p dtype=float61: no benchmark lists"),
        ({"n": ["many"]}, "-p n=many: no benchmark lists"),
        ({"n": [True]}, "-p n=True"),
    ],
)
def test_an_unknown_axis_or_value_is_never_left_out_silently(overrides, said):
    """A misspelt value once measured the others and said nothing."""
    with pytest.raises(SteelyardError) as caught:
        select([COPY], overrides=overrides)
    assert said in str(caught.value)


def test_nothing_matched_names_the_nearest_case():
    """And what was asked, and among how many."""
    with pytest.raises(SteelyardError) as caught:
        select([COPY], "familly[n=1000,dtype=float16]")
    said = str(caught.value)
    assert "nothing matched -k 'familly[n=1000,dtype=float16]' among 4 cases" in said
    assert "The nearest is family[n=1000,dtype=float16]." in said
    with pytest.raises(SteelyardError, match="Modes are chosen by --mode"):
        select([COPY], "family and warm")


@given(st.integers(1, 50), st.integers(0, 300), st.integers(1, 40))
def test_a_range_counts_as_python_does(start, length, step):
    """start:stop:step includes both ends."""
    name, values = parse_override(f"n={start}:{start + length}:{step}")
    assert name == "n"
    assert values == list(range(start, start + length + 1, step))


@given(st.integers(0, 10), st.integers(0, 20), st.integers(2, 8))
def test_a_multiplying_range_is_a_geometric_series(low, grow, by):
    """2^low:2^high:by x, the whole of it within the ends."""
    _, values = parse_override(f"n=2^{low}:2^{low + grow}:{by}x")
    assert values[0] == 2**low
    assert all(b == a * by for a, b in itertools.pairwise(values))
    assert values[-1] <= 2 ** (low + grow) < values[-1] * by


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=1,2", [1, 2]),
        ("k=-3", [-3]),
        ("k=2^10", [1024]),
        ("k=0.5,1e3", [0.5, 1000.0]),
        ("k=true,FALSE", [True, False]),
        ("k=float16,numpy", ["float16", "numpy"]),
        ("k=1,4:6:1", [1, 4, 5, 6]),
        ("k=a=b", ["a=b"]),
        ("k=2^x", ["2^x"]),
        ("k=2^99999999999", ["2^99999999999"]),
    ],
)
def test_overrides_read_as_written(text, values):
    """Numbers, powers, booleans and names; types too."""
    _, found = parse_override(text)
    assert [(type(v), v) for v in found] == [(type(v), v) for v in values]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not of the form axis=1,2"),
        ("n", "is not of the form"),
        ("n=", "is not of the form"),
        ("=1", "is not of the form"),
        ("n=1:2", "expected start:stop:step"),
        ("n=1:x:1", "expected start:stop:step"),
        ("n=1:2:3:4", "expected start:stop:step"),
        ("n=1:2:0", "never ends"),
        ("n=1:2:-1", "never ends"),
        ("n=1:8:1x", "never ends"),
        ("n=0:8:2x", "never ends"),
        ("n=0:inf:1", "never ends"),
        ("n=0:8:nan", "never ends"),
        ("n=5:1:1", "has no values"),
        ("n=2^10:2^8:4x", "has no values"),
        ("n=0:1e15:1", "has more than 10000 values"),
    ],
)
def test_a_range_that_is_none_is_refused(text, said):
    """Also one that would never end, or that nobody has the time to measure."""
    with pytest.raises(SteelyardError) as caught:
        parse_override(text)
    assert said in str(caught.value)


def test_values_that_only_an_override_asks_for_are_not_swept():
    """They are listed where a value is unknown, and read as words."""

    @benchmark(target=axis("cpu", default="cpu", others=["cuda:sm_80", "cuda:sm_90a"]))
    def made(b, target):
        return b.launch(len, b.input(1, name="x"))

    assert [case.id for case in select([made])] == ["made"]
    name, values = parse_override("target=cpu,cuda:sm_80")
    found = select([made], overrides={name: values})
    assert [case.id for case in found] == ["made", "made[target=cuda:sm_80]"]
    with pytest.raises(SteelyardError, match="cuda:sm_80, cuda:sm_90a"):
        select([made], overrides={"target": ["cuda:sm_10"]})
    with pytest.raises(SteelyardError, match="two values that read 'cpu'"):
        benchmark(target=axis("cpu", others=["cpu"]))(lambda b, target: None)

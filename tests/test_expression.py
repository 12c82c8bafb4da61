import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import SteelyardError
from steelyard.analyse import expression

WORDS = ["copy", "n=1000", "float16", "copy[n=1000,dtype=float16]", "andor", "x"]
NAMES = ["copy[n=1000,dtype=float16]", "copy[n=10000]", "triad[dtype=float16]", "x", ""]

# An expression as text beside what it means as a function of a name.
LEAVES = st.sampled_from(WORDS).map(lambda word: (word, lambda name: word in name))


def joined(parts):
    """Join expressions by and, or, and not, in every bracketing."""
    negated = parts.map(lambda p: (f"not ({p[0]})", lambda name: not p[1](name)))
    both = st.tuples(parts, parts).map(
        lambda pq: (
            f"({pq[0][0]}) and ({pq[1][0]})",
            lambda name: pq[0][1](name) and pq[1][1](name),
        )
    )
    either = st.tuples(parts, parts).map(
        lambda pq: (
            f"({pq[0][0]})or( {pq[1][0]} )",
            lambda name: pq[0][1](name) or pq[1][1](name),
        )
    )
    return negated | both | either


@given(st.recursive(LEAVES, joined, max_leaves=12))
def test_an_expression_means_what_its_parts_mean(pair):
    """In any nesting, the predicate agrees with Python's own logic."""
    text, means = pair
    accepts = expression.parse(text)
    assert [accepts(name) for name in NAMES] == [bool(means(name)) for name in NAMES]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("((", "'(' comes the end"),
        ("", "'-k' comes the end"),
        (")", "'-k' comes ')'"),
        ("a and", "'and' comes the end"),
        ("a b", "'a' comes 'b'"),
        ("(a or) b", "'or' comes ')'"),
        ("(a", "'a' comes the end"),
        ("not and", "'not' comes 'and'"),
        *((text, "") for text in ("  ", "and", "a or or b", "not", "(")),
        *((text, "") for text in ("a)", "()", "((a)", "a (b)")),
    ],
)
def test_an_incomplete_expression_is_refused(text, says):
    """The sentence says what came behind which word, and what was expected."""
    with pytest.raises(SteelyardError) as caught:
        expression.parse(text)
    said = str(caught.value)
    assert said.startswith(f"-k cannot be read: after {says}")
    assert "expected words of a case id joined by and, or, not" in said


@given(st.text(alphabet="ab ()[]=,andornot\t\n", max_size=40))
def test_any_text_is_an_expression_or_a_sentence(text):
    """Nothing else comes out, whatever is typed."""
    try:
        accepts = expression.parse(text)
    except SteelyardError:
        return
    assert accepts("a[b=1]") in {True, False}


def test_a_thousand_alternatives_are_no_deeper_than_two():
    """A list of cases pasted from a report is an ordinary expression."""
    names = [f"copy[n={k}]" for k in range(3000)]
    accepts = expression.parse(" or ".join(names))
    assert all(accepts(name) for name in (names[0], names[1], names[-1]))
    assert not accepts("triad[n=1]")


def test_an_expression_nested_beyond_reading_is_refused():
    """Rather than that Python's stack overflows."""
    with pytest.raises(SteelyardError, match="nested too deeply"):
        expression.parse("(" * 5000 + "a" + ")" * 5000)
    with pytest.raises(SteelyardError, match="nested too deeply"):
        expression.parse("not " * 5000 + "a")

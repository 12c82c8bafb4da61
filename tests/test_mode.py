import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import SteelyardError
from steelyard.declare.mode import CACHES, DEFAULTS, FLAVOURS, Mode, parse


@st.composite
def modes(draw):
    """Draw a mode of every quantity, cache, flavour and batch that may be asked for."""
    quantity = draw(st.sampled_from(sorted(CACHES)))
    batched = quantity in {"per_launch", "latency"}
    return Mode(
        quantity,
        draw(st.sampled_from(CACHES[quantity])),
        draw(st.sampled_from(FLAVOURS[quantity])),
        draw(st.integers(1, 10**6)) if batched else 1,
    )


@given(modes())
def test_a_mode_reads_back_from_its_text(mode):
    """What is stored and printed is what can be asked for again."""
    assert parse(str(mode)) == mode


@given(modes(), modes())
def test_two_modes_never_share_a_text(one, other):
    """Trials are told apart by it."""
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("kernel", DEFAULTS[0]),
        ("kernel/cold", Mode("kernel", "cold", "throughput")),
        ("kernel/warm", DEFAULTS[1]),
        ("kernel/warm/throughput", Mode("kernel", "warm", "throughput")),
        ("kernel/throughput", Mode("kernel", "cold", "throughput")),
        ("kernel/warm/dependent", Mode("kernel", "warm", "dependent")),
        ("per_launch/64", Mode("per_launch", "warm", "throughput", 64)),
        (" latency/warm/8 ", Mode("latency", "warm", "preallocated", 8)),
        ("latency/allocated/1", Mode("latency", "warm", "allocated", 1)),
        ("build/warm-memory", Mode("build", "warm-memory")),
        ("build/warm-disk", Mode("build", "warm-disk")),
    ],
)
def test_words_that_are_left_out_have_their_defaults(text, mode):
    """The first cache, the first flavour, one launch."""
    assert parse(text) == mode


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", ""),
        ("Kernel", "Kernel"),
        ("kernel/", ""),
        ("kernel/lukewarm", "lukewarm"),
        ("kernel/8", "8"),
        ("build/first/2", "2"),
        ("latency/-1", "-1"),
        ("latency/dependent", "dependent"),
        ("per_launch/first", "first"),
    ],
)
def test_an_unknown_word_is_named_beside_the_known_ones(text, word):
    """The sentence ends in examples."""
    with pytest.raises(SteelyardError) as caught:
        parse(text)
    said = str(caught.value)
    assert f"has the word {word!r}; expected one of " in said
    assert "Write for example kernel/cold" in said

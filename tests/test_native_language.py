import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device.native_language import own, translated

# The same text is Python: what it returns there is expected of the machine code.
SUMS = """
def gcd(a: i64, b: i64) -> i64:
    while b != 0:
        rest = a
        while rest >= b:
            rest = rest - b
        a = b
        b = rest
    return a

def steps(n: i64, most: i64) -> i64:
    "Collatz', of which no more than some are taken."
    for i in range(1, most):
        if n == 1 or n == 0:
            return i
        n = n * 3 + 1 if n & 1 else n >> 1
    return 0 - most

def chosen(a: i64, b: i64) -> i64:
    found = 0
    for i in range(10):
        if not (a < i and b > i) or i == 3:
            continue
        if a + i > b << 1 | 1:
            break
        found = found + (i - a) * gcd(i, 6)
    return found
"""

LISTS = """
class Pair:
    one: i32
    next: ptr[Pair]
    sign: fn[i64]

def total(first: ptr[Pair], turned: ptr[i64]) -> i64:
    found = room(i64, 2, 16)
    found[1] = 0
    while first != null:
        found[1] = found[1] + first.sign(i64(first.one))
        first.one = BEHIND
        last = address(first.one)
        first = first.next
    turned[1] = i64(last)
    return found[1]

def minus(number: i64) -> i64:
    return -1 * number
"""


def native(source, name, *types, **given):
    """Return a function of a source, of int64 and pointers."""
    at = own(source, [name], given)[name]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *types)(at)


PYTHON = {"i64": int}
exec(SUMS, PYTHON)


@pytest.mark.parametrize("name", ["gcd", "steps", "chosen"])
@given(a=st.integers(1, 50), b=st.integers(1, 60))
def test_a_source_does_what_python_does(name, a, b):
    """Loops, branches, what ends them early, and conditions of several."""
    function = native(SUMS, name, ctypes.c_int64, ctypes.c_int64)
    assert function(a, b) == PYTHON[name](a, b)


def test_structs_lie_as_those_of_c():
    """Fields are read, written and called, and said where they are."""

    class Pair(ctypes.Structure):
        _fields_ = (
            ("one", ctypes.c_int32),
            ("next", ctypes.c_void_p),
            ("sign", ctypes.c_void_p),
        )

    minus = own(LISTS, ["minus"], {"BEHIND": "7"})["minus"]
    last = Pair(5, None, minus)
    first = Pair(3, ctypes.addressof(last), minus)
    turned = (ctypes.c_int64 * 2)()
    total = native(LISTS, "total", *[ctypes.c_void_p] * 2, BEHIND="7")
    assert total(ctypes.addressof(first), ctypes.addressof(turned)) == -8
    assert (first.one, last.one) == (7, 7)
    assert turned[1] == ctypes.addressof(last)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("with x: return x", "with x"),
        ("del x", "del x"),
        ("return [x]", "[x]"),
        ("return f(i32(x))", "takes i64"),
    ],
)
def test_what_the_language_has_not_is_told(body, said):
    """A mistake of ours names the words, and no machine code is made of it."""
    with pytest.raises(SyntaxError) as raised:
        translated(f"def f(x: i64) -> i64:\n    {body}", ["f"], {})
    assert said in str(raised.value)

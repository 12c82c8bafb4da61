"""Native functions as builtins of Python."""

import ctypes
import gc
import sys
import threading

import pytest

from steelyard_device import llvm, native_call

TEXT = """
define i32 @add(ptr %total, i64 %number) {
  %old = load i64, ptr %total
  %new = add i64 %old, %number
  store i64 %new, ptr %total
  %status = trunc i64 %new to i32
  ret i32 %status
}
define i32 @until(ptr %flag, i64 %number) {
entry:
  br label %look
look:
  %seen = load atomic i64, ptr %flag acquire, align 8
  %set = icmp eq i64 %seen, %number
  br i1 %set, label %done, label %look
done:
  ret i32 0
}
"""


@pytest.fixture(scope="module")
def functions():
    """Assemble two functions."""
    return llvm.link(llvm.assemble(TEXT), ["add", "until"])


@pytest.fixture
def word():
    """Give a word of native memory, zero at first."""
    return ctypes.c_int64(0)


def bound(function, word):
    """Bind a function to the word."""
    return native_call.bound(function, ctypes.addressof(word))


@pytest.mark.parametrize("number", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_a_call_passes_its_number_and_returns_the_status(functions, word, number):
    """Also -1, which is how Python's own conversion says that it failed."""
    assert bound(functions["add"], word)(number) == number
    assert word.value == number


@pytest.mark.parametrize("given", [None, 1.5, "1", 2**63])
def test_what_is_no_number_of_64_bits_raises(functions, word, given):
    """And the function is not called."""
    with pytest.raises((TypeError, OverflowError)):
        bound(functions["add"], word)(given)
    assert word.value == 0


def test_it_takes_one_argument(functions, word):
    """As Python checks."""
    with pytest.raises(TypeError, match="takes exactly one argument"):
        bound(functions["add"], word)()


def test_calls_leak_nothing(functions, word):
    """A builtin frees its addresses, a call its numbers."""
    add = bound(functions["add"], word)
    for _ in range(3000):
        add(1)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(3000):
        bound(functions["add"], word)(1000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 100
    assert word.value == 3000 + 3_000_000


def test_other_threads_run_during_a_call(functions, word):
    """The call ends only when another thread has done something."""

    def let_go():
        word.value = 7

    timer = threading.Thread(target=let_go)
    until = bound(functions["until"], word)
    timer.start()
    assert until(7) == 0
    timer.join()

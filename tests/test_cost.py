"""Bytes and operations, counted from the expression."""

from steelyard_kernels import array as xp
from steelyard_kernels import cost, library
from steelyard_kernels.function import kernel


def test_inputs_are_read_once_and_outputs_written_once():
    """An input used twice counts once; an updated one counts twice."""
    specs = (((1000,), "float32"),) * 3
    assert cost.bytes_moved(library.adam.program(*specs)) == 6 * 4000
    assert cost.bytes_moved(library.triad.program(*specs[:2])) == 3 * 4000


def test_what_is_overwritten_unread_counts_once():
    """The step overwrites the gradient without reading it."""
    specs = (((1000,), "float32"),) * 3
    assert cost.bytes_moved(library.adam_update.program(*specs)) == 3 * 4000


def test_broadcast_inputs_count_their_own_size():
    """Fuser#383's bytes: twice the input and four vectors."""
    specs = (((1024, 768), "float16"), *((((768,), "float16"),) * 4))
    program = library.bias_layernorm.program(*specs)
    assert cost.bytes_moved(program) == 2 * 1024 * 768 * 2 + 4 * 768 * 2


def test_operations_count_arithmetic_only():
    """One an element for arithmetic, three for a variance, none for casts."""

    @kernel
    def some(x, w):
        y = xp.where(x > 0, x.astype("float64"), w)
        return y * 2.0 + xp.var(y, axis=-1, keepdims=True)

    program = some.program(((3, 5), "float32"), ((5,), "float64"))
    assert cost.operations(program) == 15 + 15 + 15 + 3 * 15
    assert cost.operations(library.copy.program(((9,), "float32"))) == 0


def test_of_an_array_that_elements_are_taken_of_these_alone_count():
    """An embedding reads its tokens' rows, however large its table is."""
    taken = kernel(lambda table, tokens: xp.take(table, tokens, axis=0))
    program = taken.program(((30000, 64), "float16"), ((5,), "int32"))
    assert cost.bytes_moved(program) == 2 * 5 * 64 * 2 + 5 * 4

import pytest

from steelyard_kernels import KernelFunction, library
from steelyard_kernels.errors import KernelError
from steelyard_kernels.library import examples


def test_every_kernel_of_the_library_has_arguments_that_it_takes():
    """A kernel that is added to the library is added to the table."""
    shipped = {k: v for k, v in vars(library).items() if isinstance(v, KernelFunction)}
    assert set(examples.SHAPES) == set(shipped)
    for name, kernel in shipped.items():
        program = kernel.program(*examples.specs(name))
        assert len(program.inputs) <= len(kernel.signature.arrays)


def test_axes_are_those_of_the_shapes_and_the_dtype():
    """In order; a kernel without arrays has none."""
    assert examples.axes_of("bias_layernorm") == ("rows", "hidden", "dtype")
    assert examples.axes_of("empty") == ()


def test_a_point_replaces_what_axes_are_by_default():
    """What is left out stays."""
    assert examples.specs("copy", {"n": 3, "dtype": "float16"}) == (((3,), "float16"),)
    assert examples.specs("softmax", {"rows": 2}) == (((2, 768), "float32"),)
    assert examples.specs("empty") == ()


def test_an_axis_that_a_kernel_has_not_is_one_sentence():
    """It names those that there are."""
    with pytest.raises(KernelError, match=r"copy has no axis 'rows'.*n, dtype"):
        examples.specs("copy", {"rows": 3})
    with pytest.raises(KernelError, match=r"empty has no axis 'n'.*none"):
        examples.specs("empty", {"n": 3})

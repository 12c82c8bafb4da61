"""Models that PyTorch exported, on the oracle and as kernels, against its results.

Nothing here needs PyTorch: see `torch_graphs`. `test_from_torch_live` does.
"""

from typing import Any

import numpy as np
import pytest
import torch_graphs

from steelyard_kernels import KernelFunction, Unsupported, dtypes, kernel
from steelyard_kernels import array as xp
from steelyard_kernels.expression.expr import Input
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.from_torch.graph import Call, Graph, GraphInput, Ref, TensorType
from steelyard_kernels.from_torch.interpret import (
    ROWS,
    function_of,
    parameters,
    specs,
)
from steelyard_kernels.grad import grad
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.schedule.attention import Attention, attention_of

CASES = torch_graphs.read()
EXACT = 1e-12  # of float64: other orders of sums, and another library's functions
TOLERANCE = {"float64": EXACT, "float32": 2e-6, "float16": 2**-10, "bfloat16": 2**-7}


def close(found, expected):
    """Hold a result against PyTorch's: shape and dtype, integers exactly."""
    shape, dtype, kept = expected
    assert found.shape == shape
    array = np.asarray(found, dtypes.of(dtype).numpy)
    sample = np.asarray(torch_graphs.sample(array)[2])
    if dtypes.of(dtype).kind != "float":
        np.testing.assert_array_equal(sample, kept)
        return
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(sample, kept, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_kernel_agrees_with_pytorch(name):
    """Operations, and whole models of several launches."""
    case = CASES[name]
    kernel: Any = KernelFunction(function_of(case.graph))
    found = kernel(*case.arrays())
    several = found if isinstance(found, tuple) else (found,)
    for one, other in zip(several, case.results, strict=True):
        assert one.dtype == dtypes.of(other[1]).numpy
        close(one, other)


def test_every_operation_is_one_of_the_cases():
    """Each row of the table, by its name or an overload's."""
    used = set()
    for case in CASES.values():
        for call in case.graph.calls:
            overload = call.operation.removeprefix("aten.")
            used |= {overload, overload.partition(".")[0]}
    assert ROWS.keys() - used == {"native_dropout"}  # of models that are trained


X = Ref("x")


def calls(*operations, args=(X,), where="model.py:7"):
    """Return a graph of calls, each of x and of one shape."""
    kind = TensorType((2, 3), "float32")
    made = [
        Call(f"call{place}", operation, args, {}, (kind,), where)
        for place, operation in enumerate(operations)
    ]
    outputs = tuple(Ref(call.name) for call in made)
    return Graph("Model", (GraphInput("x", kind),), tuple(made), outputs)


def test_all_missing_operations_are_named_at_once_with_their_lines():
    """Each once, with every line that asks for it."""
    graph = calls("aten.mode.default", "aten.abs.default", "aten.histc.default")
    again = calls("aten.mode.default", where="model.py:9").calls
    graph = Graph("Model", graph.inputs, (*graph.calls, *again), graph.outputs)
    with pytest.raises(Unsupported) as error:
        function_of(graph)
    assert str(error.value) == (
        "Model: PyTorch's aten.mode.default at model.py:7, model.py:9; "
        "aten.histc.default at model.py:7 are not supported; from_torch.OPERATIONS are those that are: "
        "write it with them."
    )


def test_what_a_row_refuses_has_the_line_too():
    """Dropout while training, a mask, several values at one, an overload's own option."""
    dropped = calls("aten.native_dropout.default", args=(Ref("x"), 0.1, True))
    with pytest.raises(
        Unsupported, match=r"native_dropout.default at model.py:7 draws"
    ):
        KernelFunction(function_of(dropped)).program(*specs(dropped))
    masked = calls("aten.index.Tensor", args=(Ref("x"), (Ref("x"),)))
    with pytest.raises(
        Unsupported, match=r"index.Tensor at model.py:7 cannot be had: .* a mask"
    ):
        KernelFunction(function_of(masked)).program(*specs(masked))

    many = calls("aten.index_put.default", args=(Ref("x"), (Ref("m"),), Ref("x")))
    mask = GraphInput("m", TensorType((2, 3), "bool"))
    many = Graph("Model", (*many.inputs, mask), many.calls, many.outputs)
    with pytest.raises(Unsupported, match=r"index_put.default at model.py:7 writes as"):
        KernelFunction(function_of(many)).program(*specs(many))
    graph = calls("aten.mm.dtype", args=(Ref("x"), Ref("x"), "float32"))
    with pytest.raises(Unsupported, match=r"mm.dtype at model.py:7 is called .* many"):
        KernelFunction(function_of(graph)).program(*specs(graph))


def test_a_call_of_which_nothing_is_used_is_left_out():
    """With the weights that it alone reads: no error of one that is not supported."""
    graph = calls("aten.mode.default", "aten.abs.default")
    weight = GraphInput("w", TensorType((2,), "float32"), "unused")
    graph = Graph("Model", (*graph.inputs, weight), graph.calls, (Ref("call1"),)).live()
    assert [call.operation for call in graph.calls] == ["aten.abs.default"]
    assert parameters(graph) == ("x",)


def test_detached_values_are_constants_to_gradients():
    """Without one they are the values themselves: nothing is left of it."""
    graph = calls("aten.detach.default")
    detached = KernelFunction(function_of(graph))

    def loss(x):
        return xp.sum(x * detached(x))

    x = np.float32([[1, -2, 0.5], [3, 0, -0.0]])
    np.testing.assert_array_equal(kernel(grad(loss))(x), x)
    (whole,) = simplify(detached.program(*specs(graph))).outputs
    assert isinstance(whole.value, Input)


def test_weights_keep_their_names():
    """With underscores for dots, and none that a kernel may not have."""
    names = [each for each in parameters(CASES["layer"].graph) if "norm" in each]
    assert names == ["norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"]
    kind = TensorType((2,), "float32")
    names = ("a.b", "a_b", "lambda", "out0", "0.weight")
    inputs = tuple(GraphInput(f"p{i}", kind, name) for i, name in enumerate(names))
    graph = Graph("Model", inputs, (), (Ref("p0"),))
    assert parameters(graph) == ("a_b", "a_b_", "lambda_", "out0_", "_0_weight")


ATTENDED = {
    "plain": ((), {}, (), True),
    "causal": ((None, 0.0, True), {}, (), True),
    "scaled": ((), {"scale": 0.3}, (), True),
    "masked": ((Ref("mask"),), {}, ("bool",), False),
    "added": ((Ref("mask"),), {}, ("float16",), False),
}


@pytest.mark.parametrize("name", ATTENDED)
def test_attention_is_what_tensor_cores_take(name):
    """In every variant, with halves; logits of no mask are multiples of the scores."""
    rest, keywords, mask, multiple = ATTENDED[name]
    shape = (2, 4, 128, 64)
    kind = TensorType(shape, "float16")
    inputs = [GraphInput(each, kind) for each in "qkv"]
    inputs += [GraphInput("mask", TensorType((2, 1, 1, 128), each)) for each in mask]
    call = Call(
        "out",
        "aten.scaled_dot_product_attention.default",
        (Ref("q"), Ref("k"), Ref("v"), *rest),
        keywords,
        (kind,),
    )
    graph = Graph("attention", tuple(inputs), (call,), (Ref("out"),))
    program = KernelFunction(function_of(graph)).program(*specs(graph))
    found = attention_of(nest_of(simplify(program)))
    assert isinstance(found, Attention)
    assert (found.scale is not None) == multiple
    assert found.ahead == (0 if name == "causal" else None)

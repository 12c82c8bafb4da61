"""`from_torch` itself, where PyTorch is installed: models by their export, as called."""

from functools import cache

import numpy as np
import pytest

from steelyard_kernels import KernelError, Unsupported, kernel
from steelyard_kernels.from_torch import from_torch
from steelyard_kernels.reference import evaluate

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'steelyard[torch]'"
)

import torch_cases  # noqa: E402 - imports torch
import torch_graphs  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch_models import Bert, Gpt, Layer  # noqa: E402

RESULTS = torch_graphs.read()
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.*:FutureWarning"  # of PyTorch 2.13's own export
)


def on_oracle(kernel, *args, **keywords):
    """Return a kernel's results by the oracle, which shares nothing with emitters."""
    arrays = kernel.arrays(*args, **keywords)
    return list(evaluate(kernel.program(), arrays).values())


def agrees(model, *args, tolerance=1e-12):
    """Hold a model on the oracle against PyTorch's own results."""
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args))
    found = on_oracle(from_torch(model, args), *args)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:.*(degrees of freedom|is deprecated|in beta)")
@pytest.mark.parametrize("name", RESULTS)
def test_cases_are_what_pytorch_says_today(name):
    """The stored results, and what the installed PyTorch exports."""
    (found,) = [case for case in torch_cases.models() if case[0] == name]
    case = torch_cases.case(*found)
    for one, other in zip(case.results, RESULTS[name].results, strict=True):
        assert (one[0], one[1]) == (other[0], other[1])
        np.testing.assert_allclose(one[2], other[2], rtol=1e-6, atol=1e-6)
    made = [call.operation for call in case.graph.calls]
    whole = name in torch_cases.MODELS and name != "unet"  # which has none
    assert ("aten.linear.default" in made) >= whole


@pytest.mark.parametrize("layers", [1, 12])
def test_a_whole_bert_agrees(layers):
    """In float64, with padding; a row that is all padding too."""
    torch.manual_seed(1)
    model = Bert(layers, 16, 2).double().eval()
    ids, kinds = torch.randint(0, 40, (3, 9)), torch.randint(0, 2, (3, 9))
    mask = torch.arange(9) < torch.tensor([[9], [4], [0]])
    agrees(model, ids, kinds, mask)


def test_a_model_is_called_as_it_was():
    """By position and by name; results are tensors, or arrays, in its structure."""

    class Model(nn.Module):
        def forward(self, x, scale=2, *, more):
            return {"twice": x * scale, "both": (x + more["y"], None)}

    x, y = torch.ones(3), torch.arange(3.0)
    kernel = from_torch(Model(), (x, 2), {"more": {"y": y}})
    assert repr(kernel) == "<kernel Model from PyTorch>"
    found = kernel(x, 2, more={"y": y})
    assert torch.equal(found["both"][0], x + y)
    assert found["both"][1] is None
    arrays = kernel(x.numpy(), 2, more={"y": y.numpy()})
    assert isinstance(arrays["twice"], np.ndarray)
    out = [torch.zeros(3), torch.zeros(3)]
    kernel.bind(x, 2, more={"y": y}, out=out).launch()
    assert torch.equal(out[1], x + y)
    with pytest.raises(KernelError, match=r"scale is 3, expected 2 as it was exported"):
        kernel(x, 3, more={"y": y})
    with pytest.raises(KernelError, match=r"1 positional arguments and more, expected"):
        kernel(x, more={"y": y})
    with pytest.raises(
        KernelError, match=r"x is of float32 \(4,\), expected float32 \(3"
    ):
        kernel(torch.ones(4), 2, more={"y": y})


def test_one_tensor_given_twice_is_two_arguments():
    """Whatever the example was."""
    x = torch.ones(2)
    kernel = from_torch(torch_cases.Function(lambda a, b: a - b), (x, x))
    assert torch.equal(kernel(x, 3 * x), -2 * x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_share_memory(dtype):
    """Tensors of the host, in and out."""
    x, out = torch.arange(4).to(dtype), torch.zeros(4, dtype=dtype)
    kernel = from_torch(torch_cases.Function(lambda a: a * 2), (x,))
    assert torch.equal(kernel(x), x * 2)
    kernel(x, out=out)
    assert torch.equal(out, x * 2)
    with pytest.raises(KernelError, match="out is not contiguous"):
        kernel(x, out=torch.zeros(4, 2, dtype=dtype)[:, 0])


def linear():
    """Return a model whose weight has two names."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    return model


def test_weights_are_the_models_or_given(tmp_path):
    """By name, as a mapping or a file; a weight by any of its names."""
    x, model = torch.ones(2, 3), linear()
    with torch.no_grad():
        assert torch.allclose(from_torch(model, (x,))(x), model(x))
    other = {"0.weight": torch.eye(3)}
    assert torch.equal(from_torch(model, (x,), weights=other)(x), x)
    with pytest.raises(KernelError, match=r"no 1.weight, which the model has \(3, 3\)"):
        from_torch(model, (x,), weights={})
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(other, tmp_path / "w.safetensors")
    kernel = from_torch(model, (x,), weights=tmp_path / "w.safetensors")
    assert torch.equal(kernel(x), x)


def bound(kernel, x, **keywords):
    """Return what a launch of a bound kernel gives, and the work."""
    out = torch.zeros(2, 3)
    work = kernel.bind(x, out=out, **keywords)
    work.launch()
    return out, work


def test_weights_are_constants_of_what_is_bound():
    """Read when it is bound and by `refresh`; equal ones, and ones that lie across."""
    x, model = torch.randn(2, 3), linear()
    across = torch.randn(3, 3).T
    model[0].weight = model[1].weight = nn.Parameter(across)
    assert not model[0].weight.is_contiguous()
    kernel = from_torch(model, (x,))
    out, work = bound(kernel, x)
    assert "packed" in work.kept.text
    with torch.no_grad():
        want = model(x)
        assert torch.allclose(out, want, atol=1e-5)
        model[0].weight.mul_(2)
        work.launch()
        assert torch.allclose(out, want, atol=1e-5)
        work.refresh()
        work.launch()
        assert torch.allclose(out, model(x), atol=1e-4)
        read, again = bound(kernel, x, constant=False)
        assert again.kept is None
        assert torch.allclose(read, model(x), atol=1e-4)


def test_a_model_without_weights_or_arguments_has_no_constants():
    """It is bound as it is; so is one whose schedule is stated, which is of all of it."""
    x = torch.ones(2, 3)
    out, work = bound(from_torch(torch_cases.Function(torch.exp), (x,)), x)
    assert work.kept is None
    assert torch.allclose(out, torch.exp(x))
    kernel = from_torch(nn.Linear(3, 3), (x,))
    (schedule, *_) = kernel.candidates()
    _, work = bound(kernel, x, schedule=schedule)
    assert work.kept is None


def test_a_model_without_arguments_returns_tensors():
    """As it does itself."""
    kernel = from_torch(torch_cases.Function(lambda: torch.eye(2)), ())
    assert torch.equal(kernel(), torch.eye(2))


def test_an_exported_program_is_a_model():
    """Also one of other operations."""
    x, layer = torch.randn(2, 5, 16, dtype=torch.float64), Layer(16, 2, before=True)
    program = torch.export.export(layer.double().eval(), (x,))
    kernels = from_torch(program), from_torch(program.run_decompositions())
    with torch.no_grad():
        expected = layer(x)
    for each in kernels:
        assert each.name == "Layer"
        np.testing.assert_allclose(on_oracle(each, x)[0], expected, atol=1e-12)


class Words(nn.Module):
    """Extents in shapes, as numbers, and in what is made of them."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(16, 32)

    def forward(self, x, mask):
        """Return a share of each word's that is not masked, over their number."""
        batch, words, width = x.shape
        share = torch.softmax(self.wide(x).reshape(batch * words, 2 * width), -1)
        kept = torch.where(mask[:, :, None], share.view(batch, words, 2 * width), 0.0)
        return kept / words


def words(batch, words):
    """Return arguments of a call."""
    return torch.randn(batch, words, 16), torch.rand(batch, words) < 0.7


def test_extents_of_dynamic_shapes_are_those_of_each_call():
    """Of one build; weights are not packed, which would be for some extents alone."""
    batch, most = torch.export.Dim("batch", max=6), torch.export.Dim("words", max=40)
    model, axes = Words().eval(), {0: batch, 1: most}
    kernel = from_torch(model, words(3, 5), dynamic_shapes=(axes, axes))
    for given in (words(3, 5), words(2, 40), words(6, 7), words(1, 1), words(5, 1)):
        with torch.no_grad():
            assert torch.allclose(kernel(*given), model(*given), atol=1e-5)
    first, other = (
        kernel.kernel.build(*kernel.arrays(*words(*n))) for n in ((2, 9), (4, 30))
    )
    assert first.code_hash == other.code_hash
    assert kernel.bind(*words(2, 9)).kept is None
    x, mask = words(3, 5)
    with pytest.raises(KernelError, match=r"mask has x_1 4, but x has 5"):
        kernel(x, mask[:, :4])
    with pytest.raises(KernelError, match=r"x has x_1 41, at most 40 were declared"):
        kernel(*words(3, 41))
    with pytest.raises(KernelError, match=r"x is of float32 \(3, 5, 9\), expected"):
        kernel(torch.randn(3, 5, 9), mask)


def test_texts_are_as_long_as_a_model_has_places():
    """Of 64, up to the last one."""

    class Logits(Gpt):
        def forward(self, ids):
            """Return logits alone."""
            return super().forward(ids)[0]

    model = Logits(1, 16, 2, length=64).eval()
    axes = {1: torch.export.Dim("words", min=3, max=64)}
    kernel = from_torch(model, (torch.ones(2, 9, dtype=int),), dynamic_shapes=(axes,))
    for count in (3, 9, 63, 64):
        ids = torch.randint(0, 40, (2, count))
        with torch.no_grad():
            assert torch.allclose(kernel(ids), model(ids), atol=1e-4)


def test_an_argument_may_give_an_extent_alone():
    """None of its elements is read."""
    axes = ({0: torch.export.Dim("batch", max=6)},)
    made = torch_cases.Function(lambda x: torch.ones(x.shape[0]) / 2)
    kernel = from_torch(made, (torch.ones(3, 2),), dynamic_shapes=(axes,))
    assert kernel(torch.ones(5, 2)).tolist() == [0.5] * 5


@pytest.mark.parametrize("axis", ["batch", "2*half"])
def test_an_extent_without_a_bound_of_its_own_is_refused(axis):
    """One of any length, and one that is twice as long as something."""
    half = torch.export.Dim("half", max=4)
    dim = 2 * half if axis == "2*half" else torch.export.Dim("batch")
    function = torch_cases.Function(torch.exp)
    with pytest.raises(Unsupported, match=r"axis 0 of args_0 is .*, expected an ext"):
        from_torch(function, (torch.ones(4, 3),), dynamic_shapes=(({0: dim},),))


def test_kernels_call_models():
    """With small weights as constants, with others as parameters of theirs."""
    x = torch.arange(12.0).reshape(2, 6) / 8
    small, large = nn.Linear(6, 8), nn.Linear(6, 32)
    made = from_torch(small, (x,))
    np.testing.assert_allclose(
        kernel(lambda x: made(x) + 1)(x.numpy()),
        small(x).detach().numpy() + 1,
        rtol=1e-6,
    )
    wide = from_torch(large, (x,))
    with pytest.raises(KernelError, match=r"weight: .* pass it as a parameter"):
        kernel(lambda x: wide(x) + 1)(x.numpy())
    weights = [each.detach().numpy() for each in large.parameters()]
    given = kernel(lambda x, w, b: wide.kernel(x, w, b) * 2)(x.numpy(), *weights)
    np.testing.assert_allclose(given, 2 * large(x).detach().numpy(), rtol=1e-5)


def test_missing_operations_are_named_with_the_users_lines():
    """Those of the model's own file, not PyTorch's."""

    class Ordered(nn.Module):
        def forward(self, x):
            return torch.mode(x, 0)[0] + torch.histc(x)

    with pytest.raises(Unsupported) as error:
        from_torch(Ordered(), (torch.ones(3),))
    line = Ordered.forward.__code__.co_firstlineno + 1
    where = f"at {__file__}:{line}"
    assert f"aten.mode.default {where}; aten.histc.default {where} are" in str(
        error.value
    )


def test_a_model_that_is_trained_is_refused():
    """Dropout, and what writes to its own state."""
    x = torch.ones(4, 3)
    with pytest.raises(Unsupported, match=r"draws random numbers.*model.eval\(\)"):
        from_torch(nn.Dropout(0.1), (x,)).program()
    with pytest.raises(Unsupported, match=r"writes to running_mean.*model.eval\(\)"):
        from_torch(nn.BatchNorm1d(3), (x,))


@cache
def bert(**keywords):
    """Return the BERT of transformers, of random weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(
        vocab_size=99, num_hidden_layers=2, **sizes, **keywords
    )
    return transformers.BertModel(config).double().eval()


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_the_bert_of_transformers_agrees(how):
    """With its own mask, by its own names."""
    ids, mask = torch.randint(0, 99, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    mask[0, 5:] = 0
    agrees(bert(attn_implementation=how), ids, mask)


def test_what_cannot_be_exported_is_one_sentence():
    """A truth of values decides what the model does: PyTorch says so, without its stack."""

    class Chosen(nn.Module):
        def forward(self, x):
            return x if torch.equal(x, x.T) else -x

    with pytest.raises(
        Unsupported, match=r"^Chosen: torch.export cannot have it as one"
    ):
        from_torch(Chosen(), (torch.ones(3, 3),))

"""What `from_torch` is tested with: functions and models, and what PyTorch says of them.

python tests/torch_cases.py            # writes torch_graphs.json; needs torch
"""

import math

import torch
import torch_graphs
from msgspec.structs import replace
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's name for it
from torch.utils import _pytree as pytree
from torch_graphs import Given
from torch_models import Bert, ClipText, Gpt, Layer, ResNet, UNet, Vit

from steelyard_kernels.from_torch.arguments import taken
from steelyard_kernels.from_torch.export import exported, graph_of
from steelyard_kernels.from_torch.graph import TensorType

INF = float("inf")
A, R = "2x3", "2x3x4"  # shapes of most arguments
Q, K, V = "2x2x5x4", "2x2x6x4", "2x2x6x3"


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        """Return what the function does."""
        return self.function(*args)


def written(x, y):
    """Write to parts of a tensor."""
    z = x.clone()
    z[:, 1:2] = y
    z[0] += 1
    z.mul_(2)
    z[..., 1] = 0
    return z


def smooth(x):
    """Return functions of any number."""
    return (
        x.abs(), x.asinh(), x.atan(), x.ceil(), x.cos(), x.cosh(), x.erf(), x.erfc(), x.exp(),
        x.expm1(), x.floor(), -x, x.round(), x.sigmoid(), x.sign(), x.sin(), x.sinh(),
        x.tan(), x.tanh(), x.trunc(), 1 - x, x / 3 + 2 * x - 4,
    )  # fmt: skip


def of_positive(x):
    """Return functions of positive numbers."""
    return (
        x.log(), x.log2(), x.log10(), x.log1p(), x.sqrt(), x.rsqrt(), x.reciprocal(),
        x.square(), x.lgamma(), x.digamma(), (x + 1).acosh(), x**2, x**0.5, x**-0.5, x**3.7, 2**x, x**x,
    )  # fmt: skip


def of_two(a, b):
    """Return functions of two tensors."""
    return (
        a + b, a - b, a * b, a / b, torch.maximum(a, b), torch.atan2(a, b), a % b,
        torch.minimum(a, b), torch.fmod(a, b), torch.hypot(a, b), torch.copysign(a, b),
        torch.add(a, b, alpha=2.5), torch.sub(a, b, alpha=2), torch.lerp(a, b, 0.3),
        a // b, torch.div(a, b, rounding_mode="trunc"), torch.clamp(a, min=b),
        torch.nextafter(a, b), torch.addcmul(a, a, b, value=2),
    )  # fmt: skip


def of_integers(a, b):
    """Return functions of whole numbers."""
    return (
        a + b, a / b, a // b, a % b, torch.fmod(a, b), a & b, a | b, a ^ b, ~a, a << b,
        a >> b, a**2, torch.div(a, b, rounding_mode="trunc"), a.logical_and(b),
        a.bitwise_left_shift(b), a.bitwise_right_shift(b), a > 0.5, a == 1,
    )  # fmt: skip


def compared(a, b):
    """Return comparisons, and what they choose."""
    return (
        a == b, a != b, a < b, a <= b, a > b, a >= b, a > 0.5, (a / 0).isinf(),
        (a * 0 / 0).isnan(), torch.where(a > b, a, 0), torch.where(a > b, 1.5, b),
        a.masked_fill(b > 0, -INF), a.clamp(-1, 1), a.clamp(min=0), a.clamp(max=0.5),
    )  # fmt: skip


def cast(x, i, b):
    """Return values in other dtypes."""
    return (
        x.float(), x.long(), x.bool(), x.half().double(), i.double(), b.float(), i + b,
        b.long(), x.int(), i + 0.5, i * x, b & ~b, b | b, b ^ b, b.logical_xor(b),
        b.logical_or(b), b.logical_not(), b + b, b * b,
    )  # fmt: skip


def activated(x):
    """Return activation functions."""
    return (
        F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.elu(x),
        F.leaky_relu(x), F.relu(x), F.relu6(x), F.hardswish(x), F.mish(x), F.selu(x),
    )  # fmt: skip


def reduced(x, i, b):
    """Return reductions."""
    return (
        x.sum(), x.sum((0, 2)), x.mean(-1, keepdim=True), x.amax((0, 1)), x.amin(1),
        x.prod(), x.prod(1), *x.max(1), *x.min(-1, keepdim=True), x.max(), x.min(),
        x.argmax(), x.argmin(0, keepdim=True), b.any(), b.all(-1), b.any((0, 1)),
        x.var(), x.var(-1, unbiased=False, keepdim=True), x.std(1), x.norm(dim=-1),
        *torch.var_mean(x, 1, correction=0), x.cumsum(1), i.cumsum(0), i.sum(0), b.sum(),
    )  # fmt: skip


def reshaped(x):
    """Return the same elements in other shapes and orders."""
    return (
        x.view(6, 4), x.reshape(-1), x.flatten(1), x.permute(2, 0, 1), x.transpose(0, 2),
        x.unsqueeze(1), x[:, :1].squeeze(1), x.expand(5, 2, 3, 4), x.repeat(2, 1, 3),
        x.flip(0, 2), x.roll(1, 1), x.repeat_interleave(2, 1), x[0, :, 1:].diagonal(1),
        x.detach(), torch.ops.aten.alias(x), x[None, ..., None],
    )  # fmt: skip


def parts(x, i):
    """Return parts, and what they come to together."""
    return (
        x[:, 1:], x[:, ::2], x[..., -2:], x[1], x[:, -1], x[:, :-1], *x.split(2, -1),
        *x.chunk(3, 1), *x.split([1, 3], 2), *x.unbind(0), torch.cat([x, x[:, :1]], 1),
        torch.stack([x, x], -1), torch.cat([torch.zeros(0), x[0, 0].float()]), x[:, i],
        x[:, :, i], x[i % 2, i], x[:, i, i], x[..., -i - 1], x.index_select(2, i),
        x.gather(1, i.view(1, 3, 1).expand(2, 3, 4)), F.pad(x, (1, 2)),
        F.pad(x, (0, 0, 2, 0), value=1.5), F.pad(x, (-1, 1)), x.tril(), x.triu(1),
        F.embedding(i, x[0]),
    )  # fmt: skip


def made(x):
    """Return what is made of numbers."""
    return (
        torch.arange(5) * 2, torch.arange(1, 9, 3), torch.arange(0, 1, 0.25),
        torch.zeros(2) + 1, torch.ones(2, 3), torch.full((2,), 3.5), torch.eye(3),
        torch.zeros_like(x), x.new_full((2,), 7), torch.linspace(0, 1, 5),
        torch.empty(3).fill_(2), torch.empty(0, 2),
        torch.ones(3, 3, dtype=torch.bool).triu(1), F.one_hot(torch.arange(3), 4),
    )  # fmt: skip


def normed(x, w, b):
    """Return softmaxes and normalisations."""
    return (
        x.softmax(-1), x.softmax(1), x.log_softmax(-1), x.logsumexp(-1),
        F.layer_norm(x, (4,), w, b), F.layer_norm(x, (3, 4)), F.rms_norm(x, (4,), w),
        torch.native_layer_norm(x, (4,), w, b, 1e-5)[2], F.dropout(x, 0.5, False),
        F.normalize(x), x.cumprod(1),
    )  # fmt: skip


def normed_by_channels(x, w, b, m, v):
    """Return normalisations of what has channels."""
    halves = (each.bfloat16() for each in (x, m, v, w, b))
    return (
        F.batch_norm(x, m, v, w, b), F.batch_norm(x[..., 0], m, v), F.group_norm(x, 2, w, b),
        F.instance_norm(x, weight=w, bias=b), F.batch_norm(*halves),
        *torch.native_group_norm(x, None, None, 2, 4, 35, 4, 1e-5),
    )  # fmt: skip


def pooled(x, i):
    """Return pools, also of windows that go beyond what there is, and resized images."""
    edged = torch.cat([torch.where(x[:1] > 1, math.nan, x[:1]), x[1:] - INF])
    return (
        *F.max_pool2d(edged, 3, 2, 1, ceil_mode=True, return_indices=True),
        F.max_pool2d(x[0], (2, 3), (1, 3), (1, 0), (2, 1)), F.max_pool1d(x[:, 0], 3),
        F.max_pool2d(i, 2), F.max_pool3d(x, 2, stride=1), F.avg_pool1d(x[:, 0], 4, 1, 2),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(i, 3, (1, 2)),
        F.avg_pool2d(x, (3, 2), 2, 1, True, False), F.avg_pool3d(x, 2, divisor_override=5),
        F.adaptive_avg_pool2d(x, (5, 3)), F.adaptive_avg_pool2d(x, (1, 4)),
        F.adaptive_avg_pool3d(x, (2, 3, 1)), F.adaptive_avg_pool2d(x.half(), (2, 5)),
        *F.adaptive_max_pool2d(x, (4, 3), return_indices=True),
        F.adaptive_max_pool3d(x, 2), x.unfold(2, 3, 2), x.unfold(-1, 8, 1).unfold(0, 1, 1),
        x.sum().unfold(0, 1, 1), F.unfold(x, 3, padding=1, stride=2),
        F.interpolate(x, scale_factor=2), F.interpolate(x, (10, 5)),
        F.interpolate(x, scale_factor=1.7), F.interpolate(x[0], 11),
        F.interpolate(x[None], scale_factor=(2, 1, 3)),
        F.interpolate(x, (9, 14), mode="nearest-exact"), F.pixel_shuffle(x, 2),
        F.interpolate(x, (3, 11), mode="bilinear", align_corners=True),
    )  # fmt: skip


def put(x, i, m, v):
    """Return tensors of which some elements are others'."""

    def masked(z):
        z[z > 1] = v.sum()
        return z

    put, one, p = torch.ops.aten.index_put, v.new_full((), 3.0), i.argsort()
    return (
        masked(x.clone()), put(x, [None, m], one, True), put(x, [m[:2, 0]], v[0, :3]),
        x.index_copy(1, p, v[:, :3]), x.index_add(1, i % 2, v[:, :3], alpha=2),
        put(x, [None, p - 3, i], v[:, :3, 0]), put(x, [i[:2] % 2, None, i[:2]], one),
        x.scatter(1, p.view(1, 3, 1), v), x.scatter(2, i.expand(2, 2, 3), 7),
        x.scatter_add(0, i.view(3, 1).expand(2, 3, 1) % 2, v), v.sum().scatter(0, i[0] * 0, 2),
        F.fold(x[:, 0, :].reshape(1, 8, 1), (3, 3), 2, stride=2),
        x.to(torch.int16).index_put([i[:2] % 2], i[0].short(), True),
    )  # fmt: skip


def in_order(x, i, b):
    """Return values in order, and the largest."""
    edged = torch.where(x == x.max(), math.nan, x)
    return (
        *x.sort(), *x.sort(1, descending=True), *torch.sort(b, dim=0, stable=True),
        x.argsort(0), *x.topk(2), *x.topk(1, 1), *x.topk(1, 2, largest=False), *x.view(-1).argsort().topk(3),
        *edged.topk(1, 0), *edged.topk(1, 0, largest=False), *edged.sort(), *x.sum().sort(), torch.bucketize(x, x[0, 0].sort()[0]),
    )  # fmt: skip


def ranked(x, i, s):
    """Return medians, extremes so far and what else an order says."""
    edged = torch.where(x > 1, math.nan, x)
    return (
        x.median(), i.median(), edged.median(1)[0], *x.median(2), edged.nanmedian(), edged.nanmedian(0, True)[0],
        *x.kthvalue(2), *x.kthvalue(1, 1, True), edged.kthvalue(3, 2)[0], *x.sum().median(0), x.sum().kthvalue(1)[0],
        *edged.cummax(1), *edged.cummin(0), *i.cummax(0), *x.sum().cummin(0), (9 * x).logcumsumexp(2),
        torch.searchsorted(s.sort()[0], x[0, 0]), torch.searchsorted(x[0].sort()[0], x[1], right=True), torch.cdist(x, x[:1]),
        torch.cdist(x, x, p=1), torch.cdist(x, x, p=0), torch.cdist(x, x, p=INF), torch.cdist(x, x, p=3),
    )  # fmt: skip


def points(x, i):
    """Return what tensors without axes have along their only one."""
    return (
        x.sum(0), x.mean(0), x.prod(0), x.amax(0), x.amin(0), *x.max(-1), *x.min(0), x.argmax(0), x.argmin(0),
        x.any(0), x.cumsum(0), x.cumprod(0), x.logcumsumexp(0), *x.cummax(0), *x.cummin(0), *x.topk(1), *x.sort(),
        *x.kthvalue(1), *x.median(0), *x.nanmedian(0), x.softmax(0), x.log_softmax(0), x.var(0, correction=0),
        *torch.var_mean(x, 0, correction=0), x.flip(0), x.index_select(0, i), x.gather(0, i), x.unfold(0, 1, 1),
        x.scatter(0, i, 2), x.scatter_add(0, i, x), x.scatter_reduce(0, i, x, "sum"), x.scatter(0, i, x, reduce="add"),
        x.scatter(0, i, 2, reduce="multiply"), x[None].index_reduce(0, i, x[None], "amax"),
    )  # fmt: skip


def placed(x, i, w, m):
    """Return values at places in an order, along diagonals, in whole rows."""
    few = i[:2].view(1, 2).expand(1, 2)
    return (
        *torch.tril_indices(4, 5, -1), torch.triu_indices(3, 4, 1), torch.tril_indices(0, 3), x.angle(), (x * math.nan).angle(),
        x.diagonal_scatter(w[0, :, :2]), x.diagonal_scatter(w[0, :3, :2], 2, 0, 2), x.diagonal_scatter(w[0, :3, :2], -1, 2, 0),
        x.masked_scatter(m, w), x.masked_scatter(m[:, 1:2], w), x[0, :1].masked_scatter(m, w), torch.bucketize(x.sum(), w[0, 0].sort()[0], right=True),
        torch.bucketize(0.3, w[0, 0].sort()[0]), torch.addbmm(w[0], w, x[:, :1].mT @ x[:, :1], beta=0.5, alpha=2),
        *[x.index_reduce(0, i[:2] * 0 + 1, w[:, :3], how, include_self=kept) for how in ("amax", "amin", "mean", "prod") for kept in (True, False)],
        x[0].scatter_reduce(1, few, w[0, :1, :2], "amax", include_self=False), x[0].scatter(0, few, w[0], reduce="multiply"),
        torch.ops.aten._embedding_bag_forward_only(x[0], i, i[:1] * 0)[0],
    )  # fmt: skip


def gathered(x, i, w, u):
    """Return what is made of several values for each place, and of bags of them."""
    at, starts = i.view(3, 1, 1).expand(3, 3, 4), torch.arange(4) ** 2
    bag = torch.ops.aten._embedding_bag
    reduced = [
        x.scatter_reduce(0, at, w, how, include_self=kept)
        for how in ("sum", "prod", "mean", "amax", "amin") for kept in (True, False)
    ]  # fmt: skip
    whole = (9 * x).long().scatter_reduce(0, at, (9 * w).long(), "mean")
    rows, many = x[0], i.repeat(3)
    bags = [bag(rows, many, starts, False, mode)[0] for mode in range(3)]
    last = [
        bag(rows, many, starts, False, mode, False, None, True, 1)[0]
        for mode in range(3)
    ]
    weighed = bag(rows, many, starts, False, 0, False, u)[0]
    return (
        *reduced,
        whole,
        *bags,
        *last,
        weighed,
        F.bilinear(rows, rows, w[:, :, :2].repeat(1, 2, 2)[:, :4]),
    )


def more(a, b, i):
    """Return more functions of numbers."""
    nans = torch.where(a > 0, math.nan, a)
    return (
        torch.erfinv(a / 3), torch.exp2(a), torch.fmax(nans, b), torch.fmin(b, nans), torch.fmax(i, 2 - i),
        torch.ldexp(a, i), torch.signbit(-0.0 * a.abs()), torch.signbit(i), F.rrelu(a), torch.addmv(a[:, 0], a, b[0]),
        torch.dist(a, b), F.cosine_embedding_loss(a, b, i[:, 0].sign() * 2 + 1),
    )  # fmt: skip


def multiplied(a, b, c, d):
    """Return products."""
    return (
        a @ b, a.mT @ a, a[0] @ b, b @ d, a[0, 0] @ b, torch.bmm(a, a.mT), torch.mm(a[0], b),
        torch.addmm(c, a[0], b), torch.addmm(c, a[0], b, beta=0.5, alpha=2),
        torch.einsum("bhi,bhj->bij", a, a), F.linear(a, b.T, c), F.linear(a, b.T),
    )  # fmt: skip


def convolved(x, w, b, g):
    """Return convolutions."""
    return (
        F.conv2d(x, w, b, stride=4), F.conv2d(x, w, stride=(2, 1), padding=(1, 0)),
        F.conv2d(x, g, groups=3), F.conv1d(x[:, :, 0], w[:, :, 0], dilation=2),
        F.conv_transpose2d(x[:, :, :4], w.transpose(0, 1), b, stride=2, padding=1),
    )  # fmt: skip


def attended(q, k, v, mask, term):
    """Return attention in all its variants; of rows that see nothing, too."""
    of = F.scaled_dot_product_attention
    nothing = torch.zeros(5, 6, dtype=torch.bool)
    return (
        of(q, k, v), of(q, k, v, is_causal=True), of(q, k, v, scale=0.3),
        of(q, k, v, mask), of(q, k, v, term), of(q, k, v, nothing), of(q[0], k[0], v[0]),
        of(q.repeat(1, 2, 1, 1), k, v, enable_gqa=True),
        ((q @ k.mT) / 2 + term).softmax(-1) @ v,
    )  # fmt: skip


def lost(x, t):
    """Return losses."""
    return (
        F.cross_entropy(x, t), F.cross_entropy(x, t, ignore_index=1, reduction="sum"),
        F.cross_entropy(x, t, label_smoothing=0.1), F.mse_loss(x, x * 2),
        F.nll_loss(x.log_softmax(-1), t),
    )  # fmt: skip


def halves(x, w, b):
    """Return what is computed in float32 and rounded once."""
    y = F.linear(x, w, b)
    return y, F.gelu(y), y.softmax(-1), F.layer_norm(y, (5,)), x @ w.T, (x + 1) * 0.1


def edges(x, i, h, y):
    """Return what is easily another number: at the ends of dtypes, of parts and of NaN."""
    z = x.clone()
    z[:, ::2] = y
    z[1:, 1::3] += 1
    few, bits, wide = x[:1], x.float().view(torch.int32), (h == 0).to(h.dtype)
    return (
        z, torch.arange(-9, 9, dtype=x.dtype) // 0.1, h * 1e5, h / 1e5, i.pow(-i),
        (x * math.nan).sign(), few.var(0), few.std((0, 1), correction=3), bits,
        torch.addmm(x * math.nan, x, x.T @ x, beta=0), wide * -1e9, h // 0.1,
        torch.cat([torch.zeros(0), y[:, :0], y[:0, :0]]), x.round(decimals=1), (x * 100).round(decimals=-1), torch.pow(i, torch.abs(i)),
    )  # fmt: skip


IDS = Given("2x7:int64", 0, 39)
MASK = Given("2x7:bool")
FUNCTIONS = {
    "smooth": (smooth, A),
    "of_unit": (lambda x: (x.acos(), x.asin(), x.atanh()), Given(A, -0.9, 0.9)),
    "of_positive": (of_positive, Given(A, 0.1, 2)),
    "of_two": (of_two, A, A),
    "of_integers": (of_integers, Given("9:int64", -7, 7), Given("9:int64", 1, 4)),
    "compared": (compared, A, A),
    "cast": (cast, A, "2x3:int64", "2x3:bool"),
    "activated": (activated, R),
    "reduced": (reduced, R, "2x4:int32", "2x3x4:bool"),
    "reshaped": (reshaped, R),
    "parts": (parts, R, Given("3:int64", 0, 2)),
    "written": (written, R, "2x1x4"),
    "made": (made, R),
    "normed": (normed, R, "4", "4"),
    "normed_by_channels": (
        normed_by_channels,
        "2x4x5x7",
        "4",
        "4",
        "4",
        Given("4", 0.1, 2),
    ),
    "pooled": (pooled, "2x4x7x8", "1x5x7:int64"),
    "put": (put, R, Given("3:int64", 0, 2), "3x4:bool", "2x4x4"),
    "in_order": (in_order, R, "9:int32", "4x3:bool"),
    "ranked": (ranked, R, "9:int32", "5:float64"),
    "points": (points, Given(""), Given(":int64", 0, 0)),
    "placed": (placed, R, Given("3:int64", 0, 2), "2x4x4", "2x3x4:bool"),
    "gathered": (gathered, R, Given("3:int64", 0, 1), "3x3x4", "9"),
    "more": (more, A, A, Given("2x3:int64", -3, 3)),
    "multiplied": (multiplied, R, "4x5", "5", "5"),
    "convolved": (convolved, "2x3x8x8", "5x3x4x4", "5", "6x1x3x3"),
    "attended": (attended, Q, K, V, "2x1x1x6:bool", "5x6"),
    "lost": (lost, "4x5", Given("4:int64", 0, 4)),
    "edges": (edges, A, Given("9:int64", -4, 4), "5:float16", "2x2"),
    "halves": (halves, "2x4:float16", "5x4:float16", "5:float16"),
    "bfloat16": (halves, "2x4:bfloat16", "5x4:bfloat16", "5:bfloat16"),
}
MODELS = {
    "layer": (Layer(16, 2, before=False), "2x7x16"),
    "layer32": (Layer(16, 2, before=False).float(), "2x7x16:float32"),
    "bert": (Bert(2, 16, 2), IDS, Given("2x7:int64", 0, 1), MASK),
    "gpt": (Gpt(2, 16, 2), IDS),
    "vit": (Vit(2, 16, 2), "2x3x8x8"),
    "resnet": (ResNet((1, 1, 2), 4), "2x3x21x23"),
    "unet": (UNet(4), "1x3x9x6"),
    "clip": (ClipText(2, 16, 2), IDS),
}


def models():
    """Return every case as its name, a model and what it is given."""
    for name, (function, *given) in FUNCTIONS.items():
        yield name, Function(function), given
    for name, (model, *given) in MODELS.items():
        wide = torch.float32 if name == "layer32" else torch.float64
        yield name, model.to(wide).eval(), given


def tensor(array):
    """Return NumPy's array, or ml_dtypes', as a tensor."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def case(name, model, given):
    """Return a case with what PyTorch exports of it, and computes."""
    every = [each if isinstance(each, Given) else Given(each) for each in given]
    every = [replace(each, place=place) for place, each in enumerate(every)]
    args = tuple(tensor(torch_graphs.values(each)) for each in every)
    with torch.no_grad():
        for weight, found in model.state_dict().items():
            kind = TensorType(tuple(found.shape), str(found.dtype)[6:])
            found.copy_(tensor(torch_graphs.weight(weight, kind)))
        results = model(*args)
    graph = graph_of(exported(model, args, {}), name)
    calls = tuple(replace(call, where="") for call in graph.calls)  # this file's
    graph = replace(graph, calls=calls)
    names = [each.name for each in graph.inputs if not each.weight]
    leaves = [taken(each) for each in pytree.tree_leaves(results)]
    return torch_graphs.Case(
        graph.live(),
        dict(zip(names, every, strict=True)),
        tuple(map(torch_graphs.sample, leaves)),
    )


if __name__ == "__main__":
    torch_graphs.write([case(*each) for each in models()])

"""Extents that only a call knows: the same code at all of them, up to a bound."""

import math
import os
import pickle
import random
import subprocess
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import simt
import simt_tiles
from corpus import Placed
from msgspec.structs import replace

from steelyard_kernels import KernelError, Unsupported, dtypes, kernel
from steelyard_kernels import array as xp
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.building.build import Request
from steelyard_kernels.extents import Extent, build, runtime
from steelyard_kernels.extents.arithmetic import FOUND
from steelyard_kernels.extents.formulas import Fitter
from steelyard_kernels.extents.points import points
from steelyard_kernels.extents.ranges import Ranges, constant, plus, times
from steelyard_kernels.extents.within import prove
from steelyard_kernels.grad import grad
from steelyard_kernels.reference import evaluate
from steelyard_kernels.targets import parse

N, S = Extent("rows", 40), Extent("words", 70)
AT = [(1, 1), (3, 5), (7, 17), (40, 70), (31, 2), (2, 16)]


def softmax(x):
    """Return the softmax of rows."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def normal(x, w):
    """Return rows of mean 0 and variance 1, weighed."""
    c = x - xp.mean(x, axis=-1, keepdims=True)
    return c * xp.rsqrt(xp.var(x, axis=-1, keepdims=True) + 1e-5) * w


def product(x, w):
    """Return what follows from a matrix product."""
    return xp.tanh(x @ w)


def attention(q, k, v):
    """Return values weighed by a softmax of scores."""
    wide = "float32" if q.dtype.name == "float16" else q.dtype.name
    scores = xp.matmul(q.astype(wide), k.astype(wide).mT) * 0.25
    return xp.matmul(softmax(scores).astype(v.dtype), v)


def layer(x, w, v):
    """Return what several launches compute, one of them attention."""
    heads = xp.permute_dims(xp.reshape(x @ w, (*x.shape[:2], 4, 8)), (0, 2, 1, 3))
    found = xp.permute_dims(attention(heads, heads, heads), (0, 2, 1, 3))
    return softmax(xp.tanh(xp.reshape(found, x.shape) @ v) + x)


def chain(x, w):
    """Return the product of a product, which are two launches."""
    return xp.tanh(x @ w) @ w


def scores(x, y):
    """Return the products of all rows by each other, weighed."""
    return x @ x.mT * y


def pooled(x):
    """Return the mean over words of what depends on how many there are."""
    return xp.sum(x, axis=1) / x.shape[1], xp.mean(x * x, axis=(0, 1))


def total(x):
    """Return the sum of all elements."""
    return xp.sum(x)


def first_of_all(x):
    """Return where the largest element is."""
    return xp.argmax(xp.reshape(x, (-1,)))


def known(x, y):
    """Return the mean of those that are not all too small."""
    x, y = (xp.reshape(each, (-1,)) for each in (x, y))
    return xp.sum(x) / xp.sum((y > -9).astype("float32"))


ROWS = {
    "pointwise": (lambda x, y: xp.tanh(x) * y, [(N, 33), (N, 33)]),
    "softmax": (softmax, [(N, 33)]),
    "normal": (normal, [(N, 48), (48,)]),
    "product": (product, [(N, 48), (48, 64)]),
    "batch of products": (product, [(N, 24, 48), (48, 64)]),
    "attention": (attention, [(N, 4, 24, 16)] * 3),
    "elements of both": (lambda x, y: x * y + 1, [(N, S), (N, S)]),
    "softmax of words": (softmax, [(N, S)]),
    "normal words": (normal, [(48, S), (S,)]),
    "column means": (lambda x: xp.mean(x, axis=0), [(N, 50)]),
    "total": (total, [(N, S, 5)]),
    "depth of a product": (product, [(N, S), (S, 48)]),
    "attention of words": (attention, [(N, 4, S, 16)] * 3),
    "softmax across words": (
        lambda x: softmax((x + xp.sum(x, axis=1, keepdims=True)).mT).mT,
        [(N, 2, S, 17)],
    ),
    "total of even rows": (total, [(N, 2, S, 12)]),
    "stacked": (lambda x: xp.stack([x, xp.tanh(x)]), [(N, S, 12)]),
    "gradient of one of many": (
        grad(lambda x: xp.sum(xp.tanh(xp.take(x, xp.asarray([0]), axis=1)))),
        [(N, 48, S)],
    ),
    "gradient of stacked": (
        grad(lambda x: xp.sum(xp.tanh(xp.stack([x, xp.tanh(x)])))),
        [(N, S, 3)],
    ),
    "gradient of a product": (
        grad(lambda w, x: xp.sum(xp.tanh(x @ w))),
        [(24, 16), (N, 24)],
    ),
    "turned": (lambda x: xp.flip(x, axis=1), [(N, 2, S, 48)]),
    "scores": (scores, [(N, S, 32), (N, S, S)]),
    "running totals": (lambda x: xp.cumulative_sum(x, axis=-1), [(N, S)]),
    "layer": (layer, [(N, S, 32), (32, 32), (32, 32)]),
    "pooled": (pooled, [(N, S, 24)]),
    "places": (
        lambda x, w, p: p[: x.shape[1]] + x @ w,
        [(N, S, 16), (16, 16), (80, 16)],
    ),
    "mean of known": (known, [(N, 7), (N, 7)]),
}


def shapes(spec, point):
    """Return shapes at extents of `N` and `S`."""
    at = dict(zip((N, S), point, strict=True))
    return [tuple([at.get(n, n) for n in shape]) for shape in spec]


def made(function, spec):
    """Return a kernel whose arrays have these extents."""
    plain = kernel(function)
    names = plain.signature.arrays
    axes = [[n if isinstance(n, Extent) else None for n in shape] for shape in spec]
    return runtime(plain, **dict(zip(names, axes, strict=True)))


def drawn(spec, point, dtype="float32"):
    """Return arrays of these shapes, the same ones each time."""
    rng = np.random.default_rng(point)
    every = [rng.standard_normal(shape) for shape in shapes(spec, point)]
    return [
        (a / math.sqrt(a.shape[-2] if a.ndim == 2 else 1)).astype(dtype) for a in every
    ]


@contextmanager
def proving():
    """Hold what is proved of kernels: no array's last element may be missing."""
    proofs = []

    def proved(*given):
        prove(*given)  # of what it refuses no kernel is made
        proofs.append(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "prove", proved)
        yield
    assert proofs
    for common, least, most in proofs:
        for array, count in common.arrays.items():
            if array.startswith("input "):  # as bulk copies are told of it
                continue
            less = {**common.arrays, array: replace(count, constant=count.constant - 1)}
            with pytest.raises(Unsupported, match=f"may lie beside {array}"):
                prove(replace(common, arrays=less), least, most)


@pytest.mark.parametrize("name", ROWS)
def test_one_code_serves_all_extents_on_a_cpu(name):
    """The results are the oracle's, and nothing is written beside them."""
    function, spec = ROWS[name]
    ranged, codes = made(function, spec), {}
    for point in AT:
        arrays = drawn(spec, point)
        program = ranged.program(*arrays)
        placed = Placed(aligned=True)
        out = [
            placed.copy(np.full(o.value.shape, np.nan, "float32"))
            for o in program.outputs
        ]
        ranged(*[placed.copy(array) for array in arrays], out=out)
        placed.check()
        wide = evaluate(program, [array.astype(float) for array in arrays])
        for found, expected in zip(out, wide.values(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
        built = ranged.build(*arrays)
        own = tuple(id(part.code.function) for part in built.parts or (built,))
        codes.setdefault(tuple(n == 1 for n in point), set()).add(own)
    assert all(len(each) == 1 for each in codes.values())


def on_gpu(ranged, arrays):
    """Return one launch for all extents, as text and as loops, of a GPU."""
    specs = [(array.shape, dtypes.of(array.dtype)) for array in arrays]
    asked = Request(ranged.program(*specs), None, parse("cuda:sm_90a"))
    (part,) = ranged.ranged(specs, asked).parts
    return part


GPU = {
    **{name: (*ROWS[name], "float32", AT[:3]) for name in [*ROWS][:5]},
    **{
        name: (*ROWS[name], "float32", AT[:3])
        for name in ("softmax of words", "normal words", "column means")
    },
    "tiles": (lambda x, w: x @ w, [(N, 64), (64, 64)], "float16", [(1, 1), (40, 1)]),
    "tiles of windows": (
        lambda x, w: xp.conv2d(x, w, padding=1),
        [(N, 4, 7, 7), (16, 4, 3, 3)],
        "float16",
        [(1, 1), (3, 1)],
    ),
    "tiles of attention": (
        attention,
        [(N, 2, S, 64)] * 3,
        "float16",
        [(1, 1), (2, 64), (1, 65), (3, 70)],
    ),
}


@pytest.mark.parametrize("name", GPU)
def test_one_code_serves_all_extents_on_a_gpu(name):
    """A simulated GPU raises AssertionError for what is read or written beside arrays."""
    function, spec, dtype, at = GPU[name]
    ranged = made(function, spec)
    with proving():
        part = on_gpu(ranged, drawn(spec, (4, 16), dtype))
    tiles = part.built.schedule.multiplies_tiles
    assert tiles == ("tiles" in name or "product" in name)
    for point in at:
        arrays = drawn(spec, point, dtype)
        program = ranged.program(*arrays)
        own = dict(zip((N, S), point, strict=True))
        slots = part.at(tuple([own[each] for each in ranged.extents])).slots
        own = replace(part.lowered, slots=slots)
        several = tiles or own.kernel.cluster > 1
        found = (simt_tiles if several else simt).launch(program, own, arrays)["out"]
        expected = evaluate(program, [array.astype(float) for array in arrays])["out"]
        near = 2e-3 if dtype == "float16" else 1e-4
        np.testing.assert_allclose(found.astype(float), expected, rtol=near, atol=near)


def test_products_of_rows_and_columns_that_calls_know_are_of_blocks():
    """Registers have blocks of sums at all extents, one memory what these multiply."""
    ranged = made(*ROWS["scores"])
    arrays = drawn(ROWS["scores"][1], (3, 5))
    specs = [(array.shape, dtypes.of(array.dtype)) for array in arrays]
    asked = Request(ranged.program(*specs), None, parse("cpu"))
    (part,) = ranged.ranged(specs, asked).parts
    assert part.built.schedule.multiplies_blocks


def test_programs_of_several_launches_are_built_for_gpus():
    """One cubin for all extents: their numbers are the slots', and the workspace's place."""
    ranged = made(*ROWS["layer"])
    specs = [
        [(shape, dtypes.of("float16")) for shape in shapes(ROWS["layer"][1], point)]
        for point in ((40, 70), (3, 7))
    ]
    with proving():
        most, few = [ranged.build(*each, target="cuda:sm_90a") for each in specs]
    assert isinstance(few, Artifact)
    assert few.text == most.text
    assert few.plan is most.plan
    assert [part.blocks for part in few.parts] < [part.blocks for part in most.parts]


@pytest.mark.parametrize(("target", "most"), [("cuda:sm_90a", 64), ("cpu", 4096)])
def test_all_elements_are_reduced_axis_by_axis_at_extents_of_calls(target, most):
    """Chunks of all would be as many as divide these: of axes they are as many."""
    rows = Extent("rows", most)
    ranged = made(lambda x: xp.mean(x * x), [(rows, S, 32)])
    built = ranged.build(((4, 8, 32), "float32"), target=target)
    assert len(built.parts) == 3


def test_launches_side_by_side_have_arrays_of_their_own():
    """Three equal products are one launch of three copies, as they are without extents."""

    def three(x, a, b, c):
        q, k, v = (xp.reshape(x @ w, (4, -1, 2, 64)) for w in (a, b, c))
        return attention(*[xp.permute_dims(each, (0, 2, 1, 3)) for each in (q, k, v)])

    specs = [((4, 64, 128), "float16"), *[((128, 128), "float16")] * 3]
    batch = made(
        lambda x, a, b, c: three(xp.reshape(x, (-1, 128)), a, b, c),
        [(4, Extent("words", 128), 128), *[(128, 128)] * 3],
    )
    found = batch.build(*specs, target="cuda:sm_90a")
    static = kernel(batch.function).build(*specs, target="cuda:sm_90a")
    arrays = [
        [(slot.kind, slot.name) for slot in built.slots if slot.kind != "extent"]
        for built in (found, static)
    ]
    assert arrays[0] == arrays[1]
    assert found.parts[0].grid[1] == static.parts[0].grid[1] == 3


def test_calls_share_one_workspace():
    """That of the bounds, whatever extents a call has."""
    spec = [(N, S, 48), (48, 48)]
    ranged = made(chain, spec)
    for point in AT[1:]:
        ranged(*drawn(spec, point))
    (spare,) = ranged._spare.values()
    assert len(spare) == 1
    static = kernel(chain).build(*drawn(spec, (40, 70)))
    assert spare[0].nbytes == static.plan.size > 0


def test_nothing_is_what_a_build_for_nothing_gives():
    """Extents of 0 are built by themselves."""
    ranged = made(softmax, [(N, 33)])
    assert ranged(np.zeros((0, 33), "float32")).shape == (0, 33)
    assert made(total, [(N, 33)])(np.zeros((0, 33), "float32")) == 0


def test_gradients_of_variances_have_shares_of_extents():
    """Of 2 over how many there are, rounded, and of -1; of two of them that is 1."""
    slope = grad(lambda x: xp.sum(xp.tanh(xp.var(x, axis=1)) - xp.mean(x, axis=1)))
    ranged = made(slope, [(N, S)])
    for point in AT:
        x = drawn([(N, S)], point)
        expected = evaluate(ranged.program(*x), [x[0].astype(float)])["out"]
        np.testing.assert_allclose(ranged(*x), expected, rtol=1e-4, atol=1e-6)


def test_variances_of_float64_are_of_any_number_of_values():
    """Whose share that rounding may lose, so many times 2**-53, is no fraction of 1."""
    ranged = made(lambda x: xp.var(x, axis=-1), [(N, S)])
    for point in AT:
        (x,) = drawn([(N, S)], point, "float64")
        np.testing.assert_allclose(ranged(x), np.var(x, -1), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("correction", [1, 3])
def test_variances_of_samples_are_of_any_number_of_values(correction):
    """Of few, where one more or less changes the program, too."""
    ranged = made(lambda x: xp.var(x, axis=1, correction=correction), [(N, S)])
    for point in [(3, 5), (7, 17), (40, 70), (1, 1), (31, 2), (5, 4), (2, 3)]:
        (x,) = drawn([(N, S)], point)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            expected = np.var(x.astype(float), 1, ddof=correction)
        expected[np.isinf(expected)] = np.nan
        np.testing.assert_allclose(ranged(x), expected, rtol=1e-5)


def test_wrong_extents_are_told():
    """Each in one sentence, before anything is launched."""
    ranged = made(lambda x, y: x + y, [(N, 8), (N, 8)])
    x = np.zeros((41, 8), "float32")
    with pytest.raises(KernelError, match="x has rows 41, at most 40 were declared"):
        ranged(x, x)
    with pytest.raises(KernelError, match="y has rows 3, but x has 4"):
        ranged(x[:4], x[:3])
    with pytest.raises(KernelError, match="expected at least 2 axes"):
        ranged(np.float32(1).reshape(()), x)
    with pytest.raises(KernelError, match="expected one of its arrays"):
        runtime(kernel(softmax), y=(N,))
    with pytest.raises(KernelError, match="an axis of x is 8, expected an Extent"):
        runtime(kernel(softmax), x=(N, 8))
    with pytest.raises(KernelError, match="expected one bound"):
        runtime(kernel(product), x=(N,), w=(Extent("rows", 3),))
    with pytest.raises(KernelError, match="expected 1 or more"):
        Extent("none", 0)


def test_what_differs_by_more_than_numbers_is_refused():
    """Every second row are as many where there is one more."""
    x = np.ones((4, 8), "float32")
    with pytest.raises(Unsupported, match="no kernel serves both extents"):
        made(lambda x: x[::2] * 2.0, [(N, 8)])(x)
    with pytest.raises(KernelError, match="cannot reshape"):
        made(lambda x: xp.reshape(x, (4, 8)), [(N, 8)])(x)
    spec = ((4, 8, 32), "float32")
    many = made(first_of_all, [(N, S, 32)]).build(spec, target="cuda:sm_90a")
    assert "first_of_all: no kernel serves both extents" in many.error
    assert "follow from extents by no formula" in many.error


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2.0 ** -x.shape[0],
        lambda x: xp.tanh(x) if x.shape[0] < 9 else xp.cos(x),
        lambda x: x[:, ::-1] * 2 if x.shape[0] in {1, 4} else x * 2,
        lambda x: xp.sum(x, axis=0) if x.shape[0] == 1 else xp.sum(x * x, axis=0),
        lambda x: xp.tanh(x[:8]),
    ],
)
def test_what_is_another_program_at_a_calls_extents_is_built_by_itself(function):
    """As where it asks for an extent; the code is made of others."""
    ranged = made(function, [(Extent("rows", 400), 8)])
    for rows in (1, 4, 8, 9, 300, 400):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
        expected = evaluate(ranged.program(x), [x.astype(float)])["out"]
        np.testing.assert_allclose(ranged(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("most", [35, 64, 200])
def test_programs_that_are_none_beyond_the_bound_are_built_up_to_it(most):
    """As those whose arrays have a row for each word that there may be."""
    words = Extent("words", most)
    ranged = made(lambda x, w: xp.tanh(x) + w[: x.shape[0]], [(words, 12), (most, 12)])
    for count in (1, 2, most // 3, most - 1, most):
        rng = np.random.default_rng(count)
        x, w = (rng.standard_normal((n, 12)).astype("float32") for n in (count, most))
        np.testing.assert_allclose(ranged(x, w), np.tanh(x) + w[:count], atol=1e-6)


def test_a_bound_with_too_few_extents_below_it_is_refused_where_a_table_ends():
    """With what is missing beyond it."""
    ranged = made(lambda x, w: x + w[: x.shape[0]], [(Extent("words", 20), 3), (20, 3)])
    with pytest.raises(KernelError, match=r"at extents up to \(\d+,\): .*\(20, 3\)"):
        ranged(np.ones((4, 3), "float32"), np.ones((20, 3), "float32"))


def test_kernels_of_extents_pickle():
    """As the kernel that they are of."""
    from steelyard_kernels.library.softmax import softmax as whole

    x = np.random.default_rng(0).standard_normal((5, 9)).astype("float32")
    ranged = runtime(whole, x=(N,))
    again = pickle.loads(pickle.dumps(ranged))
    assert (again(x) == ranged(x)).all()


@pytest.mark.parametrize("bounds", [(1,), (8,), (512,), (32, 512)])
def test_points_are_in_parts_of_no_size(bounds):
    """Even and odd ones, from the bounds to more than twice as many."""
    at = points(bounds, 10)
    for own, bound in zip(zip(*at, strict=True), bounds, strict=True):
        assert {n % 4 for n in own} == {2, 3}
        assert all(n % 3 for n in own)
        assert min(own) >= bound
        assert max(own) > 2 * min(own)
    assert all(len(set(point)) == len(point) for point in at)


@pytest.mark.parametrize("bounds", [(35,), (64,), (512,), (8, 64), (64, 77)])
def test_points_lie_below_bounds_that_have_so_many(bounds):
    """At least below one of several."""
    least = [min(own) for own in zip(*points(bounds, 0), strict=True)]
    most = [max(own) for own in zip(*points(bounds, 0), strict=True)]
    assert min(least) >= 5
    below = [top <= bound for top, bound in zip(most, bounds, strict=True)]
    assert below == [bound >= 35 for bound in bounds]


def test_numbers_are_formulas_of_extents():
    """Rounded up in parts; not where two formulas agree at the points alone."""
    at = points((32, 512), 10)
    fitter = Fitter(at, (32, 512))
    for formula in (
        lambda n, s: 12 * n * s * s + 7,
        lambda n, s: n * -(-s // 64),
        lambda n, s: s - s // 16 * 16 if s % 16 else 16,
        lambda n, s: 96 * s,
    ):
        found = fitter.fit([formula(*point) for point in at])
        for n, s in ((1, 1), (3, 64), (32, 512), (17, 65), (5, 48)):
            assert found.at((n, s)) == formula(n, s)
    assert not fitter.length([n // 2 for n, _ in at])
    assert fitter.fit([2**n for n, _ in at]) is None


def test_arrays_of_an_element_less_are_refused():
    """Kernels reach their arrays' last elements, and are proved to go no further."""
    function, spec = ROWS["softmax of words"]
    with proving():
        made(function, spec).build(*drawn(spec, (4, 16)))


def test_bounds_hold_for_all_integers():
    """Of random polynomials, against all values that their atoms may have."""
    found = 0
    for seed in range(300):
        draw, ranges = random.Random(seed), Ranges()
        atoms = [
            ranges.between(constant(draw.randint(0, 3)), constant(draw.randint(3, 6)))
        ]
        atoms.append(
            ranges.between(constant(0), plus(atoms[0], constant(2)), constant(5))
        )
        atoms.append(ranges.atom([(constant(-2),)], [(atoms[0], atoms[1])]))
        poly = constant(draw.randint(-9, 9))
        for _ in range(3):
            term = times(draw.choice(atoms), draw.choice([constant(1), *atoms[:2]]))
            poly = plus(poly, term, draw.randint(-3, 3))
        low, high = (ranges._bounds[0][side][0][0].get((), 0) for side in (0, 1))
        values = [
            sum([n * math.prod([(a, b, c)[k] for k in m]) for m, n in poly.items()])
            for a in range(low, high + 1)
            for b in range(min(a + 2, 5) + 1)
            for c in range(-2, max(a, b) + 1)
        ]
        assert ranges.least(poly) <= min(values)
        assert ranges.most(poly) >= max(values)
        found += ranges.least(poly) == min(values)
    assert found > 100


def test_bounds_hold_where_facts_do():
    """Of quotients, remainders and lesser ones, within facts and after them, in any order."""
    nearer = 0
    for seed in range(150):
        draw, ranges = random.Random(seed), Ranges()
        x, y = (ranges.between(constant(0), constant(n)) for n in (23, 9))
        by, more = draw.randint(2, 5), constant(draw.randint(-3, 3))
        quotient = FOUND["div"](ranges, x, constant(by))
        rest = FOUND["rem"](ranges, plus(x, times(y, constant(by))), constant(by + 1))
        least = FOUND["minimum"](ranges, plus(quotient, more), y)
        further = FOUND["div"](ranges, quotient, constant(2))
        atoms = [x, y, quotient, rest, least, further]
        (shift,) = more.values() or (0,)
        values = [
            (
                a,
                b,
                a // by,
                (a + b * by) % (by + 1),
                min(a // by + shift, b),
                a // by // 2,
            )
            for a in range(24)
            for b in range(10)
        ]

        def drawn(draw=draw, atoms=atoms):
            factors = [draw.randint(-4, 4) * draw.randint(0, 1) for _ in atoms]
            if draw.random() < 0.3:
                factors = [-1, *[0] * (len(atoms) - 1)]  # which bounds its quotients
            first, found = draw.randint(-12, 24), {}
            for factor, atom in zip(factors, atoms, strict=True):
                found = plus(found, atom, factor)
            return plus(found, constant(first)), (first, factors)

        table = np.array(values)
        polys, facts = [drawn() for _ in range(4)], [drawn() for _ in range(2)]
        held = [first + table @ factors >= 0 for _, (first, factors) in facts]
        for count in (0, 1, 2, 1, 0, 2):  # anew each time
            there = np.logical_and.reduce([np.full(len(table), True), *held[:count]])
            with ranges.assuming([fact for fact, _ in facts[:count]]):
                for poly, (first, factors) in polys:
                    every, found = first + table @ factors, ranges.least(poly)
                    assert found <= min(every[there], default=math.inf)
                    assert ranges.holds(poly) == (found >= 0)
                    nearer += bool(count) and found > every.min()
            poly, (first, factors) = polys[0]
            assert ranges.least(poly) <= min(first + table @ factors)
    assert nearer > 150


def test_a_second_process_finds_the_build(tmp_path):
    """On disk, as any other: nothing is lowered again."""
    script = """
import sys
import numpy as np
from steelyard_kernels import array as xp, kernel
from steelyard_kernels.extents import Extent, runtime

@kernel
def f(x, w):
    return xp.mean(xp.tanh(x @ w), axis=-1)

ranged = runtime(f, x=(Extent("n", 40),))
x = np.ones((int(sys.argv[1]), 24), "float32")
assert np.allclose(ranged(x, x[:1].repeat(24, 0)), np.tanh(24), atol=1e-5)
print("steelyard_kernels.extents.build" in sys.modules)
"""
    at = tmp_path / "script.py"
    at.write_text(script)
    env = {**os.environ, "STEELYARD_CACHE": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, at, rows],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for rows in ("5", "7")
    ]
    assert said == ["True", "False"]

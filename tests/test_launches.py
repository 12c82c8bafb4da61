"""Programs of several launches: which ones, their memory, and their results."""

import importlib
import sys
import threading
from pathlib import Path

import numpy as np
import plans
import pytest
import simt
import simt_tiles
from msgspec.structs import replace

from steelyard_kernels import array as xp
from steelyard_kernels import dtypes
from steelyard_kernels.artifact import Artifact
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import kernel
from steelyard_kernels.grad import grad, value_and_grad, vjp
from steelyard_kernels.library import bert, mlp
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.plan import partition, repeats
from steelyard_kernels.plan.cuts import PADDED
from steelyard_kernels.plan.products import widened
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Place
from steelyard_kernels.schedule.strategies import heuristic
from steelyard_kernels.targets import device, machine, parse
from steelyard_kernels.toolchains import toolchain

EXTENTS = (8, 24, 33)
H200 = device(parse("cuda:sm_90a"))


def plan_of(made, *specs, target="cpu"):
    """Return the launches of a kernel for arrays of these shapes."""
    program = simplify(made.program(*specs))
    return partition.partition(program, device(parse(target)))


def softmax(x):
    """Return the softmax of rows."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def norm(x):
    """Return rows of mean 0 and variance 1."""
    c = x - xp.mean(x, axis=-1, keepdims=True)
    return c * xp.rsqrt(xp.mean(c * c, axis=-1, keepdims=True) + 1e-5)


def totals(x):
    """Return running totals of rows."""
    return xp.cumulative_sum(x, axis=-1) * 0.1


def sums(x):
    """Return what is over the sums of columns."""
    return x - 0.1 * xp.sum(x, axis=0)


ONE = (softmax, norm, sums, totals, xp.tanh, lambda x: x * 0.5, xp.matrix_transpose)


class Graph:
    """A random program of products, rows and elementwise operations."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        draw = self.rng.choice
        self.shapes = [tuple(map(int, draw(EXTENTS, 2))) for _ in range(3)]
        self.steps = [
            (int(self.rng.integers(0, 10)), self.rng.random(2)) for _ in range(9)
        ]
        self.updates = self.rng.random() < 0.4

    def __call__(self, values):
        """Return the outputs by name, of arrays of the kernel or their shapes."""
        values = list(values)
        for kind, (one, other) in self.steps:
            a = values[int(one * len(values))]
            b = values[int(other * len(values))]
            if kind < len(ONE):
                values.append(ONE[kind](a))
            elif a.shape[1] == b.shape[0]:
                values.append((a @ b) * 0.2)
            elif a.shape == b.shape:
                values.append(a + b)
            else:
                values.append(xp.maximum(a, 0.0))
        found = {"last": values[-1], "inner": values[-3], "first": values[4]}
        if self.updates:
            like = [v for v in values[3:] if v.shape == values[0].shape]
            found |= {"x": like[-1]} if like else {}
        return found

    def kernel(self):
        """Return the kernel of three arrays."""

        def graph(x, y, z):
            return self((x, y, z))

        return kernel(graph)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_agree_with_the_oracle(seed, apart, monkeypatch):
    """Whether one kernel is preferred where there is one, or always several."""
    if apart:
        monkeypatch.setattr(partition, "MOST_NESTED", 0)
    graph = Graph(seed)
    made = graph.kernel()
    arrays = [
        graph.rng.standard_normal(shape).astype("float32") for shape in graph.shapes
    ]
    expected = evaluate(made.program(*arrays), arrays)
    found = made(*[array.copy() for array in arrays])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(60))
def test_no_live_buffers_overlap(seed, monkeypatch):
    """Each is written once and read later; what is read is what was written."""
    monkeypatch.setattr(partition, "MOST_NESTED", 0)
    graph = Graph(seed)
    plan = plan_of(graph.kernel(), *[(shape, "float32") for shape in graph.shapes])
    if plan is None:
        return
    written = {}
    for number, launch in enumerate(plan.launches):
        for home in launch.reads:
            if isinstance(home, int):
                own = plan.buffers[home]
                assert written[home] < number <= own.last
        for home in launch.writes:
            if isinstance(home, int):
                over = home in launch.reads  # which nothing later reads of before
                assert over or plan.buffers[home].first == number
                written[home] = number
    for one in plan.buffers:
        for other in plan.buffers:
            if one is not other and one.first <= other.last and other.first <= one.last:
                apart = one.offset + one.nbytes <= other.offset
                assert apart or other.offset + other.nbytes <= one.offset
    assert plan.bound <= plan.size


@kernel
def residual(x, w, v, u):
    """Add products to what they are of, three times, with something between."""
    for each in (w, v, u):
        x = norm(x + xp.tanh(x @ each) @ each)
    return x


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_are_written_over_what_nobody_reads_again(target, dtype):
    """Where they are computed element by element, or row by row."""
    plan = plan_of(residual, *[((80, 80), dtype)] * 4, target=target)
    over = [set(launch.writes) & set(launch.reads) for launch in plan.launches]
    assert sum(map(bool, over)) >= 3
    for number, homes in enumerate(over):
        for launch in plan.launches[number:][:1]:
            part, reads = launch.program, launch.reads
            updates = [o.updates for o in part.outputs]
            for home, into in zip(launch.writes, updates, strict=True):
                assert (home in homes) == (into is not None)
                assert into is None or reads[into] == home
    assert plan.size == plan.bound <= 3 * 80 * 80 * (4 if dtype == "float32" else 2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("n", [16, 33, 97])
def test_what_was_overwritten_is_read_before(n, dtype):
    """Results are the oracle's, again and again; on a GPU's threads too."""
    rng = np.random.default_rng(n)
    arrays = [(rng.standard_normal((n, n)) / n**0.5).astype(dtype) for _ in range(4)]
    program = residual.program(*arrays)
    (want,) = evaluate(program, arrays).values()
    for _ in range(3):
        near(np.asarray(residual(*[array.copy() for array in arrays])), want)
    if n < 97 and dtype != "float64":
        near(on_threads(simplify(program), arrays)["out"], want)


@pytest.mark.parametrize("seed", range(50))
def test_workspaces_are_near_their_bound(seed):
    """Random lives take at most half again as many bytes as are live at once."""
    rng = np.random.default_rng(seed)
    lives = []
    for first in range(40):
        last = first + int(rng.integers(0, 10))
        lives.append(repeats.Life(int(rng.integers(1, 64)) << 10, first, last))
    offsets, size = repeats.placed(lives)
    assert all(offset % repeats.ALIGNMENT == 0 for offset in offsets)
    assert repeats.bound(lives) <= size <= 1.5 * repeats.bound(lives)


@kernel
def two_layers(x, w, v):
    """Multiply twice, with something between."""
    return norm(xp.tanh(x @ w) @ v + x)


def test_a_plan_says_why():
    """Every launch has a reason, and every buffer's reader."""
    plan = plan_of(two_layers, *[((64, 64), "float32")] * 3)
    assert plan.text().splitlines() == [
        "0 [0] = product 64x64 of depth 64 with tanh: saves 32.8 kB (x, w)",
        "1 [1] = product 64x64 of depth 64 with add: saves 32.8 kB ([0], v, x)",
        "2 out = rows: mean with subtract, multiply, add, rsqrt: saves 1.0 kB ([1])",
        "[0]: 16384 bytes at 0, launches 0 to 1; a product reads it",
        "[1]: 16384 bytes at 16384, launches 1 to 2; mean over axes (1,) reads it",
        "workspace: 32768 bytes, at least 32768 are live at once",
        "launches 4 6 14",
    ]
    again = plan_of(two_layers, *[((64, 64), "float32")] * 3)
    assert hash(plan.key) == hash(again.key)
    assert plan.key != plan_of(two_layers, *[((32, 32), "float32")] * 3).key


def test_a_program_of_one_kernel_is_no_plan():
    """Its build is what it was: with a schedule of its own."""

    @kernel
    def one(x, w):
        return xp.tanh(x @ w)

    built = one.build(((64, 32), "float32"), ((32, 16), "float32"))
    assert built.plan is None
    assert built.parts == ()


@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        (lambda x, w: xp.maximum(x, 0) @ w, "512,512 512,512"),
        (lambda x, w: ((x + 1) @ w) + (x + 1), "512,768 768,768"),
        (lambda x, y, w: xp.concat([x, y], axis=1) @ w, "512,384 512,384 768,768"),
        (lambda q, k, v: softmax(q @ k.mT) @ v, " ".join(["4,512,512"] * 3)),
    ],
    ids=["maximum", "read twice", "joined", "long heads"],
)
def test_no_join_costs_a_gpus_product_its_tiles(made, shapes):
    """A kernel of threads may be: it is predicted, and launches apart are quicker."""
    specs = [(tuple(map(int, each.split(","))), "float16") for each in shapes.split()]
    plan = plan_of(kernel(made), *specs, target="cuda:sm_90a")
    chosen = [heuristic(each.program, H200) for each in plan.launches]
    products = [each for each in plan.launches if each.reason.startswith("product")]
    assert sum(each.multiplies_tiles for each in chosen) == len(products) > 0


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
@pytest.mark.parametrize(
    ("kinds", "read"),
    [
        ("float16 bfloat16", "float32"),  # as tf32
        ("bfloat16 float8_e4m3fn", "bfloat16"),
        ("float8_e5m2 float16", "float16"),
        ("float8_e5m2 bfloat16", "bfloat16"),
        ("float8_e4m3fn float8_e5m2", ""),
        ("float32 float16", None),  # threads do: tensor cores have no dtype for both
        ("float64 bfloat16", None),
    ],
)
def test_factors_of_two_dtypes_are_multiplied_as_those_of_one(kinds, read, target):
    """It has all numbers of both: no value changes, and a cast is a launch."""
    one, other = map(dtypes.of, kinds.split())
    wide = "float64" if one is dtypes.float64 else "float32"
    made = kernel(lambda x, w: x.astype(wide) @ w.astype(wide))
    gpu = device(parse(target))
    if read == "" and not gpu.multiplies(one):
        read = "float16"
    specs = ((512, 640), one), ((640, 512), other)
    plan = plan_of(made, *specs, target=target)
    launch = plan.launches[-1].program if plan else simplify(made.program(*specs))
    stored = {node.dtype.name for node in launch.inputs}
    schedule = heuristic(launch, gpu)
    assert schedule.multiplies_tiles
    assert (Place.FMA in schedule.places) == (read is None)
    assert stored == ({read} if read else {one.name, other.name})
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-7, 3e-39, 440, 1 / 3])
    x, w = special[:, None].astype(one.numpy), special[None].astype(other.numpy)
    small = simplify(made.program(x, w))
    (expected,) = evaluate(small, [x, w]).values()
    (seen,) = evaluate(widened(small, gpu), [x, w]).values()
    np.testing.assert_array_equal(seen, expected)


def test_what_is_computed_in_its_readers_launch_is_not_stored():
    """Of a gradient's matrices some are read by the launch alone that computes them."""

    def weighed(q, k, v):
        scores = (q @ k.T).astype("float32") * 0.125
        return softmax(scores).astype("float16") @ v

    def pulled(q, k, v, g):
        y, back = vjp(weighed, q, k, v)
        return (y, *back(g))

    plan = plan_of(kernel(pulled), *[((256, 64), "float16")] * 4, target="cuda:sm_80")
    read = {home for launch in plan.launches for home in launch.reads}
    stored = {home for launch in plan.launches for home in launch.writes}
    assert {home for home in stored - read if isinstance(home, int)} == set()


def test_outputs_of_several_shapes_are_several_launches():
    """Small ones are held in registers by one kernel, large ones were refused."""

    @kernel
    def both(x):
        return x * 2.0, xp.sum(x, axis=0)

    x = np.ones((300, 500), "float32")
    doubled, total = both(x)
    assert (doubled == 2).all()
    assert (total == 300).all()


def test_inputs_are_overwritten_when_all_have_read_them():
    """Two that are exchanged are copied at the end."""

    @kernel
    def swap(x, y, w):
        return {"x": y, "y": x, "z": xp.sum(x @ w, axis=0)}

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 200, 300)).astype("float32")
    w = np.eye(300, dtype="float32")
    before = x.copy(), y.copy()
    found = swap(x, y, w)
    assert (x == before[1]).all()
    assert (y == before[0]).all()
    np.testing.assert_allclose(found["z"], before[0].sum(axis=0), rtol=1e-4, atol=1e-4)


def test_bound_programs_are_work():
    """They are launched and timed natively, and say what each launch is."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((64, 64)).astype("float32") for _ in range(3)]
    work = two_layers.bind(*arrays)
    work.ready()
    start, stop = work.window(3)
    assert stop > start
    expected = evaluate(two_layers.program(*arrays), arrays)["out"]
    np.testing.assert_allclose(work.outputs["out"], expected, rtol=1e-4, atol=1e-4)
    facts = work.facts()
    assert [each["strategy"] for each in facts["launches"]] == [
        *("loops", "loops", "rows")
    ]
    assert facts["operations"] == sum(e["operations"] for e in facts["launches"])
    assert facts["workspace_bytes"] == 32768
    work.build("cold")


def test_calls_at_once_have_workspaces_of_their_own():
    """Threads launch without the interpreter's lock."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((96, 96)).astype("float32") for _ in range(3)]
    fresh = kernel(two_layers.function)
    expected = fresh(*arrays)
    assert (fresh(*arrays) == expected).all()
    assert fresh.__call__ != fresh._called  # native code recognises it
    arrays[0] = arrays[0] + 1
    expected = evaluate(fresh.program(*arrays), arrays)["out"]
    np.testing.assert_allclose(fresh(*arrays), expected, rtol=1e-4, atol=1e-4)
    expected = fresh(*arrays)
    wrong = []

    def call():
        wrong.extend(1 for _ in range(50) if (fresh(*arrays) != expected).any())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("given", [{}, {"s": 0.5}])
def test_a_scalar_of_several_launches_is_given_to_all(given):
    """Where native code recognises the call too: one launch had the default's."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((48, 48)) for _ in range(2))

    def scaled(x, w, *, s=2.0):
        return xp.tanh(x @ w * s) @ w * s

    def asked(x, w, *, s: float):
        return scaled(x, w, s=s)

    for made in (kernel(scaled), kernel(asked)):
        numbers = given or ({"s": 2.0} if made.name == "asked" else {})
        s = numbers.get("s", 2.0)
        want = np.tanh(x @ w * s) @ w * s
        for _ in range(4):
            np.testing.assert_allclose(made(x, w, **numbers), want, rtol=1e-10)
        assert made.__call__ != made._called


def on_simt(program, aligned, arrays, scalars):
    """Run one launch of a plan by a simulated GPU's threads."""
    program, on = simplify(program), device(parse("cuda:sm_90a"))
    schedule = heuristic(program, on, aligned=aligned)
    lowered = strategies.lower(program, schedule, on, aligned=aligned)
    tiles = lowered.kernel.shared or lowered.kernel.cluster > 1
    run = simt_tiles if tiles else simt
    return run.launch(program, lowered, arrays, scalars, aligned=aligned)


def normalized(axis):
    """Return what has no mean and a variance of one along some axes."""

    def function(x):
        apart = x - xp.mean(x, axis=axis, keepdims=True)
        return apart / xp.sqrt(xp.var(x, axis=axis, keepdims=True) + 1e-5)

    return function


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: xp.sum(xp.sum(x, axis=-1)), [(40, 70, 32)]),
        (lambda x: xp.mean(xp.log(xp.sum(xp.exp(x), axis=-1))), [(40, 70, 32)]),
        (lambda x: xp.max(xp.max(x, axis=1, keepdims=True), axis=-1), [(8, 90, 512)]),
        (lambda x, y: xp.var(x * y), [(384, 1024), (384, 1)]),
        (lambda x: xp.min(x * x, axis=(1, 3)), [(3, 8, 3, 2048)]),
        (
            lambda x, y: xp.concat([xp.max(x, axis=1), y]) - xp.max(x),
            [(48, 500), (48,)],
        ),
        # Each block had the sum of all, and a softmax of 131,072 would have taken 20 ms.
        (lambda x: x / xp.sqrt(xp.sum(x * x)), [(17408,)]),
        (normalized((0, 2, 3)), [(8, 32, 14, 14)]),  # by a thread a channel 0.8 ms
        (normalized(0), [(65536, 2)]),
        # One block multiplied all of it, which took 1.3 ms of 16 times as many.
        (lambda a, b: a.T @ b, [(4096, 32), (4096, 24)]),
        # Rows that read what lies along a part of them were a thread's.
        (lambda x, mask: xp.max(x + mask, axis=-1), [(3, 40, 512), (3, 1, 512)]),
        (lambda a, b: xp.sum(abs(a[:, None] - b), axis=-1), [(16, 700), (9, 700)]),
    ],
)
def test_what_is_reduced_is_no_walk_of_a_few_threads(function, shapes):
    """A mean of 2800 maxima of 32 took one of an H200's threads 1 ms."""
    on, specs = device(parse("cuda:sm_90a")), [(shape, "float32") for shape in shapes]
    built = kernel(function).build(*specs, target="cuda:sm_90a")
    for part in built.parts or (built,):
        taken = strategies.best(simplify(part.program), on)[1].total
        assert taken < 20e3  # ns; launches take 5 us each
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, "float32") for shape in shapes]
    program = simplify(kernel(function).program(*arrays))
    plan = partition.partition(program, on)
    seen = (
        plans.launched(program, plan, arrays, {}, on_simt)
        if plan
        else on_simt(program, True, arrays, {})
    )
    for name, expected in evaluate(program, arrays).items():
        np.testing.assert_allclose(seen[name], expected, rtol=1e-4, atol=1e-6)


def test_what_all_elements_need_is_reduced_before_they_are_walked_by_vectors():
    """In one kernel a CPU's loop over elements was of one at a time: 5 to 9 times as long."""
    x = np.random.default_rng(0).standard_normal((32, 1000)).astype("float32")
    made = kernel(normalized((0, 1)))
    *_, last = made.build(x).parts
    assert "v1." not in last.schedule.label
    np.testing.assert_allclose(made(x), (x - x.mean()) / x.std(), atol=1e-4)


def test_lines_that_one_kernel_has_no_memory_for_are_those_of_several():
    """Orders of sums, beside an update: a block keeps the lines of one of them."""

    @kernel
    def ordered(x, y):
        total = xp.cumulative_sum(x, axis=0)
        return {"x": total + y, "sorted": xp.sort(total), "y": 2 * y}

    specs = [((4000,), "float32")] * 2
    plan = plan_of(ordered, *specs, target="cuda:sm_90a")
    assert len(plan.launches) == 3
    for launch in plan.launches:
        heuristic(simplify(launch.program), device(parse("cuda:sm_90a")))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(4000).astype("float32") for _ in range(2))
    expected = evaluate(ordered.program(x, y), [x.copy(), y.copy()])
    found = ordered(x, y)
    for name, each in expected.items():
        np.testing.assert_allclose(found[name], each, rtol=1e-4, atol=1e-3)


def test_equal_launches_are_built_once():
    """Twelve layers have as many kernels as three.

    The first adds to an input, which stays; others to what they then overwrite, as they
    normalize, but for the last, whose result has a place of its own.
    """

    @kernel
    def deep(x, w, v):
        for _ in range(12):
            x = norm(xp.tanh(x @ w) @ v + x)
        return x

    built = deep.build(*[((64, 64), "float32")] * 3)
    assert len(built.parts) == 36
    assert len({part.code_hash for part in built.parts}) == 5


@pytest.mark.parametrize("shown", [16, 2])
def test_twelve_layers_of_attention_are_launches(shown):
    """One nest of all would ask for ever more places; small outputs as others."""

    @kernel
    def layers(x):
        for _ in range(12):
            x = norm(x + softmax(x @ xp.matrix_transpose(x)) @ x)
        return x[:, :shown]

    x = np.random.default_rng(0).standard_normal((40, 16))
    assert len({part.code_hash for part in layers.build(x).parts}) <= 6
    (expected,) = evaluate(layers.program(x), [x]).values()
    np.testing.assert_allclose(layers(x), expected, rtol=1e-9, atol=1e-9)


def test_what_layers_have_in_common_is_decided_once():
    """A layer more takes few calls, of which each takes as long everywhere."""

    def count(layers):
        shapes = (8, 128, 768), *bert.shapes_of(768) * layers
        made = bert.bert(layers).program(*[(shape, "float16") for shape in shapes])
        program, calls = simplify(made), []
        sys.setprofile(lambda _frame, event, _: calls.append(event))
        try:
            assert len(partition.partition(program, H200).launches) == 7 * layers
        finally:
            sys.setprofile(None)
        return calls.count("call")

    assert count(6) - count(3) < 3 * 20_000


def test_an_axis_without_a_name_is_refused():
    """A program that would walk more than 52 is several launches."""

    @kernel
    def every(x):
        return sum(xp.sum(x[:k]) for k in range(2, 62))

    x = np.arange(64.0)
    with pytest.raises(Unsupported, match=r"walk 60 axes, and has 52.*without a sched"):
        nest_of(every.program(x))
    assert len(every.build(x).parts) == len(every.bind(x).built.parts) == 60
    told = every.explain(x)
    assert "59 out = " in told
    assert told.count("best predicted of") == 60
    assert every(x) == sum(x[:k].sum() for k in range(2, 62))
    expected = x + every(x)
    kernel(lambda x: {"x": x + every(x)})(x)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_long_reductions_are_of_chunks_and_of_their_results(op, dtype):
    """Two launches, alike in every run; halves are added up in float32."""
    if op == "mean" and dtype == "int32":
        return

    @kernel
    def reduced(x):
        return getattr(xp, op)(x, axis=None)

    rng = np.random.default_rng(0)
    scale = 0.01 if dtype == "float16" else 1.0  # whose largest is 65504
    x = ((rng.standard_normal((1500, 1000)) * 10 + 1) * scale).astype(dtype)
    built = reduced.build(x)
    assert [len(part.program.inputs) for part in built.parts] == [1, 1]
    expected = getattr(np, op)(x.astype("int64" if dtype == "int32" else "float64"))
    found = reduced(x)
    within = 1e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(np.float64(found), expected, rtol=within)
    assert found == reduced(x)


def normalised(x, v, w):
    """Return a loss of two layers behind one another, with its gradients."""

    def loss(x, v, w):
        x = norm(x + x @ v @ w)
        return xp.mean(norm(x + x @ v @ w) * x)

    value, found = value_and_grad(loss, (0, 1, 2))(x, v, w)
    return (value, *found)


def test_gradients_of_one_norm_after_another_have_an_order():
    """No launch waits for one that waits for it, where both need the same sums."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((24, 24), (24, 33), (33, 24))]
    made = kernel(normalised)
    assert len(made.build(*arrays).parts) > 4
    expected = evaluate(made.program(*arrays), arrays)
    for found, value in zip(made(*arrays), expected.values(), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-12)


def test_small_products_of_several_shapes_are_launches():
    """Registers could hold the values, but took seconds to build, or were too few."""

    @kernel
    def both(x, y):
        return x @ y, y @ x, xp.sum(x @ y, axis=0)

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((17, 19)), rng.standard_normal((19, 17))
    built = both.build(x, y)
    assert {part.strategy for part in built.parts} == {"loops"}
    for found, expected in zip(both(x, y), (x @ y, y @ x, (x @ y).sum(0)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def rotated(y, s):
    """Return places turned in pairs."""
    half = y.shape[-1] // 2
    other = xp.concat([-y[:, half:], y[:, :half]], axis=-1)
    return y * s + other * (1 - s)


def shifted(y, s):
    """Return what rows add to those before."""
    before = xp.concat([xp.zeros((1, y.shape[1]), y.dtype), y], axis=0)[:-1]
    return (y - before) * s


def gated(y, s):
    """Return half of the columns times the others."""
    a, b = y[:, : y.shape[1] // 2], y[:, y.shape[1] // 2 :]
    return a * b + s[: a.shape[1]]


@pytest.mark.parametrize("function", [rotated, shifted, gated])
def test_a_product_that_is_read_at_several_places_is_multiplied_once(function):
    """One kernel would multiply it for each place, in no blocks of registers or tiles."""
    made = kernel(lambda x, w, s: function(x @ w, s))
    shapes = (128, 256), (256, 256), (256,)
    for target in ("cpu", "cuda:sm_90a"):
        plan = plan_of(made, *[(n, "float32") for n in shapes], target=target)
        assert plan.launches[0].reason == "product 128x256 of depth 256"
    x, w, s = (np.random.default_rng(7).standard_normal(n, np.float32) for n in shapes)
    y = x.astype(float) @ w
    half = y.shape[-1] // 2
    want = {
        rotated: y * s + np.concatenate([-y[:, half:], y[:, :half]], -1) * (1 - s),
        shifted: np.diff(y, axis=0, prepend=0) * s,
        gated: y[:, :half] * y[:, half:] + s[:half],
    }[function]
    np.testing.assert_allclose(made(x, w, s), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 1])
def test_steps_of_which_a_stack_is_made_are_computed_once(axis):
    """One kernel would compute all steps at each place; of few it is quicker."""

    def steps(x, w):
        state, found = xp.zeros_like(x[:, 0]), []
        for place in range(x.shape[1]):
            state = xp.exp(-xp.abs(state * w)) + x[:, place]
            found.append(state)
        return xp.stack(found, axis=axis)

    assert plan_of(kernel(steps), ((4, 3, 64), "float32"), ((64,), "float32")) is None
    x, w = np.random.default_rng(3).random((4, 20, 64), np.float32), np.ones(64, "f")
    made = kernel(steps)
    assert any(PADDED in buffer.reason for buffer in plan_of(made, x, w).buffers)
    state = np.zeros((4, 64))
    for place in range(20):
        state = np.exp(-np.abs(state)) + x[:, place]
        np.testing.assert_allclose(made(x, w).take(place, axis), state, rtol=1e-5)


def test_many_small_values_are_launches():
    """One text of all of them would take seconds; of a few it is quicker."""

    def launches(n):
        shapes = (n, n), (n, n + 1), (n + 1, n)
        return kernel(normalised).build(*[(s, "float32") for s in shapes]).parts

    assert not launches(4)
    assert len(launches(9)) > 4


@pytest.mark.parametrize(
    "views",
    [
        lambda v: (v[1:], v),
        lambda v: (v[1:] * 2, v * 3),
        lambda v: (xp.diff(v, axis=0), v),
        lambda v: (v[:, None] * v, v),
    ],
)
def test_what_needs_one_reduction_in_several_shapes_is_launches(views):
    """One kernel has one shape, and registers do not hold what is reduced."""
    x = np.random.default_rng(5).standard_normal((32, 30, 17))
    made = kernel(lambda x: views(xp.sum(x, axis=1)))
    expected = evaluate(made.program(x), [x]).values()
    for found, wanted in zip(made(x), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def decayed(rows):
    """Return a loop's carry and what it had before each row."""
    return xp.scan(lambda c, row: (0.5 * c + row, c), rows[0] * 0.0, rows)


LOOPS = {
    "beside what registers cannot hold": lambda x: (decayed(x[:9])[0], x * 2.0),
    "behind a sum": lambda x: xp.fori_loop(
        0, 3, lambda i, c: 0.5 * c + xp.sum(x, axis=0), x[0]
    ),
    "of rows in order": lambda x: decayed(xp.sort(x, axis=0)),
    "whose rows are multiplied": lambda x: decayed(x)[1] @ x,
    "behind another's rows in order": lambda x: decayed(xp.sort(decayed(x)[1], axis=0))[
        0
    ],
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_a_launch_where_registers_do_not_hold_the_rest(name):
    """One kernel would hold every value but rows of arrays: that was refused."""
    made, x = kernel(LOOPS[name]), np.random.default_rng(3).standard_normal((70, 70))
    assert len(made.build(x).parts) > 1
    found = made(x)
    expected = evaluate(made.program(x), [x]).values()
    every = found if isinstance(found, tuple) else (found,)
    for seen, wanted in zip(every, expected, strict=True):
        np.testing.assert_allclose(seen, wanted, rtol=1e-10, atol=1e-10)


def test_a_running_sum_may_be_multiplied_beside_what_it_is_joined_to():
    """Registers hold a launch of two shapes, which was predicted as a walk."""

    @kernel
    def joined(v, w):
        c = xp.cumulative_sum(v)
        return v @ c, xp.concat([c, w])

    v, w = np.arange(4.0), np.ones(12)
    expected = evaluate(joined.program(v, w), [v, w]).values()
    for found, wanted in zip(joined(v, w), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_sum_of_everything_beside_places_of_columns_may_be_a_kernel_on_a_gpu():
    """It varies with no axis, and is no weighted sum; two launches take half as long."""

    @kernel
    def both(x):
        return xp.argmin(x, axis=0, keepdims=True), xp.sum(x)

    x = np.random.default_rng(1).integers(-9, 9, (8, 5))
    program, gpu = simplify(both.program(x)), device(parse("cuda:sm_90a"))
    assert len(partition.partition(program, gpu).launches) == 2
    lowered = strategies.lower(program, strategies.heuristic(program, gpu), gpu)
    seen = simt.launch(program, lowered, [x])
    np.testing.assert_array_equal(seen["out0"], x.argmin(0)[None])
    assert seen["out1"] == x.sum()


def test_a_loop_beside_small_values_is_one_kernel():
    """No launch is needed: what is held is little."""
    assert plan_of(kernel(decayed), ((700, 30), "float64")) is None


def test_an_input_that_others_read_is_overwritten_by_a_copy():
    """One kernel would read elements that it has written: that was refused."""

    @kernel
    def turned(x):
        return {"x": xp.matrix_transpose(x) + 1.0}

    x = np.random.default_rng(0).standard_normal((150, 150))
    expected = x.T + 1.0
    assert len(turned.build(x).parts) == 2
    turned(x)
    assert (x == expected).all()


def long_totals(x):
    """Return a running total that no core should walk alone."""
    return xp.cumulative_sum(x)


def long_gradient(x):
    """Return one that runs from the end on."""
    return grad(lambda x: xp.sum(xp.cumulative_sum(x) * 2.0))(x)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (long_totals, "float32"),
        (long_totals, "float16"),
        (long_totals, "int32"),
        (long_gradient, "float64"),
    ],
)
def test_a_long_running_total_is_walked_in_chunks(function, dtype):
    """Their totals, the running total of these, and the chunks behind it."""
    made = kernel(function)
    x = np.random.default_rng(3).integers(-2, 3, 3 << 16).astype(dtype)
    several = replace(machine(), threads=4)
    plan = partition.partition(simplify(made.program(x)), several)
    assert len(plan.launches) == 3
    (want,) = evaluate(made.program(x), [x]).values()
    np.testing.assert_allclose(np.asarray(made(x), float), want, 1e-15)
    assert isinstance(made.build(x, target="cuda:sm_90a"), Artifact)
    found = on_threads(simplify(made.program(x)), [x])["out"].reshape(x.shape)
    np.testing.assert_allclose(np.asarray(found, float), want, 1e-15)


def on_threads(program, arrays, plan=None):
    """Run the launches of a GPU by threads, the last block first; return values by home.

    What each stores is that of the oracle on the same arrays.
    """
    gpu = device(parse("cuda:sm_90a"))
    values = {node.name: x for node, x in zip(program.inputs, arrays, strict=True)}
    for launch in (plan or partition.partition(program, gpu)).launches:
        part, schedule = launch.program, strategies.heuristic(launch.program, gpu)
        made = strategies.lower(part, schedule, gpu)
        run = simt_tiles if schedule.multiplies_tiles else simt
        for reads, writes in own_arrays(launch):
            given = zip(part.inputs, reads, strict=True)
            arrays = [values[home].reshape(each.shape) for each, home in given]
            found = run.launch(part, made, arrays)
            for name, want in evaluate(part, arrays).items():
                near(found[name], want)
            values |= zip(writes, found.values(), strict=True)
    return values


def own_arrays(launch):
    """Yield what each copy of a launch reads and writes."""
    inputs, outputs = len(launch.program.inputs), len(launch.program.outputs)
    for copy in range(launch.program.copies):
        yield (
            launch.reads[copy * inputs :][:inputs],
            launch.writes[copy * outputs :][:outputs],
        )


def near(found, want):
    """Hold values of a program of halves: sums of many may cancel."""
    within = 2.0**-6 * np.sqrt(np.mean(np.square(want, dtype=float))) + 1e-30
    np.testing.assert_allclose(np.asarray(found, float), want, 2.0**-6, within)


@pytest.fixture
def models(monkeypatch):
    """Give the suite that has them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    return importlib.import_module("suites.models")


def layer_step(models, shape, target="cuda:sm_90a"):
    """Return a training step of a layer of BERT's, in halves, and its launches."""
    width = shape[-1]
    weights = models.shapes_of(width)
    specs = [(s, "float16") for s in [shape, shape, *weights]]
    specs += [(s, "float32") for s in weights * 2]
    made = models.bert_step(1)
    return simplify(made.program(*specs)), plan_of(made, *specs, target=target)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_of_twelve_layers_agrees_with_the_reference_of_its_own_input(
    models, dtype
):
    """In one program, which an error of any layer goes through to the end."""
    shape, names = (2, 7, 96), bert.weights_of(12)

    def layers(x, *weights):
        every = [x]
        for first in range(0, len(weights), 16):
            every.append(bert._layer(every[-1], weights[first : first + 16]))
        return tuple(every[1:])

    rng = np.random.default_rng(0)
    weights = [
        (models._spread(size) * rng.standard_normal(size)).astype(dtype)
        for size in bert.shapes_of(96) * 12
    ]
    x = rng.standard_normal(shape).astype(dtype)
    found = bert._kernel(layers, "layers", ["x", *names])(x, *weights)
    within = models._within(dtype, 96)
    for first, y in zip(range(0, len(weights), 16), found, strict=True):
        own = [np.asarray(w, float) for w in (x, *weights[first : first + 16])]
        np.testing.assert_allclose(y, models.layer(*own), within, within)
        x = y


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_a_step_of_training_multiplies_on_tensor_cores(models, target):
    """Its texts are short: NVRTC takes seconds a launch, and minutes for 300 kB.

    The depth of a weight's gradient is two axes that are walked as one, and factors that
    are computed lie in memory as halves.
    """
    _, plan = layer_step(models, (8, 128, 768), target)
    gpu, others = device(parse(target)), []
    assert len(plan.launches) <= 31
    for launch in plan.launches:
        schedule = heuristic(launch.program, gpu)
        if "product" in launch.reason and not schedule.multiplies_tiles:
            others.append(launch.reason)
        lowered = strategies.lower(launch.program, schedule, gpu)
        assert len(toolchain(parse(target)).emit(lowered.kernel)) < 170_000
    assert not others


def test_a_step_of_training_on_threads(models):
    """Every launch gives what the oracle does, and what is updated is updated in place."""
    program, plan = layer_step(models, (2, 16, 192))
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(1e-4, 1e-3, node.shape)
        if node.name.startswith("v_")
        else rng.standard_normal(node.shape) * 0.1
        for node in program.inputs
    ]
    given = [
        x.astype(n.dtype.numpy) for x, n in zip(arrays, program.inputs, strict=True)
    ]
    values = on_threads(program, given)
    products = [each for each in plan.launches if "product" in each.reason]
    assert sum(each.program.copies for each in products) == 21
    for name, want in evaluate(program, given).items():
        near(values[name], want)


@pytest.mark.parametrize(
    "shapes", [((5, 0), (0, 17), (17, 0)), ((0, 4), (4, 0), (0, 3))]
)
def test_buffers_of_no_bytes_are_a_workspace_too(shapes):
    """Of products of no depth, or of no rows."""
    x, w, v = (np.ones(shape, "float32") for shape in shapes)

    @kernel
    def two(x, w, v):
        return xp.tanh(x @ w) @ v

    np.testing.assert_array_equal(two(x, w, v), np.tanh(x @ w) @ v)


@pytest.mark.parametrize("shape", [(24, 8), (3, 4), (64, 64), (1, 7), (7, 1)])
def test_columns_are_reduced_within_a_walk_of_everything(shape):
    """Not along the axis of rows, which that walk opens outside of the columns'."""
    x = np.random.default_rng(0).standard_normal(shape)

    @kernel
    def centred(x):
        y = x + xp.max(x, axis=0)
        return y - xp.mean(y)

    y = x + x.max(axis=0)
    np.testing.assert_allclose(centred(x), y - y.mean(), 1e-12, 1e-12)


@pytest.mark.parametrize(("shape", "axis"), [((3, 0), 1), ((0, 3), 0), ((0, 0), 0)])
def test_lines_of_no_elements_are_in_order(shape, axis):
    """As NumPy's are: there is nothing to take."""

    @kernel
    def ordered(x):
        return (
            xp.sort(x, axis=axis),
            xp.argsort(x, axis=axis),
            *xp.topk(x, 0, axis=axis),
        )

    for found, dtype in zip(
        ordered(np.ones(shape, "float32")), ("f4", "i8") * 2, strict=True
    ):
        assert (found.shape, found.dtype) == (shape, dtype)


def test_what_was_joined_is_joined_again():
    """A step of training, whose values pass through several launches that become one."""
    halves = [((64, 256), "float16"), ((64,), "int64")]
    weights = [((256, 512), "float16"), ((512,), "float16")]
    last = [((512, 10), "float16"), ((10,), "float16")]
    plan = plan_of(mlp.step, *halves, *weights, *last, target="cuda:sm_90a")
    assert len(plan.launches) == 9

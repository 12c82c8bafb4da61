"""Loops whose turns are launches: which are, what they share, and how they are called."""

import json
import threading
from itertools import cycle
from pathlib import Path

import corpus_repeats
import numpy as np
import plans
import pytest
import shell
from click.testing import CliRunner
from corpus import compare
from random_draws import FAMILIES, LINES, Draw, generated
from test_corpus import of_plan

from steelyard.commands import main
from steelyard_kernels import array as xp
from steelyard_kernels import library
from steelyard_kernels.errors import KernelError, Unsupported
from steelyard_kernels.expression.expr import loops
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.extents.kernel import Extent, runtime
from steelyard_kernels.function import kernel
from steelyard_kernels.library import examples
from steelyard_kernels.plan import partition
from steelyard_kernels.plan.alternatives import alternatives
from steelyard_kernels.plan.launches import Walk
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.schedule import Part
from steelyard_kernels.targets import device, machine, parse

F32 = "float32"
TARGETS = ("cpu", "cuda:sm_90a")


def plan_of(made, *specs, target="cpu"):
    """Return the launches of a kernel for arrays of these shapes; None for one kernel."""
    program = simplify(made.program(*specs))
    if strategies.is_one(program):
        return None
    return partition.partition(program, device(parse(target)))


@kernel
def recurrent(x, w):
    """Stack every state of a network."""
    return xp.scan(lambda c, row: (xp.tanh(c @ w + row), c), xp.zeros_like(x[0]), x)


@kernel
def moved(x, *, n=3):
    """Move elements on, so often as a call says."""
    return xp.fori_loop(0, n, lambda i, c: xp.roll(c, 1) * 0.5 + 1.0, x)


@kernel
def grown(x):
    """Change each element by itself."""
    return xp.fori_loop(0, 5, lambda i, c: xp.sin(c) + 1.0, x)


def drawn(*shapes):
    """Return arrays of small numbers."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) * 0.1).astype(F32) for s in shapes]


# Programs that registers would hold, as launches all the same.


def looped(seed):
    """Say whether a random program is of a family that has loops or chains."""
    draw = Draw(seed)
    (family,) = draw.rng.choices(list(FAMILIES), FAMILIES.values())
    return seed % LINES and family in {"loops", "chains"}


@pytest.fixture
def launched(monkeypatch):
    """Have no loop held in registers."""
    one = strategies.is_one

    def is_one(program):
        return not (program.chains or loops(program.nodes)) and one(program)

    monkeypatch.setattr(strategies, "is_one", is_one)
    monkeypatch.setattr(partition, "is_one", is_one)
    monkeypatch.setattr(partition, "in_registers", lambda *_: float("inf"))


@pytest.mark.parametrize("target", ["cpu", "simt"])
@pytest.mark.parametrize("part", range(4))
def test_random_loops_are_right_as_launches(launched, part, target):
    """Held against intervals that share no code with the compiler."""
    seeds = [seed for seed in range(1800, 2500) if looped(seed)]
    apart = 0
    for seed in seeds[part :: 4 if target == "cpu" else 12]:
        drawn = generated(seed)
        arrays, made = drawn.arrays(), kernel(drawn.function())
        program = simplify(made.program(*arrays))
        if target == "cpu":
            work = made.bind(*[array.copy() for array in arrays])
            work.launch()
            seen, plan = work.outputs, work.built.plan
        else:
            plan = partition.partition(program, GPUS["sm_90a"])
            if plan is None:
                continue
            seen = plans.launched(program, plan, arrays, {}, of_plan)
        apart += plan is not None
        for name, near in drawn.expected(arrays).items():
            compare(f"{seed} {name}", near, seen[name])
    assert apart > 5


# Which loops are launches.


@pytest.mark.parametrize("target", TARGETS)
def test_small_loops_are_one_kernel(target):
    """A perceptron of 12 units over 8000 iterations, and of larger states than that."""
    program = library.noisy_mlp.program(*examples.specs("noisy_mlp"))
    assert strategies.is_one(simplify(program))
    for batch, units in ((1, 8), (1, 32), (2, 16)):
        specs = ((1000, batch, units), F32), ((units, units), F32)
        assert plan_of(recurrent, *specs, target=target) is None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        (recurrent, [(20, 32, 64), (64, 64)]),  # whose text took seconds
        (recurrent, [(20, 1, 128), (128, 128)]),
        (moved, [(4096,)]),  # and this one a minute and a half on a GPU
        (moved, [(5000,)]),
        (grown, [(5000,)]),
    ],
)
def test_large_loops_are_launches(target, made, shapes):
    """Where registers do not hold their values, or text of these is long."""
    plan = plan_of(made, *[(shape, F32) for shape in shapes], target=target)
    assert plan.repeats
    assert len(plan.launches) <= 3


def test_what_is_much_text_is_stored_before_a_loop_in_registers():
    """Where an expression of many operations, read again and again, is before it."""

    @kernel
    def searched(x):
        found = xp.searchsorted(xp.sort(x), x).astype(x.dtype)
        for _ in range(20):
            found = found * found * 0.5 + found
        return xp.fori_loop(0, 3, lambda i, c: c * 0.5 + found, x)

    plan = plan_of(searched, ((machine().lanes(4) * 125,), F32))
    assert not plan.repeats
    assert not any(
        loops(launch.program.nodes) and len(launch.program.nodes) > 20
        for launch in plan.launches
    )


def test_an_order_behind_a_loop_is_right():
    """Registers do not hold all that its elements are compared with."""
    x = np.random.default_rng(0).standard_normal(70).astype(F32)
    made = kernel(lambda x: xp.argsort(xp.fori_loop(0, 2, lambda i, c: c * 0.5, x)))
    np.testing.assert_array_equal(made(x), np.argsort(x, kind="stable"))


def test_a_plan_says_what_is_repeated():
    """How often, and where each array is in turn."""
    plan = plan_of(recurrent, ((7, 2, 128), F32), ((128, 128), F32))
    assert plan.text().splitlines() == [
        "0 [0] = elementwise ()",
        "1 out1 by 1024 bytes = elementwise ([0] or out0)",
        (
            "2 out0 or [0] = product 2x128 of depth 128 with add, tanh: saves 2.0 kB "
            "([0] or out0, w, x by 1024 bytes)"
        ),
        "[0]: 1024 bytes at 0, launches 0 to 2; a loop carries it",
        "repeat 0: launches 1 to 2, 7 times",
        "workspace: 1024 bytes, at least 1024 are live at once",
        "launches 3 4+5",
    ]
    assert [plan.times(number) for number in range(3)] == [1, 7, 7]
    assert hash(plan.key) != hash(
        plan_of(recurrent, ((8, 2, 128), F32), ((128, 128), F32)).key
    )


@pytest.mark.parametrize(
    ("row", "target"),
    [
        pytest.param(row, target, id=f"{target}-{row.name}")
        for row, target in zip(corpus_repeats.REPEATS, cycle(TARGETS), strict=False)
    ],
)
def test_repeated_launches_given_as_data_are_the_same_plan(row, target):
    """What is repeated is found again, for chains too."""
    program = simplify(row.cases[0].program())
    machine = device(parse(target))
    plan = partition.partition(program, machine)
    again = partition.given(program, machine, plan.parts)
    assert (again.key, again.text()) == (plan.key, plan.text())
    (only,) = alternatives(program, machine, lambda *_: None)
    assert only[0] == plan.schedule


def test_another_partition_of_loops_is_refused():
    """What turns read, and where they begin, is stored by the one that is found."""
    program = simplify(recurrent.program(((7, 2, 128), F32), ((128, 128), F32)))
    with pytest.raises(KernelError, match=r"it has loops, and launches .* alone"):
        partition.given(program, device(parse("cpu")), [Part((3, 4, 5))])


def test_a_carry_is_overwritten_where_each_element_is_its_own():
    """It takes no memory but the result's; what is moved takes as much again."""
    plan = plan_of(grown, ((5000,), F32))
    assert plan.size == 0
    assert plan.launches[-1].reads == plan.launches[-1].writes == ("out",)
    plan = plan_of(moved, ((5000,), F32))
    assert plan.size == 20000
    assert {type(home) for home in plan.launches[1].reads} == {Walk}
    assert plan.repeats[1].odd == 0  # the result lies elsewhere then


def test_what_no_turn_changes_is_computed_once():
    """But for numbers of places, which are less than reading them again."""

    @kernel
    def hoisted(x, w):
        return xp.fori_loop(0, 4, lambda i, c: c @ xp.exp(w) * 0.01, x)

    plan = plan_of(hoisted, ((2, 80), F32), ((80, 80), F32))
    inside = plan.launches[plan.repeats[0].first :]
    assert not any("exp" in launch.reason for launch in inside)
    assert plan_of(moved, ((5000,), F32)).repeats[0].first == 1


def test_rows_that_begin_anywhere_are_read_by_code_that_lets_them():
    """Others are as aligned as their array."""
    for units, aligned in ((80, True), (81, False)):
        plan = plan_of(recurrent, ((5, 1, units), F32), ((units, units), F32))
        (rows,) = [e for e in plan.launches if "x" in {_name(h) for h in e.reads}]
        assert rows.aligned is aligned
        x, w = drawn((5, 1, units), (units, units))
        expected = evaluate(recurrent.program(x, w), [x, w]).values()
        for seen, want in zip(recurrent(x, w), expected, strict=True):
            np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-5)


def _name(home):
    while isinstance(home, Walk):
        home = home.home
    return home


def test_a_loop_that_changes_nothing_is_no_launch():
    """Its carries are what they began as, whatever the condition."""

    @kernel
    def kept(x):
        return xp.while_loop(lambda c: xp.max(c) > 0, lambda c: c, x + 1.0, 9)

    x = np.zeros(5000, F32)
    plan = plan_of(kept, x)
    assert (len(plan.launches), plan.repeats) == (1, ())
    assert (kept(x) == 1).all()


# How they are called.


def test_each_call_has_its_own_number_of_turns():
    """Recognised by native code or not; the state of one call is nothing to another."""
    (x,) = drawn((5000,))
    for n in (3, 3, 3, 0, 1, -2, 4, 3):
        expected = evaluate(moved.program(x), [x], {"n": n})["out"]
        np.testing.assert_allclose(moved(x, n=n), expected, rtol=1e-5)
    assert moved.__call__ != moved._called


def test_calls_at_once_count_turns_of_their_own():
    """Threads launch without the interpreter's lock."""
    x, w = drawn((9, 4, 128), (128, 128))
    made = kernel(recurrent.function)
    expected = [made(x, w) for _ in range(3)][-1]
    wrong = []

    def call():
        for _ in range(30):
            pairs = zip(made(x, w), expected, strict=True)
            wrong.extend([1 for seen, want in pairs if (seen != want).any()])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bound_loops_are_work():
    """They run any number of times, and count what all turns do."""
    x, w = drawn((6, 2, 128), (128, 128))
    work = recurrent.bind(x, w)
    start, stop = work.window(3)
    assert stop > start
    expected = evaluate(recurrent.program(x, w), [x, w])
    for name, want in expected.items():
        np.testing.assert_allclose(work.outputs[name], want, rtol=1e-4, atol=1e-5)
    facts = work.facts()
    assert [each.get("times", 1) for each in facts["launches"]] == [1, 6, 6]
    assert facts["operations"] >= 6 * 2 * 2 * 128 * 128
    other = recurrent.bind(x.copy(), w.copy())
    work.outputs["out0"][...] = np.nan
    work.of_binary(other.binary()).launch()
    np.testing.assert_allclose(work.outputs["out0"], expected["out0"], 1e-4, 1e-5)
    work.build("cold")


def test_constants_of_a_loop_are_stored_once():
    """What is made of weights alone, and no turn changes."""

    @kernel
    def bounded(x, w):
        return recurrent.function(x, xp.maximum(w, -0.05))

    x, w = drawn((4, 2, 128), (128, 128))
    every = bounded.bind(x, w)
    fewer = bounded.bind(x, w, constant=("w",))
    every.launch()
    fewer.launch()
    assert len(fewer.built.parts) < len(every.built.parts)
    for name, want in every.outputs.items():
        np.testing.assert_array_equal(fewer.outputs[name], want)


def test_extents_of_a_loop_of_launches_are_known():
    """Steps and lengths are numbers of the plan: one sentence says what to do."""
    shorter = runtime(recurrent, x=(Extent("steps", 40),))
    with pytest.raises(Unsupported, match="its loops are repeated launches; declare"):
        shorter(*drawn((5, 1, 128), (128, 128)))


def test_a_schedule_is_of_one_kernel():
    """Which such a loop is not: the sentence says which values are too large."""
    x, w = drawn((5, 1, 128), (128, 128))
    schedule = recurrent.candidates(x[:, :, :8].copy(), w[:8, :8].copy())[0]
    with pytest.raises(KernelError, match="takes registers for 16384 elements"):
        recurrent.bind(x, w, schedule=schedule)


def test_compile_shows_what_is_repeated(tmp_path):
    """How often each launch runs, and as a line of the plan."""
    path = tmp_path / "kernels.py"
    path.write_text(
        "from steelyard_kernels import array as xp, kernel\n\n\n"
        "@kernel\ndef moved(x):\n"
        "    return xp.fori_loop(0, 9, lambda i, c: xp.roll(c, 1) * 0.5, x)\n"
    )
    told = "compile", f"{path}:moved", "--arg", "5000", "--target", "cpu"
    shown = CliRunner().invoke(main, [*told, "--print-after-all"]).stdout
    assert "repeat 0: launches 1 to 1, 9 times" in shown
    (row,) = json.loads(CliRunner().invoke(main, [*told, "--json"]).stdout)["rows"]
    assert [each.get("times", 1) for each in row["facts"]["launches"]] == [1, 9]


def test_a_second_process_finds_the_plan_and_does_nothing_again(tmp_path):
    """Its builds are read from disk, and its turns are those of the first."""
    script = (
        "import numpy as np\n"
        "from test_repeats import recurrent, drawn\n"
        "from steelyard_kernels.expression.simplify import simplify\n"
        "x, w = drawn((6, 2, 128), (128, 128))\n"
        "built = recurrent.build(x, w)\n"
        "print([name for name, _ in built.phases if name in ('partition', 'emit')])\n"
        "print(float(np.sum(recurrent(x, w)[1])), built.order)\n"
    )
    env = {"STEELYARD_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    first, second = (
        shell.python("-c", script, check=True, **env).stdout for _ in range(2)
    )
    assert first.splitlines()[0] == "['partition', 'emit']"
    assert second.splitlines()[0] == "[]"
    assert first.splitlines()[1:] == second.splitlines()[1:]


def test_repeated_launches_are_bound_to_copies():
    """Of arrays that are not contiguous: copied once, before all turns and after them."""
    every, out = np.arange(8200, dtype="float32"), np.zeros((4100, 2), "float32")
    work = moved.bind(every[::2], out=out[:, 1])
    work.launch()
    work.launch()
    (expected,) = evaluate(moved.program(every[::2]), [every[::2]], {"n": 3}).values()
    np.testing.assert_allclose(out[:, 1], expected)
    assert not out[:, 0].any()

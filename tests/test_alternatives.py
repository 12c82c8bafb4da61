"""Partitions as data: given, a step apart from what is found, and right all the same."""

import numpy as np
import pytest
from msgspec.json import decode, encode
from test_launches import Graph, near, on_threads, residual, two_layers

from steelyard_kernels.artifact import Failure
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.plan import partition
from steelyard_kernels.plan.alternatives import alternatives
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule.schedule import (
    Part,
    Schedule,
    partition_of,
)
from steelyard_kernels.targets import device, parse

CPU, H100 = (device(parse(name)) for name in ("cpu", "cuda:sm_90a"))


def every(program, machine):
    """Return the partitions of a program with how they differ, and those refused."""
    refused = []
    found = alternatives(program, machine, lambda *each: refused.append(each))
    return [(schedule, words) for schedule, _, words in found], refused


@pytest.mark.parametrize("machine", [CPU, H100], ids=["cpu", "sm_90a"])
@pytest.mark.parametrize("seed", range(20))
def test_a_partition_given_as_data_is_the_same_plan(seed, machine):
    """Also read from a label, and from JSON."""
    graph = Graph(seed)
    specs = [(shape, "float32") for shape in graph.shapes]
    program = simplify(graph.kernel().program(*specs))
    found = partition.planned(partition.groups_of(program, machine))
    again = partition.given(program, machine, found.parts)
    assert (again.key, again.text()) == (found.key, found.text())
    plain = decode(encode(found.schedule), type=Schedule)
    assert plain == found.schedule == partition_of(found.schedule.label)


@pytest.mark.parametrize("label", ["launches 8x", "launches 1~2~3", "launches 1+ 2"])
def test_a_label_of_no_places_is_one_sentence(label):
    """Whatever was typed."""
    with pytest.raises(KernelError, match="is no launch, expected places"):
        partition_of(label)


@pytest.mark.parametrize("seed", range(12))
def test_every_alternative_agrees_with_the_oracle(seed):
    """On the CPU, of random graphs with outputs that are inner values, and updates."""
    graph = Graph(seed)
    made = graph.kernel()
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in graph.shapes]
    program = made.program(*arrays)
    expected = evaluate(program, arrays)
    found, refused = every(simplify(program), CPU)
    assert len({schedule for schedule, _ in found}) == len(found)
    assert len(found) + len(refused) > 1
    assert all(why for _, why in refused)
    for schedule, _ in found:
        built = made.build(*arrays, schedule=schedule)
        assert not isinstance(built, Failure), built.error
        assert built.schedule == schedule
        work = made.bind(*[array.copy() for array in arrays], schedule=schedule)
        work.launch()
        for name, value in expected.items():
            np.testing.assert_allclose(work.outputs[name], value, rtol=2e-4, atol=2e-4)


def test_alternatives_on_a_gpus_threads():
    """Values written over others, of halves on tensor cores."""
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal((32, 32)) / 6).astype("float16") for _ in range(4)]
    program = simplify(residual.program(*arrays))
    (want,) = evaluate(program, arrays).values()
    found, _ = every(program, H100)
    assert len(found) > 1
    for schedule, _ in found[:6]:
        plan = partition.given(program, H100, schedule.launches)
        near(on_threads(program, arrays, plan)["out"], want)


def test_equal_launches_change_together():
    """Of three equal layers: what is done for one is for all that it can be done for."""
    program = simplify(residual.program(*[((80, 80), "float32")] * 4))
    found, refused = every(program, CPU)
    counts = {len(schedule.launches) for schedule, _ in (*found, *refused)}
    assert counts == {9, 6, 7}  # the last layer's rows are the output


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((Part((4,)), Part((6,))), "leaves outputs out"),
        ((Part((4,)), Part((4, 14))), "stores values twice"),
        ((Part((99,)), Part((14,))), "beyond 0 to 14"),
        ((Part((6, 14)), Part((4,)), Part(())), "stores values twice, or none"),
        ((Part((6,)), Part((4, 14))), "wait for one another"),
    ],
)
def test_what_is_no_partition_is_one_sentence(parts, said):
    """Of values that are stored twice or never, unknown, or in no order."""
    program = simplify(two_layers.program(*[((64, 64), "float32")] * 3))
    with pytest.raises(KernelError, match=said):
        partition.given(program, CPU, parts)
    chosen = Schedule((), launches=parts)
    built = two_layers.build(*[((64, 64), "float32")] * 3, schedule=chosen)
    assert isinstance(built, Failure)
    assert built.phase == "partition"

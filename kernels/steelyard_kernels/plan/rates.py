"""What launches cost, in nanoseconds: memory against arithmetic, and the hand-over.

It decides one thing: whether a program that one kernel could compute is better as
several. One kernel may walk a reduction again for each index of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from steelyard_kernels import cost
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.nest.axes import Nest, Value
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reads import Reads, reads_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import CACHE_RATE, FORK_JOIN_NS, Machine


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes and operations a nanosecond, of products and of others, and of a launch."""

    memory: float
    products: float
    others: float
    launch: float


def rates_of(device: Machine | Gpu) -> Rates:
    """Return a device's rates, to a factor of two.

    Products take 60 operations a nanosecond of a core and 400,000 of an H200, other
    reductions 8 and 10,000 (this project's suites); a launch on a GPU's stream 2 us.
    """
    if isinstance(device, Gpu):
        return Rates(device.memory_rate, 4e5 if device.wgmma else 1e4, 1e4, 2000.0)
    threads = device.threads
    return Rates(CACHE_RATE * threads, 60.0 * threads, 8.0 * threads, FORK_JOIN_NS)


def predicted(program: Program, rates: Rates) -> float:
    """Return what a launch of a program takes."""
    nest = nest_of(program)
    product = not isinstance(contraction_of(nest), str)
    operations = 2 * sum(_walked(nest).values()) + cost.operations(program)
    rate = rates.products if product else rates.others
    moved = cost.bytes_moved(program) / rates.memory
    return rates.launch + max(moved, operations / rate)


def _walked(nest: Nest) -> dict[int, int]:
    """Return how many values each reduction takes in, by its number.

    One that another reduction's walk needs is walked again for each of its steps.
    """
    reads = reads_of(nest)
    found: dict[int, int] = {}
    opened: dict[int, frozenset[int]] = {}  # the axes around a reduction, at most
    for value in reversed(nest.values):
        if not value.over:
            continue
        inner = [
            user
            for user in nest.values
            if user.over and value in reads.inside([user], user.over)
        ]
        around = [
            opened.get(user.number, user.axes) | frozenset(user.over) for user in inner
        ]
        if _is_outside(nest, reads, value):
            around.append(value.axes)
        opened[value.number] = max(around, key=len, default=value.axes)
        found[value.number] = sum(
            prod([nest.extents[axis] for axis in axes.union(value.over)])
            for axes in around
        )
    return found


def _is_outside(nest: Nest, reads: Reads, value: Value) -> bool:
    """Say whether outputs, or reductions before their walks, need a reduction."""
    users = [user for user in nest.values if user.over and user is not value]
    return any(output.value is value for output in nest.outputs) or not any(
        value in reads.inside([user], user.over) for user in users
    )

"""Whether one kernel can be, and what launches cost in nanoseconds.

Memory against arithmetic, and the hand-over. It decides one thing: whether a program that one kernel could compute is better as
several. One kernel may walk a reduction again for each index of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Final

from steelyard_kernels import cost
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.nest.axes import Nest, one_space, segmented
from steelyard_kernels.nest.contraction import contraction_of
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.nest.reads import reads_of
from steelyard_kernels.plan.cuts import is_product
from steelyard_kernels.schedule.aliasing import updates_in_place
from steelyard_kernels.schedule.attention import attention_of
from steelyard_kernels.schedule.contraction import product_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.model import CACHE_RATE, FORK_JOIN_NS, Machine
from steelyard_kernels.schedule.model_product import model
from steelyard_kernels.schedule.recipes.attention_blocks import attended
from steelyard_kernels.schedule.recipes.contraction import on_gpu
from steelyard_kernels.schedule.schedule import unheard
from steelyard_kernels.schedule.strategies import strategy

# Of rows that are reduced behind a product, by a launch (with its hand-over) and in its
# kernel: of 128 and 192 columns on an H200.
FOLLOWS_NS: Final = 1700.0
REDUCES_NS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes and operations a nanosecond, of products and of others, and of a launch.

    `tensor_cores`: products are those that these multiply.
    """

    memory: float
    products: float
    others: float
    launch: float
    tensor_cores: bool = False


def rates_of(device: Machine | Gpu) -> Rates:
    """Return a device's rates, to a factor of two.

    Products take 60 operations a nanosecond of a core and 40 % of tensor cores' peak, other
    reductions 8 and 10,000 (this project's suites); a launch on a GPU's stream 2 us.
    """
    if isinstance(device, Gpu):
        products = 0.4 * device.product_rate
        return Rates(device.memory_rate, products, 1e4, 2000.0, bool(device.cores))
    threads = device.threads
    return Rates(CACHE_RATE * threads, 60.0 * threads, 8.0 * threads, FORK_JOIN_NS)


def predicted(program: Program, rates: Rates) -> float:
    """Return what a launch of a program takes."""
    nest = nest_of(program)
    of = product_of if rates.tensor_cores else contraction_of
    product = not isinstance(of(nest), str)
    operations = 2 * _walked(nest) * program.copies + cost.operations(program)
    rate = rates.products if product else rates.others
    moved = cost.bytes_moved(program) / rates.memory
    return rates.launch + max(moved, operations / rate)


def is_attention(program: Program, *, gpu: bool) -> bool:
    """Say whether a kernel of two products computes a program as attention."""
    try:
        of = attention_of if gpu else attended
        return not isinstance(of(nest_of(program)), str)
    except KernelError:
        return False


def reduces_rows(program: Program, alone: Program, gpu: Gpu) -> bool:
    """Say whether one kernel had better reduce rows of a product than a launch behind it.

    `alone` is the product without that.
    """
    rates, best = rates_of(gpu), list[float]()
    for each in (program, alone):
        try:
            whole = product_of(nest_of(each)) if one_space(each) else ""
        except KernelError:
            return False
        if isinstance(whole, str) or whole.sums.reduces is (each is alone):
            return False
        nest = whole.nest
        every = on_gpu(nest, gpu, aligned=True, likely=True, refuse=unheard)
        predict = model(nest, gpu)
        best.append(min((predict(one).total for one in every), default=inf))
    behind = FOLLOWS_NS + 2 * cost.bytes_moved(alone) / rates.memory
    return best[0] < inf and best[0] + REDUCES_NS <= best[1] + behind


def _walked(nest: Nest) -> int:
    """Return how many values all reductions take in.

    One that another reduction's walk needs is walked again for each of its steps.
    """
    reads, total = reads_of(nest), 0
    stored = {output.value.number for output in nest.outputs}
    around = {v.number: [v.axes] * (v.number in stored) for v in nest.values}
    for value in reversed([value for value in nest.values if value.over]):
        walks = around[value.number] or [value.axes]
        own = segmented(value)
        total += sum(
            prod([nest.extents[axis] for axis in axes.union(value.over) - own])
            for axes in walks
        )
        opened = max(walks, key=len).union(value.over)
        for each in reads.inside([value], value.over):
            around[each.number].append(opened)
    return total


def is_kernel(program: Program) -> bool:
    """Say whether a program has schedules, of products if it has one."""
    try:
        kind = strategy(program)
        if kind == "carries" or not one_space(program):
            return False
        nest = nest_of(program)
    except KernelError:
        return False
    if not updates_in_place(nest, rows=kind == "rows"):
        return False
    if any(map(is_product, program.nodes)):
        return not isinstance(contraction_of(nest), str)
    return True

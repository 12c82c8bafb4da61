"""Attention for a CPU: queries of a tile, keys of a step, blocks of registers.

    i:core j:r12.stack6.core k:v16.r2.stack2.serial l:v16.r2.stack4.serial m:stack64.serial

A core takes 6 x 12 of the queries along j at a time, and 4 x 32 of the keys along l in each
step. It copies these queries, keys and values to its stack; of 12 queries it multiplies
32 keys at a time, then their weights by 2 x 32 columns of the values along k. Rows of
queries and keys are 64 long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Final

from steelyard_kernels.expression.expr import Apply
from steelyard_kernels.nest.axes import Nest, names_of
from steelyard_kernels.nest.contraction import in_order
from steelyard_kernels.nest.weighing import Weighing, weighing_of
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.blocking import (
    LANES,
    MOST_STACK,
    Blocking,
    Panel,
    Pieces,
    registers_problem,
    scheduled,
)
from steelyard_kernels.schedule.model import LINE, Machine, Prediction
from steelyard_kernels.schedule.model_blocks import (
    BEHIND,
    BLOCK,
    MOVED,
    ROW,
    copy_cycles,
    predicting,
    step_cycles,
)
from steelyard_kernels.schedule.recipes.blocks import fit, part, shapes
from steelyard_kernels.schedule.schedule import Place, Schedule, Sought, legal

# Queries of a tile, about, keys of a step, and how many shapes of blocks: the likely and all.
TALL: Final = (64, 256), (32, 64, 128, 256)
KEYS: Final = (128,), (64, 128, 256)
SHAPES: Final = 1, 4
# Cycles of a vector of scores beside its power, and of a row's two reductions over lanes.
WEIGHT: Final = 6.0
ACROSS: Final = 30.0


class AttentionBlocking(Blocking, frozen=True, eq=False, kw_only=True):
    """The product of weights and values, blocked, with that of queries and keys before.

    `depth` keys are taken in a step; `beside` vectors of their scores are multiplied at
    a time.
    """

    weighing: Weighing
    beside: int

    @property
    def scores(self) -> Blocking:
        """The product of queries and keys, with its tile's keys those of a step."""
        products = self.weighing.products
        return Blocking(
            products,
            self.rows,
            self.lanes,
            self.beside,
            self.down,
            self.depth // (self.lanes * self.beside),
            products.extents[3],
        )

    @property
    def schedule(self) -> Schedule:
        """The schedule that says so."""
        whole, keys = self.weighing.sums, self.scores
        rest = (1, Place.CORE if self.shared else Place.SERIAL)
        vectors, serial = (self.lanes, Place.VECTOR), (1, Place.SERIAL)
        every: list[Pieces] = [
            (whole.outer, (rest,)),
            (whole.rows, ((self.rows, Place.REGISTER), (self.down, Place.STACK), rest)),
            *[
                (
                    axes,
                    (
                        vectors,
                        (each.vectors, Place.REGISTER),
                        (each.over, Place.STACK),
                        serial,
                    ),
                )
                for axes, each in ((whole.columns, self), (whole.depth, keys))
            ],
            (keys.product.depth, ((keys.depth, Place.STACK), serial)),
        ]
        return scheduled(every)

    @property
    def kept(self) -> tuple[Panel, Panel, Panel]:
        """How queries, keys and values lie on the stack."""
        return *self.scores.panels(), self.panels()[1]

    @property
    def pitch(self) -> int:
        """Elements from row to row of the weights: an odd number of lines."""
        size = self.product.dtype.bytes
        return (-(-self.depth * size // LINE) | 1) * LINE // size

    @property
    def sums(self) -> tuple[int, int]:
        """Rows of the sums that are kept, and elements from row to row."""
        (tall, wide), size = self.tile, self.product.dtype.bytes
        return tall, (-(-wide * size // LINE) | 1) * LINE // size

    @property
    def aside(self) -> int:
        """Elements that a block of rows has of what there is one a row."""
        return -(-self.rows // self.lanes) * self.lanes

    @property
    def stack(self) -> int:
        """Bytes of a thread's stack."""
        rows, pitch = self.sums
        kept = sum(panel.size for panel in self.kept) + rows * pitch
        kept += self.rows * self.pitch + (2 * self.down + 3) * self.aside
        return kept * self.product.dtype.bytes


def blocking_of(whole: Weighing, schedule: Schedule) -> AttentionBlocking | None:
    """Return the blocking that a schedule says; None if it says something else."""
    cuts = {cut.axes: cut for cut in schedule.cuts}
    sums = whole.sums
    every = sums.rows, sums.columns, sums.depth
    names = [names_of(axes) for axes in every]
    if not cuts.keys() >= {*names}:
        return None
    rows, columns, keys = (cuts[name] for name in names)
    found = AttentionBlocking(
        sums,
        rows.at(Place.REGISTER),
        columns.at(Place.VECTOR),
        columns.at(Place.REGISTER),
        rows.at(Place.STACK),
        columns.at(Place.STACK),
        keys.size,
        (False, True),
        schedule.threads == 0,
        weighing=whole,
        beside=keys.at(Place.REGISTER),
    )
    fits = found.depth % (found.lanes * found.beside) == 0 and min(keys.size, rows.size)
    return found if fits and found.schedule == schedule else None


@lru_cache(maxsize=2)  # asked for to part a program, to choose a schedule, to lower
def attended(nest: Nest) -> Weighing | str:
    """Return how a nest weighs values, or why a CPU's registers do not as one kernel."""
    found = weighing_of(nest)
    if isinstance(found, str):
        return found
    lanes, sums = max(LANES), found.sums
    along = [(sums, sums.behind, sums.columns), (sums, found.between, sums.depth)]
    stored = [sums.walks(o.offset, sums.columns) for o in nest.outputs]
    if not all(in_order(*each, lanes) for each in along) or {*stored} != {1}:
        return "walks keys or columns by vectors, along which an array does not lie in order"
    if any(output.updates is not None for output in nest.program.outputs):
        return "updates an array in place; make it an output"
    return found


def problem(blocking: AttentionBlocking, machine: Machine) -> str:
    """Say why a blocking does not fit, and what to choose instead; "" if it does."""
    for each in (blocking, blocking.scores):
        if why := registers_problem(each, machine):
            return why
    if blocking.tile[1] < blocking.product.extents[2]:
        return (
            f"takes {blocking.tile[1]} of {blocking.product.extents[2]} columns of the "
            "values at a time; choose all of them"
        )
    if blocking.stack > MOST_STACK:
        return (
            f"needs {blocking.stack} bytes of a thread's stack, of which it takes "
            f"{MOST_STACK}; choose fewer queries at a time, or keys in a step"
        )
    return ""


def on_cpu(nest: Nest, machine: Machine, sought: Sought) -> Iterator[Schedule]:
    """Yield the legal blockings of attention; none where a nest is none."""
    whole = attended(nest)
    if isinstance(whole, str):
        return iter(())
    every = _blockings(whole, machine, likely=sought.likely)
    return legal(every, lambda each: problem(each, machine), sought.refuse)


def _blockings(
    whole: Weighing, machine: Machine, *, likely: bool
) -> Iterator[AttentionBlocking]:
    """Yield blockings: those that are `likely`, or all."""
    _, m, columns, n = whole.sums.extents
    lanes, every = machine.lanes(whole.sums.dtype.bytes), not likely
    seen = set()
    for (rows, vectors), tall, keys, shared in product(
        shapes(whole.sums.extents[1:3], machine, lanes)[: SHAPES[every]],
        TALL[every],
        KEYS[every],
        (True,) if likely else (True, False),
    ):
        most = (machine.registers - 1) // (rows + 1)
        beside = max(1, min(most, -(-n // lanes)))
        unit = lanes * beside
        step = -(-part(n, keys, lanes) // unit) * unit
        down, over = fit(m, rows, tall), -(-columns // (lanes * vectors))
        key = rows, vectors, down, step, shared
        if key not in seen:
            seen.add(key)
            yield AttentionBlocking(
                whole.sums,
                rows,
                lanes,
                vectors,
                down,
                over,
                step,
                (False, True),
                shared,
                weighing=whole,
                beside=beside,
            )


def model(nest: Nest, machine: Machine) -> Callable[[Schedule], Prediction]:
    """Return what predicts one launch of attention under a blocking."""
    whole = attended(nest)
    assert not isinstance(whole, str)
    return predicting(nest, machine, partial(blocking_of, whole), _cycles)


def _cycles(blocking: AttentionBlocking) -> dict[str, float]:
    """Return the cycles of both products, of weights, and of copies and what follows."""
    scores, (outer, m, n, keys) = blocking.scores, blocking.product.extents
    _, tiles, _ = blocking.blocks
    rows = -(-m // blocking.rows)
    moves = 2 * blocking.rows * MOVED
    steps = blocking.steps
    above = -(-keys // scores.columns) * (
        scores.depth * step_cycles(scores.rows, scores.vectors)
        + moves * scores.vectors
        + BLOCK
    )
    below = blocking.over * (
        keys * step_cycles(blocking.rows, blocking.vectors)
        + steps * (moves * blocking.vectors + BLOCK)
    )
    nodes = [each.node for each in blocking.weighing.between]
    made = sum(OPERATIONS[k.op].cost.cpu if isinstance(k, Apply) else 1 for k in nodes)
    vector = WEIGHT + (OPERATIONS["exp"].cost.cpu + made) * BEHIND
    weights = blocking.rows * (-(-keys // blocking.lanes) * vector + steps * ACROSS)
    asked, key, value = blocking.kept
    copies = copy_cycles(asked, m, scores.depth, scores) + tiles * (
        copy_cycles(key, keys, scores.depth, scores)
        + copy_cycles(value, n, keys, blocking)
    )
    behind = m * (
        ROW + -(-n // blocking.lanes) * (len(blocking.product.behind) + 2) * BEHIND
    )
    share = _share(blocking)
    return {
        "multiply": outer * rows * (above + below) * share,
        "weights": outer * rows * weights * share,
        "copies": outer * (copies * share + behind),
    }


def _share(blocking: AttentionBlocking) -> float:
    """Return which part of all steps is taken: those that some query of a block sees."""
    ahead, (_, m, _, _) = blocking.weighing.ahead, blocking.product.extents
    if ahead is None:
        return 1.0
    ends = [min(row + blocking.rows, m) + ahead for row in range(0, m, blocking.rows)]
    steps = [min(blocking.steps, -(-max(end, 0) // blocking.depth)) for end in ends]
    return sum(steps) / (len(steps) * blocking.steps)

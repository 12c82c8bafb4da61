"""What attention is predicted to take in a CPU's registers: nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from steelyard_kernels.expression.expr import Apply
from steelyard_kernels.nest.axes import Nest
from steelyard_kernels.ops import OPERATIONS
from steelyard_kernels.schedule.attention_blocking import (
    AttentionBlocking,
    attended,
    blocking_of,
)
from steelyard_kernels.schedule.model import Machine, Prediction
from steelyard_kernels.schedule.model_blocks import (
    BEHIND,
    BLOCK,
    MOVED,
    ROW,
    copy_cycles,
    predicting,
    step_cycles,
)
from steelyard_kernels.schedule.schedule import Schedule

# Cycles of a vector of scores beside its power, and of a row's two reductions over lanes.
WEIGHT: Final = 6.0
ACROSS: Final = 30.0


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

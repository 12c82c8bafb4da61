"""Generations of tensor cores: a row says what one instruction multiplies, and for whom.

Sums lie alike in all of them: a warp has 16 rows, a thread of every 8 columns two
neighbours in two rows that are 8 apart. So what is made of sums is one for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Cores:
    """A generation: the instruction `name` gives sums of `rows` by `columns`.

    Columns of a tile are multiples of `unit`; `columns` is 0 where one instruction has
    all of them. `bulk`: it reads shared memory by itself, beside a thread that copies
    boxes of matrices there; otherwise, and of what is no matrix, the threads that multiply
    copy units of 16 bytes. A thread takes up to `repeats` rows of tiles.
    """

    name: str
    rows: int
    columns: int
    unit: int
    bulk: bool
    repeats: int

    @property
    def by_warp(self) -> bool:
        """Whether each warp multiplies by itself, and has its sums at once."""
        return self.columns > 0


WGMMA: Final = Cores("wgmma", 64, 0, 8, bulk=True, repeats=1)  # sm_90a
MMA: Final = Cores("mma.sync", 16, 8, 16, bulk=False, repeats=2)  # sm_80 on
EVERY: Final = (WGMMA, MMA)

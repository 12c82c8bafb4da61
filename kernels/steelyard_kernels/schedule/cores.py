"""What multiplies tiles: a row says what is multiplied at a time, and for whom.

By tensor cores sums lie alike: a warp has 16 rows, a thread of every 8 columns two
neighbours in two rows that are 8 apart. By FMA a thread has two neighbours of every 32
columns in `lines` rows that are 8 apart. What is made of sums is one for all of them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from steelyard_kernels.schedule.schedule import Place


class Cores(Struct, frozen=True):
    """A generation of tensor cores: the instruction `name` gives sums of `rows` by `columns`.

    Columns of a tile are multiples of `unit`; `columns` is 0 where one instruction has
    all of them. `bulk`: it reads shared memory by itself, beside a thread that copies
    boxes of matrices there; otherwise, and of what is no matrix, the threads that multiply
    copy units of 16 bytes. A thread takes up to `repeats` rows of tiles, and without
    `spare` registers beside what it is thought to need some spilled. `exact`: threads
    multiply by FMA what tensor cores cannot, each a block of sums in its registers.
    """

    name: str
    rows: int
    columns: int
    unit: int
    bulk: bool
    repeats: int
    spare: int = 0
    exact: bool = False

    @property
    def place(self) -> Place:
        """Where a schedule has what is multiplied at a time."""
        return Place.FMA if self.exact else Place.MMA

    @property
    def lines(self) -> int:
        """Rows of an instruction, or of one of each warp, that a thread has."""
        return 8 if self.exact else 2

    @property
    def pairs(self) -> int:
        """Columns of which a thread has two."""
        return 32 if self.exact else 8

    @property
    def by_warp(self) -> bool:
        """Whether each warp multiplies by itself, and has its sums at once."""
        return self.columns > 0


WGMMA: Final = Cores("wgmma", 64, 0, 8, bulk=True, repeats=1)  # sm_90a
MMA: Final = Cores("mma.sync", 16, 8, 16, bulk=False, repeats=2, spare=32)  # sm_80 on
FMA: Final = Cores("fma", 64, 32, 32, bulk=False, repeats=2, spare=24, exact=True)
EVERY: Final = (WGMMA, MMA, FMA)

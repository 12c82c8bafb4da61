"""Launches in an order that may repeat some, issued one by one by native code.

No graph holds them: a loop's turns differ in their arguments, and a call may say how many
there are. What decides about turns in a GPU's memory is waited for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

from steelyard_device import turns
from steelyard_device.cuda.issue import Issued
from steelyard_device.cuda.launch import Launch
from steelyard_device.turns import Order


class Series(Issued):
    """Launches as one, on the stream of the first; see `turns` for their ``order``.

    ``words`` are the order's own, behind all launches' slots. Others may come ``before``
    and ``after``, each once.
    """

    __slots__ = ("_own", "_table", "launches")

    def __init__(
        self,
        launches: Sequence[Launch],
        order: Order,
        words: Sequence[int],
        *,
        before: Sequence[Launch] = (),
        after: Sequence[Launch] = (),
    ) -> None:
        self.launches = tuple(launches)
        others = *before, *after
        every = turns.around(order, len(launches), len(before), len(after))
        own = turns.size(every)
        self._table = (ctypes.c_uint64 * (own + len(words)))()
        base = ctypes.addressof(self._table)
        slots = chain.from_iterable(launch.slots for launch in launches)
        places = [(ctypes.addressof(slot) - base) // 8 for slot in slots]
        places += range(own, own + len(words))
        kernels = [
            (ctypes.addressof(each.entries[0]),) for each in (*launches, *others)
        ]
        records = turns.table(every, kernels, 0, places.__getitem__)
        for place, word in enumerate(records):
            self._table[place] = word
        self._own = own
        self.give(words)
        shown = f"a series of {len(kernels)} kernels"
        context, stream = launches[0].context, launches[0].stream
        super().__init__(context, shown, stream, base, kind="cuda_series", alive=others)

    def give(self, words: Sequence[int]) -> None:
        """Give later runs other words of the order's own."""
        for place, word in enumerate(words, self._own):
            self._table[place] = word

    def take(self, number: int) -> None:
        """Give later runs what a launch has now: each is issued with that anyway."""

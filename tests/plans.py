"""Runs a plan as it says: launch by launch, its repeats turn by turn, in flat memory."""

from __future__ import annotations

import numpy as np

from steelyard_kernels.plan.launches import Walk, roots


class Memory:
    """The bytes of a program's arrays and buffers, all poisoned but its inputs.

    An output that updates an input is that input's bytes.
    """

    def __init__(self, program, plan, arrays):
        self.plan, self.turns, self.odd = plan, {}, {}
        self.bytes = {
            node.name: np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint8).copy()
            for node, x in zip(program.inputs, arrays, strict=True)
        }
        for output in program.outputs:
            like = output.value
            if output.updates is None:
                size = int(np.prod(like.shape)) * like.dtype.bytes
                self.bytes[output.name] = np.full(size, 0x7E, np.uint8)
        self.room = np.full(plan.size, 0x7E, np.uint8)

    def at(self, home, node):
        """Return the part of memory that is a node's array in this turn."""
        room, first = self._place(home)
        size = int(np.prod(node.shape)) * node.dtype.bytes
        assert 0 <= first <= room.size - size, "beyond an array"
        return room[first : first + size].view(node.dtype.numpy).reshape(node.shape)

    def _place(self, home):
        if isinstance(home, Walk):
            turn = self.turns[home.repeat]
            room, first = self._place(home.other if turn % 2 else home.home)
            return room, first + home.first + turn * home.step
        if isinstance(home, int):
            return self.room, self.plan.buffers[home].offset
        return self.bytes[home], 0

    def word(self, home, dtype):
        """Return a number that lies in memory."""
        room, first = self._place(home)
        return room[first : first + np.dtype(dtype).itemsize].view(dtype)[0]


class Run:
    """One run of a plan; `launch(program, aligned, arrays, scalars)` runs a kernel."""

    def __init__(self, plan, memory, scalars, launch):
        self.plan, self.memory, self.scalars = plan, memory, scalars
        self.launch = launch

    def all(self):
        """Run all launches."""
        place = 0
        while place < len(self.plan.launches):
            place = self.next(place, frozenset(), self.scalars)

    def next(self, number, inside, numbers):
        """Run a launch, or the repeat that begins with it; return what is behind it."""
        around = [n for n in self.plan.around(number) if n not in inside]
        if not around:
            self.once(number, numbers)
            return number + 1
        which = around[0]
        self.memory.odd[which] = self.turns(which, inside | {which}, numbers) % 2
        return self.plan.repeats[which].last + 1

    def turns(self, which, inside, numbers):
        """Run a repeat; return how many turns there were."""
        repeat = self.plan.repeats[which]
        length = self.length(repeat, numbers)
        for turn in range(length):
            self.memory.turns[which] = turn
            place = repeat.first
            while place <= repeat.last:
                asked = repeat.test and repeat.test[0] == place
                if asked and not self.memory.word(repeat.test[1], "bool"):
                    return turn
                place = self.next(place, inside, {**numbers, repeat.index: turn})
        return max(length, 0)

    def length(self, repeat, numbers):
        """Return how many turns there are at most."""
        if repeat.odd is not None:
            return self.memory.odd[repeat.odd]
        if repeat.given is None:
            return repeat.length
        if repeat.given in numbers:
            return numbers[repeat.given]
        return int(self.memory.word(repeat.given, "int64"))

    def once(self, number, numbers):
        """Run one launch, which may be of several copies."""
        each, memory = self.plan.launches[number], self.memory
        self.check_live(number)
        inputs, outputs = each.program.inputs, each.program.outputs
        for copy in range(each.program.copies):
            reads = each.reads[copy * len(inputs) :][: len(inputs)]
            writes = each.writes[copy * len(outputs) :][: len(outputs)]
            given = [memory.at(h, n).copy() for h, n in zip(reads, inputs, strict=True)]
            found = self.launch(each.program, each.aligned, given, numbers)
            for home, output in zip(writes, outputs, strict=True):
                value = output.value
                memory.at(home, value)[...] = found[output.name].reshape(value.shape)

    def check_live(self, number):
        """Assert that a launch's buffers are live meanwhile."""
        each = self.plan.launches[number]
        every = {root for home in (*each.reads, *each.writes) for root in roots(home)}
        for buffer in filter(lambda root: isinstance(root, int), every):
            life = self.plan.buffers[buffer]
            assert life.first <= number <= life.last, "used while it is not live"


def launched(program, plan, arrays, scalars, launch):
    """Run a plan; return the outputs by name."""
    memory = Memory(program, plan, arrays)
    Run(plan, memory, scalars, launch).all()
    names = [node.name for node in program.inputs]
    return {
        o.name: memory.at(o.name if o.updates is None else names[o.updates], o.value)
        for o in program.outputs
        if not o.hidden
    }

"""Runs the loop kernels of clusters and of products: blocks together, copies when they like.

Each block, each role of its threads, each bulk copy and each store to another block is a
task; tasks take turns in random order. Products are computed as late as their waits
allow, so that a stage that is filled too early gives a wrong result. Two tasks that wait
for each other raise AssertionError. Threads' own copies arrive when they are waited for,
and leave NaN until then; what warps read races with them unless a barrier is between.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import simt

from steelyard_kernels.ir.loops import (
    Alloc,
    Buffer,
    Effect,
    For,
    Fragment,
    If,
    Multiply,
    Tensor,
)

GROUP = 128


def launch(program, lowered, arrays, scalars=None, *, aligned=True, seed=0):
    """Run a lowered program on copies of its arrays; return the outputs by name."""
    values, outputs = simt.arguments(
        program, lowered.slots, arrays, scalars, aligned=aligned
    )
    kernel = lowered.kernel
    given = {p.name: v for p, v in zip(kernel.parameters, values, strict=True)}
    held, numbers, watches = {}, {}, {}
    shared = held, numbers, watches, {}
    for parameter in kernel.parameters:
        value = given[parameter.name]
        if isinstance(parameter, Buffer | Tensor):
            held[parameter.name] = value.reshape(-1)
            if isinstance(parameter, Buffer) and parameter.access != "in":
                watches[parameter.name] = simt.Watch(value.size)
        else:
            numbers[parameter.name] = simt._uniform(value, parameter.type)
    grid = -(-values[-1] // lowered.per_block)
    assert grid % kernel.cluster == 0
    pairs = zip(kernel.parameters, lowered.slots, strict=True)
    tensors = {p.name: slot.tensor for p, slot in pairs}  # as a launch describes them
    with np.errstate(all="ignore"):
        for first in range(0, grid, kernel.cluster):
            hub = Hub(seed + first)
            hub.tensors = tensors
            cluster = [
                _Block(hub, kernel.threads, first + rank, *shared)
                for rank in range(kernel.cluster)
            ]
            for block in cluster:
                block.cluster = cluster
                hub.add(lambda block=block: block.run(kernel))
            hub.run()
            for block in cluster:
                assert not block.groups, "a product that nobody waits for"
    return outputs


class Task:
    """A function on a thread of its own, which runs only while it has the turn."""

    def __init__(self, function):
        self.function, self.error, self.dead = function, None, False
        self.holds = lambda: True  # what it waits for
        self.mine, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        """Run to the end, from the first turn on."""
        self.mine.acquire()
        try:
            with np.errstate(all="ignore"):  # the IEEE result is the answer
                self.function()
        except Exception as error:  # noqa: BLE001 # raised again where the turn came from
            self.error = error
        self.dead = True
        self.back.release()

    def switch(self):
        """Give it the turn until it pauses or ends."""
        self.mine.release()
        self.back.acquire()
        if self.error is not None:
            raise self.error

    def pause(self):
        """Give the turn back."""
        self.back.release()
        self.mine.acquire()


class Arrival:
    """A task that waits for nothing: it needs no thread."""

    def __init__(self, function):
        self.function, self.dead = function, False

    def holds(self):
        """Say that it may go on."""
        return True

    def switch(self):
        """Do what it does, once."""
        self.function()
        self.dead = True


class Hub:
    """Tasks that take turns."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.tasks, self.moved, self.tensors = [], True, {}
        self.turn: Task

    def add(self, function, kind=Task):
        """Begin a task."""
        task = kind(function)
        self.tasks.append(task)
        self.moved = True
        return task

    def run(self):
        """Run all tasks to their ends."""
        while self.tasks:
            assert self.moved, "all tasks wait for each other"
            self.moved = False
            for place in self.random.permutation(len(self.tasks)):
                self.turn = self.tasks[place]
                if self.turn.holds():
                    self.turn.switch()
            ended = len(self.tasks)
            self.tasks = [task for task in self.tasks if not task.dead]
            self.moved |= len(self.tasks) != ended

    def until(self, holds):
        """Let others run until something holds."""
        self.turn.holds = holds
        if not holds():
            self.turn.pause()


class Barrier:
    """An mbarrier: arrivals and bytes that its phase still waits for."""

    def __init__(self, count, hub):
        self.count = self.left = count
        self.bytes = self.phase = 0
        self.hub = hub

    def change(self, arrivals=0, size=0):
        """Take arrivals in, and bytes that are expected or (negative) have come."""
        self.left -= arrivals
        self.bytes += size
        assert self.left >= 0, "more arrivals than a phase has"
        if not self.left and not self.bytes:
            self.phase, self.left = self.phase + 1, self.count
        self.hub.moved = True


def swizzled(at, size):
    """Return where a byte lies: CUDA's swizzle of rows of 32, 64 or 128 bytes."""
    return at ^ ((at >> 7) % (size // 16)) << 4


@cache
def places(n):
    """Return at which row and column of 64 x n each thread has its elements."""
    thread = np.arange(GROUP)[:, None]
    place = np.arange(n // 2)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (place // 2 % 2)
    return row, 8 * (place // 4) + thread % 4 * 2 + place % 2


def waits(body):
    """Say whether any statement waits for an mbarrier."""
    return any(
        (isinstance(x, Effect) and x.op == "mbarrier_wait")
        or (isinstance(x, For | If) and waits(x.body))
        or (isinstance(x, If) and waits(x.orelse))
        for x in body
    )


class _Block(simt._Block):
    """One block of a cluster."""

    def __init__(self, hub, *given):
        super().__init__(*given)
        self.hub, self.barriers, self.groups, self.open = hub, {}, [], []
        self.arrived, self.cluster = 0, [self]
        self.copies, self.waiting = [], []  # of the open group, and groups under way
        self.run_one[Multiply] = self.multiply

    def pause(self, holds):
        """Let others run until something holds; then go on with the same threads."""
        active = self.active
        self.hub.until(holds)
        self.active = active

    def branch(self, node):
        """Run two roles of a block's threads together where both wait for each other."""
        if not (waits(node.body) and waits(node.orelse)):
            super().branch(node)
            return
        taken = np.broadcast_to(self.value(node.condition)[:, 0], self.threads)
        sides = (self.active & taken, node.body), (self.active & ~taken, node.orelse)
        tasks = [self.hub.add(lambda s=side: self.under(*s)) for side in sides]
        self.pause(lambda: all(task.dead for task in tasks))

    def one(self, operand):
        """Return what all active threads have."""
        found = self.value(operand)
        if len(found) > 1:
            found = found[self.active]
            assert (found == found[0]).all()
        return int(found[0, 0])

    def effect(self, node):
        """Do what an effect does."""
        run = getattr(self, f"do_{node.op}", None)
        if run is None:
            super().effect(node)
        else:
            run(*node.args)

    def barrier_at(self, buffer, index):
        return self.barriers[buffer.name, self.one(index)]

    def alone(self):
        assert self.active.sum() == 1, "one thread does this"

    def do_mbarrier_init(self, buffer, index, count):
        self.alone()
        self.barriers[buffer.name, self.one(index)] = Barrier(self.one(count), self.hub)

    def do_async_publish(self):
        """Order nothing: stores are seen at once."""

    def do_tensor_prefetch(self, _tensor):
        """Read nothing yet."""

    def do_mbarrier_publish(self):
        self.alone()

    def do_mbarrier_expect(self, buffer, index, size):
        self.alone()
        self.barrier_at(buffer, index).change(1, self.one(size))

    def do_mbarrier_arrive(self, buffer, index):
        self.barrier_at(buffer, index).change(int(self.active.sum()))

    def do_mbarrier_arrive_far(self, buffer, index, rank):
        ranks = np.broadcast_to(self.value(rank), (self.threads, 1))[self.active, 0]
        for number in ranks:
            self.cluster[number].barriers[buffer.name, self.one(index)].change(1)

    def do_mbarrier_wait(self, buffer, index, parity):
        barrier, odd = self.barrier_at(buffer, index), self.one(parity)
        self.pause(lambda: barrier.phase % 2 != odd)

    do_mbarrier_wait_far = do_mbarrier_wait

    def do_cluster_arrive(self):
        assert self.arrived or self.active.all()
        self.arrived += 1
        self.hub.moved = True

    def do_cluster_wait(self):
        phase = self.arrived
        self.pause(lambda: all(block.arrived >= phase for block in self.cluster))

    def do_tensor_copy_2(self, *where):
        """Begin to copy a box; its bytes count as they arrive."""
        self.begin(self, *where)

    def do_tensor_share_2(self, *where):
        """Begin to copy a box to as many blocks as a number has bits."""
        bits = self.one(where[5])
        for rank in range(bits.bit_length()):
            if bits >> rank & 1:
                self.begin(self.cluster[rank], *where[:5], *where[6:])

    def begin(self, other, *where):
        """Begin to copy a box to a block."""
        to, index, tensor, barrier, stage, *corner = where
        self.alone()
        tensor = self.hub.tensors[tensor.name]
        size = to.dtype.bytes
        first, corner = size * self.one(index), [self.one(each) for each in corner]
        full = other.barriers[barrier.name, self.one(stage)]
        array = self.memory[tensor.name]
        assert first % (8 * tensor.swizzle) == 0, "the tile begins inside of an atom"
        inside, at = np.ones(tensor.box[::-1], bool), tensor.first
        steps = (1, *[stride // size for stride in tensor.strides])
        for axis, within in enumerate(np.indices(tensor.box[::-1])[::-1]):
            place = within + corner[axis]
            inside &= (place >= 0) & (place < tensor.extents[axis])
            at = at + place * steps[axis]
        box = np.where(inside, array[np.where(inside, at, 0)], 0).reshape(-1)
        places = swizzled(first + size * np.arange(box.size), tensor.swizzle) // size

        def arrive():
            other.alloc(Alloc(to))  # it may not have come to its own
            other.memory[to.name][places] = box
            full.change(0, -size * box.size)

        self.hub.add(arrive, Arrival)

    do_tensor_copy_3 = do_tensor_copy_4 = do_tensor_copy_5 = do_tensor_copy_2
    do_tensor_share_3 = do_tensor_share_4 = do_tensor_share_5 = do_tensor_share_2

    def do_copy_async(self, to, index, source, start, *sizes):
        """Begin a copy of each thread; who may read there races with it already."""
        (count, some), size = sizes, (self.threads, 1)
        lanes = np.arange(self.one(count))
        live = self.active
        at, begin, left = (
            np.broadcast_to(self.value(x), size)[live] for x in (index, start, some)
        )
        assert ((left >= 0) & (left <= lanes.size)).all()
        exist = lanes < left
        bytes_ = to.dtype.bytes * lanes.size
        for first in (at[exist.any(1)], begin[exist.any(1)]):
            assert not (first * to.dtype.bytes % bytes_).any(), "a copy is not aligned"
        held = self.memory[source.name]
        assert (exist * (begin + lanes) < held.size).all(), (
            "a copy reads beyond its array"
        )
        values = np.where(exist, held[np.where(exist, begin + lanes, 0)], 0)
        at = at + lanes
        threads = np.broadcast_to(np.flatnonzero(live)[:, None], at.shape)
        self.copies.append((to.name, at, threads, values))
        self.land(to.name, at, threads, simt.poison(to.dtype))

    def land(self, name, at, threads, values):
        """Write what copies bring."""
        clean = self.within[name].write(at, threads)
        assert clean, f"a copy to {name} races"
        self.memory[name][at] = values

    def do_copy_commit(self):
        self.waiting.append(self.copies)
        self.copies = []

    def do_copy_wait(self, left):
        """Let the oldest groups arrive, until so many are left."""
        while len(self.waiting) > self.one(left):
            for copy in self.waiting.pop(0):
                self.land(*copy)

    def do_store_far(self, to, index, values, rank, *barrier):
        """Begin to store four sums, or one value, of each thread in another block."""
        sent = self.value(values)
        lanes = sent.shape[1]
        at = np.broadcast_to(self.value(index), (self.threads, 1)) + np.arange(lanes)
        sent = np.broadcast_to(sent, (self.threads, lanes))
        ranks = np.broadcast_to(self.value(rank), (self.threads, 1))[:, 0]
        for number in np.unique(ranks[self.active]):
            mine = self.active & (ranks == number)
            other = self.cluster[number]
            arrived = other.barriers[barrier[0].name, self.one(barrier[1])]
            self.send((other, arrived), to, at[mine], sent[mine])

    do_store_far_one = do_store_far

    def send(self, into, to, at, sent):
        """Begin to store values in a block, whose mbarrier counts their bytes."""
        other, arrived = into

        def arrive():
            other.alloc(Alloc(to))  # it may not have come to its own
            memory, watch = other.memory[to.name], other.within[to.name]
            new = np.isclose(memory[at], simt.poison(to.dtype), 0, 0, equal_nan=True)
            read = watch.reader[at]  # by all, where a barrier came since
            free = new | ((read > 0) & (read < watch.since))
            assert free.all(), "two threads store to one place"
            memory[at], watch.reader[at] = sent, 0
            arrived.change(0, -sent.dtype.itemsize * sent.size)

        self.hub.add(arrive, Arrival)

    def do_registers_take(self, _count):
        """Compute as before."""

    do_registers_leave = do_registers_take

    def do_computed(self, _buffer):
        """Order nothing: all is computed in turn."""

    def do_mma_begin(self):
        """Order nothing: products are computed in turn."""

    def multiply(self, node):
        """Note a product, with where its tiles begin for each warpgroup."""
        for group in range(self.threads // GROUP):
            threads = slice(GROUP * group, GROUP * (group + 1))
            active = self.active[threads]
            assert active.all() or not active.any(), (
                "a thread of the warpgroup is missing"
            )
            if active.all():
                every = *node.rows, node.columns
                asked = [
                    self.value(x) for x in (*[tile.index for tile in every], node.more)
                ]
                first = [int(x[threads.start % len(x), 0]) for x in asked]
                if node.by_warp:
                    self.product(node, threads, *first)
                else:
                    self.open.append((node, threads, *first))

    def do_mma_commit(self):
        self.groups.append(self.open)
        self.open = []

    def do_mma_wait(self, _sums, left):
        """Compute the oldest groups, until so many are left."""
        while len(self.groups) > self.one(left):
            for product in self.groups.pop(0):
                self.product(*product)

    do_mma_done = do_mma_wait

    def product(self, node, threads, *firsts):
        """Add the products of tiles to a warpgroup's sums."""
        *rows, columns, more = firsts
        sums = self.memory[node.sums.name][threads]
        each = sums.shape[1] // len(rows)
        readers = self.threads + threads.start // 32 + np.arange(4)  # but no thread
        b = self.tile(node.columns, columns, 2 * each, node.by_warp and readers)
        for place, (tile, first) in enumerate(zip(node.rows, rows, strict=True)):
            if isinstance(tile, Fragment):
                a = self.fragment(tile, threads)
            else:
                a = self.tile(tile, first, 64, node.by_warp and readers)
            found = (a @ b.T).astype(sums.dtype)
            row, column = places(2 * each)
            own = sums[:, each * place : each * (place + 1)]
            own[...] = found[row, column] + (own if more else 0)

    def fragment(self, rows, threads):
        """Return (64, 16) numbers that a warpgroup's threads hold."""
        held = self.memory[rows.buffer.name][threads, rows.first : rows.first + 8]
        found = np.empty((64, 16), np.float32)
        found[places(16)] = held
        return found

    def tile(self, tile, index, count, readers):
        """Return the numbers of a tile, 32 bytes deep, as the descriptor finds them.

        `readers`: the warps that read it themselves, if any, in order of a barrier.
        """
        dtype, row = tile.buffer.dtype, tile.swizzle
        size = dtype.bytes
        own, deep = np.arange(count)[:, None], np.arange(32 // size)[None, :]
        if tile.across:
            assert size == 2, "tensor cores turn halves alone"
            wide = row // 2
            at = own // wide * tile.leading + own % wide * 2
            at = at + deep // 8 * tile.stride + deep % 8 * row
        else:
            at = own // 8 * tile.stride + own % 8 * row + deep * size
        places = swizzled(size * (index + tile.first) + at, row) // size
        for warp in () if readers is False else readers:
            clean = self.within[tile.buffer.name].read(
                places, np.full_like(places, warp)
            )
            assert clean, f"a warp reads {tile.buffer.name} before a barrier"
        found = self.memory[tile.buffer.name][places]
        if dtype.name == "float32":  # as tf32: its last 13 bits are not read
            found = (found.view(np.int32) & ~0x1FFF).view(np.float32)
        return found.astype(np.float64)

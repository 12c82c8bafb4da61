"""Runs a GPU's loop kernel with NumPy: all threads of a block at once.

A value is an array of (threads, lanes), or of (1, lanes) where it is the same in
every thread. Statements run under the mask of the
threads that reached them. What a GPU would leave undefined raises AssertionError
here: an access outside its buffer or off its stated alignment, a barrier or shuffle
that not all threads reach, and races: one element touched by two threads between
barriers, or by two blocks, one of them writing.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from steelyard_kernels import dtypes
from steelyard_kernels.ir.loops import (
    Alloc,
    Buffer,
    Const,
    Effect,
    Fence,
    For,
    If,
    Let,
    Load,
    Prefetch,
    Store,
)
from steelyard_kernels.ir.printing import statement_text
from steelyard_kernels.ops import OPERATIONS

WARP = 32
TOGETHER = 1 << 14  # threads of blocks that are run as one, where these are apart
BASE_ALIGNMENT = 16  # what NumPy's allocator gives; a vector access needs no more


def run(kernel, arguments, grid, *, seed=0):
    """Run a verified kernel in place on the arrays, block by block, in random order.

    `arguments` maps parameters' names to contiguous arrays and numbers.
    """
    arrays, scalars, watches, kept = {}, {}, {}, {}
    for parameter in kernel.parameters:
        value = arguments[parameter.name]
        if isinstance(parameter, Buffer):
            arrays[parameter.name] = _flat(value, parameter)
            if parameter.access != "in":
                watches[parameter.name] = Watch(value.size)
        else:
            scalars[parameter.name] = _uniform(value, parameter.type)
    with np.errstate(all="ignore"):  # the IEEE result is the answer
        blocks = np.random.default_rng(seed).permutation(grid)
        several = max(1, TOGETHER // kernel.threads) if _apart(kernel) else 1
        for first in range(0, grid, several):
            shared = arrays, scalars, watches, kept
            some = blocks[first : first + several]
            _Block(kernel.threads, some, *shared).run(kernel)


def _apart(kernel):
    """Say whether no thread waits for others but those of its warp."""
    if kernel.threads % WARP:
        return False
    pending = list(kernel.body)
    for node in pending:
        waits = isinstance(node, Effect) and node.op != "warp_barrier"
        waits |= isinstance(node, Let) and node.op == "any_block"
        if waits or (isinstance(node, Alloc) and node.buffer.space == "shared"):
            return False
        pending += [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
    return True


def launch(program, lowered, arrays, scalars=None, *, aligned=True):
    """Run a lowered program on copies of its arrays; return the outputs by name.

    Those that are not aligned begin one element behind a multiple of 16 bytes.
    """
    values, outputs = arguments(program, lowered.slots, arrays, scalars, aligned)
    names = [parameter.name for parameter in lowered.kernel.parameters]
    grid = -(-values[-1] // lowered.per_block) if lowered.per_block else 1
    run(lowered.kernel, dict(zip(names, values, strict=True)), grid)
    return outputs


def arguments(program, slots, arrays, scalars=None, aligned=True):
    """Return what a launch puts into slots, copies of arrays, and the outputs by name."""

    def copy(array):
        room = np.empty(array.size + 1, array.dtype)
        view = room[0 if aligned else 1 :][: array.size].reshape(array.shape)
        view[...] = array
        return view

    held = [copy(np.asarray(array)) for array in arrays]
    outputs = {
        output.name: copy(np.full(output.value.shape, poison(output.value.dtype)))
        if output.updates is None
        else held[output.updates]
        for output in program.outputs
    }
    values = []
    for slot in slots:
        if slot.kind in {"input", "tensor"}:
            values.append(held[slot.index])
        elif slot.kind == "output":
            values.append(outputs[program.outputs[slot.index].name])
        else:
            number = (scalars or {}).get(slot.name, slot.index)
            values.append(slot.index if slot.kind == "extent" else number)
    return values, outputs


def _flat(array, buffer):
    assert array.dtype == buffer.dtype.numpy, buffer.name
    assert array.flags.c_contiguous, buffer.name  # or this would be a copy
    return array.reshape(-1)


def _uniform(value, type_):
    return np.full((1, type_.lanes), dtypes.rounded(value, type_.dtype))


def _constant(const):
    return _uniform(const.value, const.type)


def spread(value, shape):
    """Return what NumPy's `broadcast_to` does, at once where nothing is to be done."""
    return value if value.shape == shape else np.broadcast_to(value, shape)


class Watch:
    """Who has written and read each element since the last barrier, or many have.

    An agent's number counts from where the time since that barrier begins: what is
    below is forgotten, and no memory is walked for it.
    """

    MANY = SPAN = 1 << 32

    def __init__(self, extent):
        self.since = 1
        self.writer = np.zeros(extent, np.int64)
        self.reader = np.zeros(extent, np.int64)

    def forget(self):
        """Begin anew: a barrier orders what was before it."""
        self.since += 2 * self.SPAN

    def read(self, at, agent):
        """Note reads; say whether they are free of races."""
        agent = agent + self.since
        clean = self._only(self.writer, at, agent)
        self._note(self.reader, at, agent)
        return clean

    def write(self, at, agent):
        """Note writes; say whether they are free of races."""
        agent = agent + self.since
        clean = self._only(self.writer, at, agent)
        clean &= self._only(self.reader, at, agent)
        self._note(self.writer, at, agent)
        return clean and self._only(self.writer, at, agent)

    def _only(self, owner, at, agent):
        held = owner[at]
        return bool(((held < self.since) | (held == agent)).all())

    def _note(self, owner, at, agent):
        held = owner[at]
        others = at[(held >= self.since) & (held != agent)]
        owner[at] = agent
        owner[at[owner[at] != agent]] = self.since + self.MANY  # in this statement
        owner[others] = self.since + self.MANY


class _Block:
    """A block, or several: values, memories and which threads are active."""

    def __init__(self, threads, blocks, *shared):
        arrays, scalars, across, self.kept = shared  # with all blocks
        self.blocks = np.atleast_1d(blocks)
        self.each = threads
        self.threads = threads = threads * self.blocks.size
        self.own = np.arange(threads)[:, None]
        self.homes = np.repeat(self.blocks, self.each)[:, None]
        self.memory = dict(arrays)
        self.env = dict(scalars)
        self.across = across  # between blocks, of what the launch writes
        self.within = {name: Watch(arrays[name].size) for name in across}
        self.active = np.ones(threads, bool)
        self.run_one = {
            Let: self.let,
            Load: self.load,
            Store: self.store,
            Alloc: self.alloc,
            For: self.loop,
            If: self.branch,
            Effect: self.effect,
            Prefetch: lambda _node: None,
            Fence: lambda _node: None,
        }

    def run(self, body):
        """Run statements; a kernel is one too."""
        for statement in getattr(body, "body", body):
            self.run_one[type(statement)](statement)

    def value(self, operand):
        """Return an operand's array."""
        if type(operand) is not Const:
            return self.env[operand.name]
        found = self.kept.get(id(operand))
        return self.known(operand, _constant) if found is None else found

    def known(self, node, make):
        """Return what a node has in all blocks, made when it is first asked for."""
        found = self.kept.get(id(node))
        if found is None:
            found = self.kept[id(node)] = make(node)
        return found

    def let(self, node):
        """Compute a value; what depends on the thread's place comes first."""
        found = self.kept.get(id(node))
        own, compute, lanes, dtype = found or self.known(node, _step)
        args = [self.value(arg) for arg in node.args]
        result = compute(self, node, *args) if own else compute(*args)
        assert result.shape[1] == lanes, statement_text(node)
        if result.dtype is not dtype:
            result = result.astype(dtype, copy=False)
        self.env[node.var.name] = result

    def together(self, node):
        """Hold a warp to be there with all of its lanes, or with none."""
        whole = self.active.reshape(-1, WARP) if self.threads % WARP == 0 else None
        together = whole is not None and (whole.any(1) == whole.all(1)).all()
        assert together, f"{statement_text(node)}: a lane of the warp is missing"

    def vote(self, node, flag):
        """Say in each warp, or in the block, whether a flag holds anywhere."""
        flag = np.broadcast_to(flag, (self.threads, 1))
        if node.op == "any_block":
            self.effect(Effect("barrier"))
            return flag.any(0, keepdims=True)
        self.together(node)
        return np.repeat(flag.reshape(-1, WARP).any(1), WARP)[:, None]

    def shuffle(self, node, value, lane, width=None):
        """Hand values round each warp; all of its lanes must be there."""
        self.together(node)
        if len(value) != self.threads:
            value = np.broadcast_to(value, (self.threads, value.shape[1]))
        me = np.arange(self.threads)
        inside, step = me % WARP, lane[:, 0].astype(np.int64)
        if node.op == "shuffle":
            assert ((step >= 0) & (step < int(width.item()))).all()
            source = inside - inside % int(width.item()) + step
        elif node.op == "shuffle_xor":
            source = inside ^ step
        else:
            source = np.where(inside + step < WARP, inside + step, inside)
        assert ((source >= 0) & (source < WARP)).all(), statement_text(node)
        return value[me - inside + source]

    def places(self, node, lanes):
        """Return (threads, lanes) of element numbers, and which of them are touched."""
        at = self.value(node.index) + _lanes(self.threads, lanes)
        live = self.active[:, None]
        if node.mask is not None:
            live = live & self.value(node.mask)
        live = spread(live, at.shape)
        extent = self.memory[node.buffer.name].shape[-1]
        outside = at.view(np.uint64) >= extent  # also what is below 0
        if outside.any():
            outside &= live
            assert not outside.any(), (
                f"{statement_text(node)}: outside {extent} elements: {at[outside]}"
            )
            at = np.where(live, at, 0)
        if node.alignment:
            self.check_alignment(node, at[:, 0], live.any(1))
        return at, live

    def columns(self, node, lanes):
        """Return the registers that all lanes access, None where that takes a longer look."""
        memory, index = self.memory[node.buffer.name], self.value(node.index)
        if memory.ndim == 1 or node.mask is not None or index.size > 1:
            return None
        first = int(index.item())
        off = node.alignment and first * node.buffer.dtype.bytes % node.alignment
        if off or not 0 <= first <= memory.shape[1] - lanes:
            return None
        return slice(first, first + lanes)

    def check_alignment(self, node, first, live):
        """Hold an access to the alignment that it states."""
        off = (first * node.buffer.dtype.bytes % node.alignment)[live].any()
        if node.buffer.space == "global" and live.any():
            base = self.memory[node.buffer.name].ctypes.data
            off |= base % min(node.alignment, BASE_ALIGNMENT) != 0
        assert not off, f"{statement_text(node)}: not aligned"

    def watch(self, node, at, live, how):
        """Note an access; a race raises."""
        name = node.buffer.name
        if name in self.across and live.any():
            agents = spread(self.homes, at.shape)[live]
            clean = getattr(self.across[name], how)(at[live], agents)
            assert clean, f"{statement_text(node)}: two blocks race"
        if name in self.within and live.any():
            agents = spread(self.own, at.shape)
            clean = getattr(self.within[name], how)(at[live], agents[live])
            assert clean, f"{statement_text(node)}: two threads race"

    def load(self, node):
        """Read; what is masked or inactive is zero."""
        memory, lanes = self.memory[node.buffer.name], node.var.type.lanes
        if columns := self.columns(node, lanes):
            read, live = memory[:, columns], self.active[:, None]
            self.env[node.var.name] = np.where(live, read, np.zeros((), memory.dtype))
            return
        at, live = self.places(node, lanes)
        if memory.ndim == 2:  # this thread's own
            self.check_register(node)
            read = np.take_along_axis(memory, at, 1) if memory.size else live * 0
        else:
            self.watch(node, at, live, "read")
            read = memory[at] if memory.size else np.zeros(at.shape, memory.dtype)
        self.env[node.var.name] = np.where(live, read, np.zeros((), memory.dtype))

    def store(self, node):
        """Write what is live."""
        value, memory = self.value(node.value), self.memory[node.buffer.name]
        if columns := self.columns(node, node.value.type.lanes):
            np.copyto(memory[:, columns], value, where=self.active[:, None])
            return
        at, live = self.places(node, node.value.type.lanes)
        value = spread(value, at.shape)
        if memory.ndim == 2:
            self.check_register(node)
            rows = spread(self.own, at.shape)
            memory[rows[live], at[live]] = value[live]
        else:
            self.watch(node, at, live, "write")
            memory[at[live]] = value[live]

    def check_register(self, node):
        """Hold an index of registers to what a compiler can know: no thread in it."""
        known = node.buffer.space != "register" or len(self.value(node.index)) == 1
        assert known, f"{statement_text(node)}: registers have no address"

    def alloc(self, node):
        """Make memory full of poison; memory that is there keeps what it has."""
        buffer, extent = node.buffer, int(node.buffer.extent.value)
        if buffer.name in self.memory:
            return
        shared = buffer.space == "shared"
        shape = (extent,) if shared else (self.threads, extent)
        self.memory[buffer.name] = np.full(shape, poison(buffer.dtype))
        if shared:
            self.within[buffer.name] = Watch(extent)

    def effect(self, node):
        """Wait for all threads, who must all be here."""
        if node.op in HANDING:
            HANDING[node.op](self, *node.args)
            return
        if node.op == "warp_barrier":  # as if for all: it orders no less
            self.together(node)
        else:
            assert node.op == "barrier", f"{statement_text(node)} is not interpreted"
            assert self.active.all(), "a barrier that not every thread reaches"
        for watch in self.within.values():
            watch.forget()

    def take_turn(self, to, index, words, at):
        """Count in memory, and store what was there."""
        assert self.active.sum() == 1, "one thread takes a turn"
        memory, at = self.memory[words.name], int(self.value(at).item())
        place = self.value(index).ravel()
        self.memory[to.name][place] = memory[at]
        memory[at] += 1

    def hand_over(self, words, at, value):
        """Store halves of a value with a mark each."""
        assert self.active.sum() == 1, "one thread hands a total over"
        one = np.broadcast_to(self.value(value), (self.threads, 1))[self.active][0]
        halves = one.view(np.uint32).astype(np.int64)
        at = np.broadcast_to(self.value(at), (self.threads, 1))[self.active][0, 0]
        memory = self.memory[words.name]
        assert not memory[at : at + halves.size].any(), "handed over twice, or no zero"
        memory[at : at + halves.size] = halves | 1 << 32

    def take_over(self, to, words, at, step, count):
        """Take what other blocks have stored: those before this one are done."""
        memory, size = self.memory[words.name], (self.threads, 1)
        at, step, count = (
            np.broadcast_to(self.value(x), size) for x in (at, step, count)
        )
        for k in range(int(to.extent.value)):
            live = self.active & (count[:, 0] > k)
            places = (at + k * step)[live] + np.arange(to.dtype.bytes // 4)
            found = memory[places]
            assert (found >> 32 == 1).all(), "waits for what no block before it stores"
            values = np.ascontiguousarray(found.astype(np.uint32)).view(to.dtype.numpy)
            self.memory[to.name][live, k] = values[:, 0]

    def under(self, active, body):
        """Run a body with some threads; say whether there were any."""
        outer, self.active, some = self.active, active, bool(active.any())
        if some:
            self.run(body)
        self.active = outer
        return some

    def branch(self, node):
        """Run both sides, each with its threads, and choose the results."""
        condition = self.value(node.condition)
        taken = np.broadcast_to(condition[:, 0], self.threads)
        ran = self.under(self.active & taken, node.body)
        given = [self.value(x) for x in node.values] if ran else None
        ran = self.under(self.active & ~taken, node.orelse)
        other = [self.value(x) for x in node.else_values] if ran else given
        given = other if given is None else given
        for result, a, b in zip(node.results, given or (), other or (), strict=True):
            self.env[result.name] = a if a is b else np.where(condition, a, b)

    def loop(self, node):
        """Run a loop until no active thread has another turn."""
        at, stop = self.value(node.start), self.value(node.stop)
        state = [self.value(first) for _, first in node.carried]
        goes = self.active.copy()  # those that nothing ended yet
        while (turn := goes & (at < stop)[:, 0]).any():
            self.env[node.var.name] = at
            for (var, _), held in zip(node.carried, state, strict=True):
                self.env[var.name] = held
            self.under(turn, node.body)
            every = (turn == self.active).all()
            for place, last in enumerate(node.yields):
                new = self.value(last)
                held = state[place]
                state[place] = new if every else np.where(turn[:, None], new, held)
            if node.until is not None:
                goes &= ~(turn & self.value(node.until)[:, 0])
            at = at + np.asarray(node.step, at.dtype)
        for result, held in zip(node.results, state, strict=True):
            self.env[result.name] = held


@cache
def _lanes(threads, lanes):
    """Return each lane's number, in each thread."""
    return np.broadcast_to(np.arange(lanes), (threads, lanes))


def poison(dtype):
    """Return what memory holds before anybody wrote it: NaN, or a number far off."""
    made = dtype.numpy.type
    if dtype.kind == "float":
        return made(np.nan)
    return made(dtype.kind == "bool" or int(dtype.largest) // 3 * 2)


def _wide(array, dtype):
    """Return what arithmetic is done in: float32 for halves."""
    return array.astype(np.float32) if dtype in dtypes.HALVES else array


def _step(node):
    """Return how a value is computed, whether of its threads, and what it must be."""
    own, type_ = OWN.get(node.op), node.var.type
    compute = own or _computation(node)
    return own is not None, compute, type_.lanes, np.dtype(type_.dtype.numpy)


def _computation(node):
    """Return what an operation computes lane by lane, rounded to its type."""
    op, type_, operands = node.op, node.var.type, node.args
    if op in SHAPED:
        return partial(SHAPED[op], node)
    dtype = operands[0].type.dtype
    if op.startswith("reduce_"):
        return partial(_reduce, op.removeprefix("reduce_"), dtype)
    asked = _asked(op, type_, dtype)
    if dtype not in dtypes.HALVES:
        return asked
    if type_.dtype is not dtype:
        return lambda *args: asked(*(arg.astype(np.float32) for arg in args))

    def rounded(*args):
        result = asked(*(arg.astype(np.float32) for arg in args))
        return dtypes.rounded(result, dtype)

    return rounded


def _slide(_node, vector, before, count):
    vector, before = np.broadcast_arrays(vector, before)
    count = int(count.item())
    return np.concatenate([before[:, -count:], vector[:, :-count]], axis=1)


def _extract(node, vector, _lane):
    lane = int(node.args[1].value)
    return vector[:, lane : lane + 1]


OWN = {  # what depends on who computes
    "thread": lambda block, _: np.tile(np.arange(block.each), block.blocks.size)[
        :, None
    ],
    "block": lambda block, _: np.repeat(
        block.blocks, block.each if block.blocks.size > 1 else 1
    )[:, None],
    **dict.fromkeys(
        ("shuffle_xor", "shuffle_down", "shuffle"), lambda b, *a: b.shuffle(*a)
    ),
    **dict.fromkeys(("any_warp", "any_block"), lambda b, *a: b.vote(*a)),
}
HANDING = {  # between blocks, of which one is done before the next begins
    name: getattr(_Block, name) for name in ("take_turn", "hand_over", "take_over")
}
SHAPED = {  # what is of no dtype's arithmetic
    "extract": _extract,
    "slide": _slide,
    "exp2_approx": lambda _, x: np.exp2(x),
    "cast": lambda node, x: dtypes.rounded(x, node.var.type.dtype),
    "bitcast": lambda node, x: np.ascontiguousarray(x).view(node.var.type.dtype.numpy),
    "iota": lambda node: np.arange(node.var.type.lanes)[None, :],
    "splat": lambda node, x: np.broadcast_to(x, (len(x), node.var.type.lanes)),
    "mask_below": lambda node, x: np.arange(node.var.type.lanes)[None, :] < x,
    "where": lambda _, *args: np.where(*args),
}


def _asked(op, type_, dtype):
    """Return an operation as its row's oracle does it: functions rounded once."""
    row = OPERATIONS[op]
    if op == "fma":
        return fused
    if row.decompose is None and not row.by_dtype:
        return row.oracle
    single = dtypes.float32 if dtype in dtypes.HALVES else dtype
    rounded = dtypes.float32 if type_.dtype in dtypes.HALVES else type_.dtype

    def computed(*args):
        wide = [
            arg.astype(np.float64) if arg.dtype.kind == "f" else arg for arg in args
        ]
        wide = np.broadcast_arrays(*wide)
        result = np.asarray(row.evaluate(single, *wide))
        return result.astype(rounded.numpy)

    return computed


def _reduce(op, dtype, array):
    while array.shape[1] > 1:
        half = array.shape[1] // 2
        pair = [_wide(part, dtype) for part in (array[:, :half], array[:, half:])]
        array = OPERATIONS[op].oracle(*pair)
        if dtype in dtypes.HALVES:
            array = dtypes.rounded(array, dtype)
    return array


def _two_sum(a, b):
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a, b):
    """Return a + b rounded to odd: rounding it again gives the sum rounded once."""
    total, error = _two_sum(a, b)
    if not error.any():
        return total
    even = (total.view(np.int64) & 1) == 0
    other = np.nextafter(total, np.copysign(np.inf, error))
    return np.where(np.isfinite(error) & (error != 0) & even, other, total)


def fused(a, b, c):
    """Return a * b + c rounded once (Boldo and Melquiond 2008, for float64)."""
    if a.dtype == np.float32:
        a, b, c = (x.astype(np.float64) for x in (a, b, c))
        return _odd_sum(a * b, c).astype(np.float32)
    high = a * b
    split = [x * 134217729.0 for x in (a, b)]  # Dekker's 2**27 + 1
    (ah, bh) = (s - (s - x) for s, x in zip(split, (a, b), strict=True))
    al, bl = a - ah, b - bh
    low = al * bl - (((high - ah * bh) - al * bh) - ah * bl)
    top, left = _two_sum(c, low)
    total, rest = _two_sum(high, top)
    exact = total + _odd_sum(left, rest)
    return np.where(np.isfinite(exact), exact, high + c)

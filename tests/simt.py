"""Runs a GPU's loop kernel with NumPy: all threads of a block at once.

A value is an array of (threads, lanes), or of (1, lanes) where it is the same in
every thread. Statements run under the mask of the
threads that reached them. What a GPU would leave undefined raises AssertionError
here: an access outside its buffer or off its stated alignment, a barrier or shuffle
that not all threads reach, and races: one element touched by two threads between
barriers, or by two blocks, one of them writing.
"""

from __future__ import annotations

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
BASE_ALIGNMENT = 16  # what NumPy's allocator gives; a vector access needs no more


def run(kernel, arguments, grid, *, seed=0):
    """Run a verified kernel in place on the arrays, block by block, in random order.

    `arguments` maps parameters' names to contiguous arrays and numbers.
    """
    arrays, scalars, watches = {}, {}, {}
    for parameter in kernel.parameters:
        value = arguments[parameter.name]
        if isinstance(parameter, Buffer):
            arrays[parameter.name] = _flat(value, parameter)
            if parameter.access != "in":
                watches[parameter.name] = Watch(value.size)
        else:
            scalars[parameter.name] = _uniform(value, parameter.type)
    with np.errstate(all="ignore"):  # the IEEE result is the answer
        for block in np.random.default_rng(seed).permutation(grid):
            _Block(kernel.threads, int(block), arrays, scalars, watches).run(kernel)


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
    flat = array.view()
    flat.shape = (-1,)  # raises where that needed a copy
    return flat


def _uniform(value, type_):
    return np.full((1, type_.lanes), dtypes.rounded(value, type_.dtype))


class Watch:
    """Who has written and read each element: an agent's number, NONE or MANY."""

    NONE, MANY = -1, -2

    def __init__(self, extent):
        self.writer = np.full(extent, self.NONE)
        self.reader = np.full(extent, self.NONE)

    def forget(self):
        """Begin anew: a barrier orders what was before it."""
        self.writer[:] = self.NONE
        self.reader[:] = self.NONE

    def read(self, at, agent):
        """Note reads; say whether they are free of races."""
        clean = self._only(self.writer, at, agent)
        self._note(self.reader, at, agent)
        return clean

    def write(self, at, agent):
        """Note writes; say whether they are free of races."""
        clean = self._only(self.writer, at, agent)
        clean &= self._only(self.reader, at, agent)
        self._note(self.writer, at, agent)
        return clean and self._only(self.writer, at, agent)

    def _only(self, owner, at, agent):
        return bool(((owner[at] == self.NONE) | (owner[at] == agent)).all())

    def _note(self, owner, at, agent):
        others = at[(owner[at] != self.NONE) & (owner[at] != agent)]
        owner[at] = agent
        owner[at[owner[at] != agent]] = self.MANY  # several in this statement
        owner[others] = self.MANY


class _Block:
    """One block: its values, memories and who of its threads is active."""

    def __init__(self, threads, block, arrays, scalars, across):
        self.threads = threads
        self.block = block
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
        if isinstance(operand, Const):
            return _uniform(operand.value, operand.type)
        return self.env[operand.name]

    def let(self, node):
        """Compute a value; what depends on the thread's place comes first."""
        args = [self.value(arg) for arg in node.args]
        type_ = node.var.type
        if node.op == "thread":
            result = np.arange(self.threads)[:, None]
        elif node.op == "block":
            result = np.full((1, 1), self.block)
        elif node.op in {"shuffle_xor", "shuffle_down", "shuffle"}:
            result = self.shuffle(node, *args)
        elif node.op in {"any_warp", "any_block"}:
            result = self.vote(node, args[0])
        elif node.op == "extract":
            lane = int(node.args[1].value)
            result = args[0][:, lane : lane + 1]
        elif node.op == "exp2_approx":
            result = np.exp2(args[0])
        elif node.op == "cast":
            result = dtypes.rounded(args[0], type_.dtype)
        elif node.op == "bitcast":
            result = np.ascontiguousarray(args[0]).view(type_.dtype.numpy)
        else:
            result = _apply(node.op, args, node.args, type_)
        assert result.shape[1] == type_.lanes, statement_text(node)
        self.env[node.var.name] = result.astype(type_.dtype.numpy, copy=False)

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
        index = self.value(node.index).astype(np.int64)
        at = np.broadcast_to(index + np.arange(lanes), (self.threads, lanes))
        live = np.broadcast_to(self.active[:, None], at.shape)
        if node.mask is not None:
            live = live & self.value(node.mask)
        extent = self.memory[node.buffer.name].shape[-1]
        inside = (at >= 0) & (at < extent)
        assert (inside | ~live).all(), (
            f"{statement_text(node)}: outside {extent} elements: {at[~inside & live]}"
        )
        self.check_alignment(node, at[:, 0], live.any(1))
        return np.where(live, at, 0), live

    def check_alignment(self, node, first, live):
        """Hold an access to the alignment that it states."""
        if node.alignment:
            off = first * node.buffer.dtype.bytes % node.alignment
            message = f"{statement_text(node)}: not aligned"
            assert not off[live].any(), message
            if node.buffer.space == "global" and live.any():
                base = self.memory[node.buffer.name].ctypes.data
                assert base % min(node.alignment, BASE_ALIGNMENT) == 0, message

    def watch(self, node, at, live, how):
        """Note an access; a race raises."""
        name = node.buffer.name
        if name in self.within and live.any():
            agents = np.broadcast_to(np.arange(self.threads)[:, None], at.shape)
            clean = getattr(self.within[name], how)(at[live], agents[live])
            assert clean, f"{statement_text(node)}: two threads race"
        if name in self.across and live.any():
            blocks = np.full(int(live.sum()), self.block)
            clean = getattr(self.across[name], how)(at[live], blocks)
            assert clean, f"{statement_text(node)}: two blocks race"

    def load(self, node):
        """Read; what is masked or inactive is zero."""
        at, live = self.places(node, node.var.type.lanes)
        memory = self.memory[node.buffer.name]
        if memory.ndim == 2:  # this thread's own
            self.check_register(node)
            read = np.take_along_axis(memory, at, 1) if memory.size else live * 0
        else:
            self.watch(node, at, live, "read")
            read = memory[at] if live.any() else np.zeros(at.shape, memory.dtype)
        self.env[node.var.name] = np.where(live, read, np.zeros((), memory.dtype))

    def store(self, node):
        """Write what is live."""
        value = self.value(node.value)
        at, live = self.places(node, node.value.type.lanes)
        memory = self.memory[node.buffer.name]
        value = np.broadcast_to(value, at.shape)
        if memory.ndim == 2:
            self.check_register(node)
            rows = np.broadcast_to(np.arange(self.threads)[:, None], at.shape)
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
        if node.op == "warp_barrier":  # as if for all: it orders no less
            self.together(node)
        else:
            assert node.op == "barrier", f"{statement_text(node)} is not interpreted"
            assert self.active.all(), "a barrier that not every thread reaches"
        for watch in self.within.values():
            watch.forget()

    def under(self, active, body):
        """Run a body with some threads; say whether there were any."""
        outer, self.active = self.active, active
        if active.any():
            self.run(body)
        self.active = outer
        return bool(active.any())

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


def poison(dtype):
    """Return what memory holds before anybody wrote it: NaN, or a number far off."""
    made = dtype.numpy.type
    if dtype.kind == "float":
        return made(np.nan)
    return made(dtype.kind == "bool" or int(dtype.largest) // 3 * 2)


def _wide(array, dtype):
    """Return what arithmetic is done in: float32 for halves."""
    return array.astype(np.float32) if dtype in dtypes.HALVES else array


def _apply(op, args, operands, type_):
    """Compute an operation lane by lane, rounded to its type."""
    if op == "iota":
        return np.arange(type_.lanes)[None, :]
    if op == "splat":
        return np.broadcast_to(args[0], (len(args[0]), type_.lanes))
    if op == "slide":
        vector, before = np.broadcast_arrays(*args[:2])
        count = int(operands[2].value)
        return np.concatenate([before[:, -count:], vector[:, :-count]], axis=1)
    if op == "mask_below":
        return np.arange(type_.lanes)[None, :] < args[0]
    if op == "where":
        return np.where(*args)
    dtype = operands[0].type.dtype
    wide = [_wide(arg, dtype) for arg in args]
    if op.startswith("reduce_"):
        return _reduce(op.removeprefix("reduce_"), args[0], dtype)
    result = _asked(op, type_, dtype)(*wide)
    if dtype in dtypes.HALVES and type_.dtype is dtype:
        return dtypes.rounded(result, dtype)
    return result


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


def _reduce(op, array, dtype):
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

"""The order of a loop's statements on a GPU: early what can be, barriers where needed."""

import numpy as np
import pytest
import simt

from steelyard_kernels.dtypes import float32
from steelyard_kernels.ir.builder import Builder, const, index
from steelyard_kernels.ir.loops import Buffer, Effect, For, Let, Load, Store
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.nest.carried.order import early, guarded

WAIT = Effect("warp_barrier")


def exchanging(turns, *, carried=False, times=1):
    """Return a kernel whose threads exchange values in a loop, and its loop.

    Each turn adds up what the opposite thread has of x, or of what is carried.
    """
    b = Builder()
    x = Buffer("x", float32, index(32))
    y = Buffer("y", float32, index(32), access="out")
    thread = b.thread()
    with b.loop(0, turns * times, times, const(0, float32)) as loop:
        (total,) = loop.carried
        for _ in range(times):
            slot = b.alloc("slot", float32, 32, "shared")
            mine = b.let("multiply", b.load(x, thread), const(2, float32))
            b.store(slot, thread, b.let("add", mine, total) if carried else mine)
            b.effect("warp_barrier")
            other = b.load(slot, b.at("subtract", 31, thread))
            total = b.let("add", total, other)
        loop.yields(total)
    b.store(y, thread, loop.results[0])
    kernel = b.kernel("exchanging", [x, y], threads=32)
    (inner,) = [node for node in kernel.body if isinstance(node, For)]
    return kernel, inner


def names(statements):
    """Return a letter a statement: what it does, in order."""
    short = {Load: "load", Store: "store", Effect: "wait"}
    return [
        node.op if isinstance(node, Let) else short.get(type(node), "room")
        for node in statements
    ]


def changed(kernel, make):
    """Return a kernel with its loops made anew."""
    return type(kernel)(
        kernel.name,
        kernel.parameters,
        tuple(make(node) if isinstance(node, For) else node for node in kernel.body),
        kernel.threads,
    )


def ran(kernel, x):
    """Verify, run and return what every thread stored."""
    verify(kernel, "cuda")
    y = np.full(32, np.nan, np.float32)
    simt.run(kernel, {"x": x, "y": y}, 1)
    return y


def test_a_place_is_read_by_all_before_it_is_written_again():
    """One barrier a turn is a race from the second turn on; another ends it."""
    x = np.arange(32, dtype=np.float32)
    kernel, loop = exchanging(3)
    with pytest.raises(AssertionError, match="race"):
        ran(kernel, x)
    assert names(guarded(loop, WAIT).body)[-1] == "wait"
    safe = changed(kernel, lambda node: guarded(node, WAIT))
    assert ran(safe, x).tolist() == (x[::-1] * 6).tolist()


@pytest.mark.parametrize("times", [2, 3])
def test_a_turn_with_two_barriers_needs_no_more(times):
    """Each lies between the other's write and the next."""
    kernel, loop = exchanging(3, times=times)
    assert guarded(loop, WAIT).body == loop.body
    ran(kernel, np.ones(32, np.float32))


def test_what_is_written_first_and_read_last_waits_at_the_end():
    """Two barriers of other exchanges lie between, and none behind what is read."""
    b = Builder()
    x = Buffer("x", float32, index(32))
    y = Buffer("y", float32, index(32), access="out")
    thread = b.thread()
    with b.loop(0, 3, 1, const(0, float32), thread) as loop:
        total, place = loop.carried
        early_slot = b.alloc("slot", float32, 32, "shared")
        b.store(early_slot, thread, b.load(x, thread))
        b.effect("warp_barrier")
        late_slot = b.alloc("slot", float32, 32, "shared")
        b.store(late_slot, thread, total)
        b.effect("warp_barrier")
        other = b.load(late_slot, b.at("subtract", 31, thread))
        place = b.at("subtract", 31, place)
        taken = b.load(early_slot, place)
        loop.yields(b.let("add", other, taken), place)
    b.store(y, thread, loop.results[0])
    kernel = b.kernel("taken", [x, y], threads=32)
    (inner,) = [node for node in kernel.body if isinstance(node, For)]
    assert names(guarded(inner, WAIT).body)[-1] == "wait"
    values = np.arange(32, dtype=np.float32)
    with pytest.raises(AssertionError, match="race"):
        ran(kernel, values)
    made = changed(kernel, lambda node: guarded(early(node, WAIT), WAIT))
    assert ran(made, values).tolist() == (3 * values[::-1]).tolist()


def test_iterations_of_a_turn_share_a_barrier_for_what_they_do_early():
    """All loads and stores of four, one barrier, then the sums in order."""
    _, loop = exchanging(1, times=4)
    did = names(early(loop, WAIT).body)
    assert did[:4] == ["room"] * 4
    assert did.count("wait") == 1
    assert did.index("wait") > max(k for k, op in enumerate(did) if op == "store")
    assert did[-4:] == ["add"] * 4


def test_what_needs_a_carried_value_keeps_its_place_and_its_barriers():
    """Where every exchange needs one, nothing moves."""
    _, loop = exchanging(1, carried=True, times=3)
    assert early(loop, WAIT) is loop


@pytest.mark.parametrize("exchanged", [False, True])
def test_memory_that_a_turn_writes_is_read_where_it_was(exchanged):
    """What y holds is read behind its store; x is early where there is an exchange."""
    b = Builder()
    y = Buffer("y", float32, index(32), access="inout")
    x = Buffer("x", float32, index(32))
    thread = b.thread()
    with b.loop(0, 5, 1, const(1, float32)) as loop:
        (held,) = loop.carried
        b.store(y, thread, held)
        back = b.load(y, thread)
        more = b.load(x, thread)
        if exchanged:
            slot = b.alloc("slot", float32, 32, "shared")
            b.store(slot, thread, more)
            b.effect("warp_barrier")
            more = b.load(slot, b.at("subtract", 31, thread))
        loop.yields(b.let("add", back, more))
    kernel = b.kernel("back", [x, y], threads=32)
    (inner,) = [node for node in kernel.body if isinstance(node, For)]
    did = names(early(inner, WAIT).body)
    late = ["store", "load", "add"]
    assert did[-3:] == late if exchanged else did == ["store", "load", "load", "add"]
    made = changed(kernel, lambda node: guarded(early(node, WAIT), WAIT))
    assert ran(made, np.ones(32, np.float32)).tolist() == [5] * 32


def test_an_order_without_an_exchange_is_left_alone():
    """A compiler finds a place for what nothing holds."""
    b = Builder()
    x = Buffer("x", float32, index(32))
    with b.loop(0, 5, 1, const(1, float32)) as loop:
        (held,) = loop.carried
        twice = b.let("add", held, held)
        loop.yields(b.let("add", twice, b.load(x, loop.var)))
    (node,) = b.body
    assert early(node, WAIT) is node


def test_a_loop_around_others_keeps_its_order():
    """What a loop does inside is not looked through; nor one that carries nothing."""
    b = Builder()
    x = Buffer("x", float32, index(32))
    with b.loop(0, 2, 1, const(0, float32)) as outer:
        with b.loop(0, 2, 1) as inner:
            b.load(x, inner.var)
        outer.yields(outer.carried[0])
    (loop,) = b.body
    assert early(loop, WAIT) is loop
    assert early(loop.body[0], WAIT) is loop.body[0]

"""The parameters of a lowered kernel and what a launch puts into their slots."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.ir import loops as ir
from steelyard_kernels.ir.loops import Buffer, Const, Kernel, Var


class Slot(Struct, frozen=True):
    """Where a launch finds an argument.

    `kind` is "input" or "output" (an array's address, by `index`), "scalar" (a value,
    by `name`, encoded by the struct letter `code`), "extent" (the number `index`) or
    "tensor" (an input's array as bulk copies see it).
    """

    kind: str
    index: int = 0
    name: str = ""
    code: str = "q"
    tensor: ir.Tensor | None = None


class Lowered(Struct, frozen=True):
    """A kernel of the loop IR, its slots, and how many threads run it (0: all).

    On a GPU `threads` make a block, and a launch has a block for every `per_block` of
    what the last slot says, its runtime extent. `shared` are the bytes of a block's
    dynamic shared memory.
    """

    kernel: Kernel
    slots: tuple[Slot, ...]
    threads: int
    per_block: int = 0
    shared: int = 0


class Arguments(Struct, frozen=True):
    """The buffers and scalars of a program, by which lowering refers to them.

    `inputs` maps an input's index to its buffer, `outputs` are in order, `scalars`
    maps names; `order` and `slots` say how they are passed.
    """

    inputs: dict[int, Buffer]
    outputs: tuple[Buffer, ...]
    scalars: dict[str, Var]
    order: tuple[ir.Parameter, ...]
    slots: tuple[Slot, ...]


# How `steelyard_device.cpu.slot` encodes a runtime scalar.
_CODES = {"float64": "d", "int64": "q", "bool": "?"}


def arguments(program: Program, alignment: int = 0) -> Arguments:
    """Lay out a program's parameters: inputs, outputs, scalars; extents come after.

    An input that an output updates is one buffer; inputs that nothing reads or
    updates are not passed. `alignment` is what every output's address is known to be
    a multiple of, in bytes (0: its element's). Extents say this program's sizes.
    """
    read = {node.number for node in program.nodes}
    names = _Names()
    kept = _kept(program)
    updated = {o.updates for o in program.outputs if o.updates is not None}
    handed = [node.memory for node in program.nodes if isinstance(node, expr.Handed)]
    updated |= {each.index for each in handed if isinstance(each, expr.Input)}
    again = {o.updates for o in program.outputs if o.each.number in kept}

    def buffer(name: str, node: Node, align: int, access: str) -> Buffer:
        extent = Const(prod(node.shape), ir.INDEX)
        return Buffer(names.legal(name), node.dtype, extent, "global", align, access)

    inputs: dict[int, Buffer] = {}
    slots = []
    for node in program.inputs:
        written = node.index in updated
        if node.number in read or written:
            loaded = node.number in read or node.index in again
            access = ("inout" if loaded else "out") if written else "in"
            inputs[node.index] = buffer(node.name, node, alignment * written, access)
            slots.append(Slot("input", node.index, node.name))
    fresh: list[Buffer] = []
    outputs: list[Buffer] = []
    for place, output in enumerate(program.outputs):
        if output.updates is None:
            access = "inout" if output.each.number in kept else "out"
            fresh.append(buffer(output.name, output.value, alignment, access))
            slots.append(Slot("output", place, output.name))
        outputs.append(fresh[-1] if output.updates is None else inputs[output.updates])
    scalars = {
        node.name: Var(names.legal(node.name), ir.typed(node.dtype))
        for node in program.scalars
    }
    slots += [
        Slot("scalar", 0, node.name, _CODES[node.dtype.name])
        for node in program.scalars
    ]
    order: tuple[ir.Parameter, ...] = (*inputs.values(), *fresh, *scalars.values())
    return Arguments(inputs, tuple(outputs), scalars, order, tuple(slots))


def _kept(program: Program) -> set[int]:
    """Return the numbers of what one loop stacks and something reads again."""
    stacks = {
        n.number for n in program.nodes if isinstance(n, expr.Result) and n.stacks
    }
    return {
        arg.number
        for node in (program.nodes if stacks else ())
        if not isinstance(node, expr.Chains)
        for arg in expr.operands(node)
        if arg.number in stacks
    }


def side_by_side(slots: Sequence[Slot], program: Program) -> tuple[Slot, ...]:
    """Return the slots of all copies of a program: arrays of each, then all numbers.

    Arrays of the second copy are numbered, and named, behind those of the first.
    """
    if program.copies == 1:
        return tuple(slots)
    arrays = [slot for slot in slots if slot.kind not in {"scalar", "extent"}]
    numbers = [slot for slot in slots if slot not in arrays]
    found = []
    for copy in range(program.copies):
        for slot in arrays:
            output = slot.kind == "output"
            each = len(program.outputs if output else program.inputs)
            place = slot.index + copy * each
            found.append(replace(slot, index=place, name=f"{slot.name[0]}{place}"))
    return *found, *numbers


class _Names:
    """Gives every parameter a name of its own, apart from the emitters' own names."""

    def __init__(self) -> None:
        self.taken = {
            "args",
            "ticket",
            "index",
            "count",
            "entry",
            "rows",
            "extent",
            "blocks",
        }

    def legal(self, name: str) -> str:
        """Return the name, with underscores behind it while it is taken."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def extent_slot(value: int) -> Slot:
    """Return the slot of an extent that is known when the kernel is bound."""
    return Slot("extent", value, "extent")

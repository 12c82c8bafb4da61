"""CUDA C++ of effects and of products of tiles: barriers, asynchronous copies, calls."""

from __future__ import annotations

from collections.abc import Callable

from steelyard_kernels.emit import cuda_tiles, cuda_warps
from steelyard_kernels.emit.cuda_values import Values
from steelyard_kernels.errors import Unsupported
from steelyard_kernels.ir.loops import Buffer, Const, Effect, Multiply, Operand, Tensor

COPY_BYTES = {4: "ca", 8: "ca", 16: "cg"}  # of cp.async; 16 may go round the L1


class Effects:
    """Emits effects: values by `w`, buffers by the names that they have in the text."""

    __slots__ = ("buffers", "w")

    def __init__(self) -> None:
        self.w = Values()
        self.buffers: dict[str, str] = {}

    def effect(self, node: Effect) -> None:
        """Emit an effect by its rule; without one it is a call."""
        EFFECTS.get(node.op, Effects.called)(self, node)

    def called(self, node: Effect) -> None:
        """Call the function of an effect's name; a buffer with its index is an address."""
        given: list[str] = []
        pending = list(node.args)
        while pending:
            arg = pending.pop(0)
            if isinstance(arg, Buffer):
                given.append(f"shared_address({self.element(arg, pending.pop(0))})")
            elif isinstance(arg, Tensor):
                given.append(f"&{self.buffers[arg.name]}")
            else:
                text, uniform = self.w.ref(arg)
                lanes = [""] if uniform else [f"_{k}" for k in range(arg.type.lanes)]
                given += [f"{text}{lane}" for lane in lanes]
        self.w.helpers |= {
            node.op,
            "shared_address",
            *cuda_tiles.CALLS.get(node.op, ()),
        }
        self.w.do(f"{node.op}({', '.join(given)});")

    def element(self, buffer: Buffer, index: Operand | Buffer | Tensor) -> str:
        """Return the address of a buffer's element."""
        return f"{self.buffers[buffer.name]} + {self.w.ref(_operand(index))[0]}"

    def multiply(self, node: Multiply) -> None:
        """Call the product of tiles of these forms."""
        tiles = [self.element(x.buffer, x.index) for x in (*node.rows, node.columns)]
        sums, more = self.buffers[node.sums.name], self.w.ref(node.more)[0]
        spell = cuda_warps.multiply if node.by_warp else cuda_tiles.multiply
        line, *helpers = spell(node, sums, tiles, more)
        self.w.helpers |= {"shared_address", *helpers}
        self.w.do(line)

    def stated(self, node: Effect) -> None:
        """Spell an effect whose number is a part of its instruction."""
        held = [
            f"{self.buffers[each.name]}[{k}]"
            for each in node.args
            if isinstance(each, Buffer) and isinstance(each.extent, Const)
            for k in range(int(each.extent.value))
        ]
        number = node.args[-1]
        value = int(number.value) if isinstance(number, Const) else 0
        kinds = {each.dtype.kind for each in node.args if isinstance(each, Buffer)}
        letter = "r" if "int" in kinds else "f"
        self.w.do(cuda_tiles.stated(node.op, value, held, letter))

    def barrier(self, node: Effect) -> None:
        """Wait for the other threads of a block, or of a warp."""
        self.w.do("__syncthreads();" if node.op == "barrier" else "__syncwarp();")

    def copy_async(self, node: Effect) -> None:
        """Start a copy, with zeros behind what it says are some of its elements."""
        to, to_index, source, index, count, some = node.args
        assert isinstance(to, Buffer)
        assert isinstance(source, Buffer)
        size = int(getattr(count, "value", 0)) * to.dtype.bytes
        if size not in COPY_BYTES:
            raise Unsupported(
                f"an asynchronous copy of {size or 'unknown'} bytes does not exist on "
                f"target cuda; copy 4, 8 or 16 bytes, a constant, at a time."
            )
        w = self.w
        shared, far = self.element(to, to_index), self.element(source, index)
        less, kind = some != count, COPY_BYTES[size]
        how = f"{size}, %2" if less else f"{size}"
        w.do(f'asm volatile("cp.async.{kind}.shared.global [%0], [%1], {how};"')
        near = f'"r"((unsigned)__cvta_generic_to_shared({shared}))'
        given = f'{near}, "l"(__cvta_generic_to_global({far}))'
        if less:
            given += f', "r"({to.dtype.bytes} * (int){w.ref(_operand(some))[0]})'
        w.do(f'  :: {given} : "memory");')

    def take_turn(self, node: Effect) -> None:
        """Take the next number of a counter in memory, which all blocks count by."""
        to, index, words, at = node.args
        assert isinstance(to, Buffer)
        assert isinstance(words, Buffer)
        self.w.helpers.add(node.op)
        place, count = self.element(to, index), self.element(words, at)
        self.w.do(f"*({place}) = take_turn({count});")

    def hand_over(self, node: Effect) -> None:
        """Store a value where other blocks wait for it."""
        words, at, value = node.args
        assert isinstance(words, Buffer)
        self.w.helpers.add(node.op)
        given = self.w.ref(_operand(value))[0]
        self.w.do(f"hand_over({self.element(words, at)}, {given});")

    def take_over(self, node: Effect) -> None:
        """Wait for values that other blocks store."""
        to, words, at, *rest = node.args
        assert isinstance(to, Buffer)
        assert isinstance(words, Buffer)
        self.w.helpers.add(node.op)
        step, count = [self.w.ref(_operand(each))[0] for each in rest]
        source = self.element(words, at)
        self.w.do(f"take_over({self.buffers[to.name]}, {source}, {step}, {count});")

    def copy_wait(self, node: Effect) -> None:
        """Wait until at most so many copies are under way."""
        (left,) = node.args
        if not isinstance(left, Const):
            raise Unsupported(
                "waiting for an unknown count of copies does not exist on target cuda; "
                "give copy_wait a constant."
            )
        count = int(left.value)
        self.w.do(f'asm volatile("cp.async.wait_group {count};" ::: "memory");')


def _operand(argument: Operand | Buffer | Tensor) -> Operand:
    assert not isinstance(argument, Buffer | Tensor)
    return argument


EFFECTS: dict[str, Callable[[Effects, Effect], None]] = {
    "barrier": Effects.barrier,
    "warp_barrier": Effects.barrier,
    "copy_async": Effects.copy_async,
    "copy_wait": Effects.copy_wait,
    "hand_over": Effects.hand_over,
    "take_over": Effects.take_over,
    "take_turn": Effects.take_turn,
    **dict.fromkeys(cuda_tiles.STATED, Effects.stated),
}

"""Which values of a program lie in memory between launches.

Nodes are visited in evaluation order. Of each it is known which reductions, of those
that no memory holds, a kernel would have to compute for it. What cannot be computed in
one kernel is cut: a value between is stored, the last one of a product's epilogue, or
else the smallest. Elementwise values are computed again by each kernel that reads them,
but for factors of tensor cores, which multiply what lies in memory alone, products that
are read at several places, and long computations that padding would repeat. A loop is a
launch of its own, which reads memory and what is small enough for registers, or its body
is launches, which read memory alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias, TypeGuard

from steelyard_kernels.expression import expr
from steelyard_kernels.expression.expr import Node, Program
from steelyard_kernels.expression.structure import closure, users
from steelyard_kernels.nest.axes import source, stored
from steelyard_kernels.nest.carried.registers import MOST_ELEMENTS
from steelyard_kernels.nest.carried.tensor import spelled
from steelyard_kernels.plan.products import factors_of, is_product, multiplied, tiles_of
from steelyard_kernels.schedule.gpu import Gpu
from steelyard_kernels.schedule.legality import LINES_BYTES
from steelyard_kernels.schedule.lines import kinds_of

LANES: Final = 8
MOST_BEFORE: Final = 2000
"""Statements, of so many lanes, before a loop in registers: so many build in half a second."""
AGAIN: Final = 32
"""Operations behind an element that take longer than to write and to read it."""
MOST_AGAIN: Final = 1 << 16  # that padding repeats: about a launch of two cores
PADDED: Final = "padding would compute it everywhere"
MOVED: Final = -1  # beside reductions: their values are read at other places
NOTHING: Final[Mapping[int, str]] = MappingProxyType({})
Needs: TypeAlias = frozenset[int]
Walk: TypeAlias = expr.Reduce | expr.Dot | expr.Along | expr.Segments
# Asked of each node, several times: see `axes`.
_SCATTERED: Final = (expr.Gather, expr.Handed, expr.Merge)
_MOVED: Final = (expr.View, expr.Broadcast, expr.Reshape, expr.Gather)


def nbytes(node: Node) -> int:
    """Return the bytes of a node's elements."""
    return prod(node.shape) * node.dtype.bytes


def is_walk(node: Node) -> TypeGuard[Walk]:
    """Say whether a node walks its operands: a kernel should compute it once."""
    return isinstance(node, Walk) and uncopied(node) is node


def uncopied(node: Node) -> Node:
    """Return what a node is a copy of, whose elements are taken; itself if it is none."""
    return node.arg if isinstance(node, expr.Along) and node.op == "copy" else node


def is_still(node: Node) -> bool:
    """Say whether a node has its operand's rows where they are, or one for many."""
    if isinstance(node, expr.Reshape):
        return _plain(node.shape) == _plain(node.arg.shape)
    if isinstance(node, expr.View):
        terms = [each.terms for each in node.index if each.terms or each.constant]
        axes = [term for each in terms for term, step in each if step == 1]
        shifted = any(each.terms and each.constant for each in node.index)
        alone = all(len(each) == 1 for each in terms) and not shifted
        known = [axis for axis in axes if isinstance(axis, int)]
        kept = [n for n in node.arg.shape if n > 1]
        whole = kept == [node.shape[axis] for axis in known]
        return alone and whole and known == sorted(known) and len(axes) == len(terms)
    return not isinstance(node, _SCATTERED)


def spreads(node: Node) -> bool:
    """Say whether a node is better made again of its operand: a view, a wider dtype."""
    if isinstance(node, expr.Cast):
        return node.dtype.bytes > node.arg.dtype.bytes
    if isinstance(node, expr.View) and isinstance(node.arg, expr.Along):
        return nbytes(node) >= nbytes(node.arg)  # of an order the rest may not be found
    copies = uncopied(node) is not node
    return copies or isinstance(node, _MOVED)


def _joined(node: Node) -> Node | None:
    """Return the permuted value whose axes a reshape makes one: no strides read that."""
    if not isinstance(node, expr.Reshape) or is_still(node):
        return None
    arg = node.arg
    permuted = isinstance(arg, expr.View) and prod(arg.shape) == prod(arg.arg.shape)
    return arg if permuted else None


def _plain(shape: expr.Shape) -> list[int]:
    return [n for n in shape if n > 1]


class Cuts:
    """The stored values of a program: `reasons` says of each, by number, why.

    `first` are some that are known to be stored, `repeated` what loops read whose bodies
    are launches, by their ids. `late` are those that were found behind
    values that are made of them: known before, they may spare these.
    """

    def __init__(
        self,
        program: Program,
        first: Mapping[int, str] = NOTHING,
        *,
        gpu: Gpu | None = None,
        repeated: Mapping[int, Sequence[Node]] = MappingProxyType({}),
    ) -> None:
        self.program, self.gpu = program, gpu
        self._repeated = repeated
        self.nodes = {node.number: node for node in program.nodes}
        self._places = {number: place for place, number in enumerate(self.nodes)}
        self.reasons, self.late = dict(first), dict[int, str]()
        self._uses = users(program.nodes)
        self._needs: dict[int, Needs] = {n: frozenset({n}) for n in first}
        self._at: dict[int, Needs] = {}  # where nodes have elements of a product
        self._loops: dict[int, int] = {}  # their first results' numbers, by their ids
        products = [node for node in program.nodes if is_product(node)]
        self.products = {node.number for node in products}
        self._multiplied = {  # which belong to the sums of them
            multiplied(node).number
            for node in products
            if isinstance(node, expr.Reduce)
        }
        for node in program.nodes:
            self._visit(node)
        for output in program.outputs:
            value = stored(output)
            self.reasons.setdefault(value.number, f"output {output.name}")

    def needs(self, node: Node) -> Needs:
        """Return the reductions that a kernel computes to give a node."""
        return self._needs[node.number]

    def seen(self, node: Node) -> Needs:
        """Return those that reading a node takes: none of what is stored."""
        return frozenset() if node.number in self.reasons else self._needs[node.number]

    def _read(self, node: Node) -> Needs:
        if isinstance(node, expr.Handed):
            return frozenset()  # a block computes what it hands over beside all else
        found = frozenset[int]().union(*map(self.seen, expr.operands(node)))
        return found if is_still(node) or not found else found | {MOVED}

    def _place(self, node: Node) -> Needs:
        """Note and return at which places a node has elements of a product."""
        every = [e for e in expr.operands(node) if e.number not in self.reasons]
        found = frozenset[int]().union(*[self._at.get(e.number, ()) for e in every])
        if is_walk(node):
            found = frozenset({node.number} & self.products)
        elif found and not is_still(node):
            found = frozenset({node.number})
        self._at[node.number] = found
        return found

    def _visit(self, node: Node) -> None:
        self._place(node)
        if isinstance(node, expr.Result):
            self._loop(node)
            return
        if is_walk(node):
            self._reduce(node)
            return
        if isinstance(node, expr.Handed):
            self._store([node.memory], node, "blocks hand totals over in it")
        elif self.gpu and isinstance(node, expr.View):
            lines = self._lines_of(node)
            self._store(lines, node, "one element of each line is read")
        elif isinstance(node, expr.View):
            self._store(self._again(node), node, PADDED)
        elif isinstance(node, expr.Gather | expr.Merge):
            taken = uncopied(node.arg)
            computed = [] if source(taken) is not None else [taken]
            self._store(computed, node, "elements of it are gathered")
        read = self._read(node)
        if isinstance(node, expr.Apply) and node.number not in self._multiplied:
            if not self.joint(read):
                self._part(node)
            if len(self._place(node)) > 1:  # each would be a product of its own
                products = [self.nodes[n] for n in self.products & self._read(node)]
                self._store(products, node, f"{node.op} reads several places of it")
            read = self._read(node)
        self._needs[node.number] = read

    def _again(self, node: expr.View) -> list[Node]:
        """Return what a padded view, as a stack has of its parts, had better read."""
        arg, more = node.arg, prod(node.shape) - prod(node.arg.shape)
        while spreads(arg):
            (arg,) = expr.operands(arg)[:1]
        if more <= 0 or not isinstance(arg, expr.Apply) or not node.guards:
            return []
        known = {n for n, reason in self.reasons.items() if reason != PADDED}
        roots: list[Node] = [arg]
        behind = closure(
            roots,
            lambda n: () if n.number in known or is_walk(n) else expr.operands(n),
        )
        times = sum(isinstance(each, expr.Apply) for each in behind)
        return [arg] if times >= AGAIN and times * more > MOST_AGAIN else []

    def _lines_of(self, node: expr.View) -> list[Node]:
        """Return the lines of which a view has one element, which no thread keeps."""
        every = zip(node.index, node.arg.shape, strict=True)
        extents = {
            extent
            for each, extent in every
            if all(node.shape[axis] == 1 for axis in each.axes)
        }
        lines = [self.nodes[n] for n in self.seen(node.arg) - {MOVED}]
        return [
            line
            for line in lines
            if isinstance(line, expr.Along)
            and (extent := line.shape[line.axis]) in extents
            and extent * sum(k.bytes for k in kinds_of(line)) > LINES_BYTES["cuda"]
        ]

    def _reduce(self, node: Walk) -> None:
        """Cut what a reduction reads, unless one kernel computes all of it."""
        if isinstance(node, expr.Segments) and source(node.starts) is None:
            self._store([uncopied(node.starts)], node, "segments begin there")
        read, product = self._read(node), factors_of(node)
        own = frozenset({node.number})
        if read and (product or not self.joint(read | own)):
            why = "a product reads it" if product else f"{_of(node)} reads it"
            for arg in product or expr.operands(node):
                self._store(self._smallest(arg, whole=bool(product)), node, why)
            read = frozenset()
        if self.gpu and product:
            arrays = tiles_of(node, self.gpu, self.reasons)
            computed = [each for each in arrays if not isinstance(each, expr.Input)]
            self._store(computed, node, "a product's tiles read it")
        self._needs[node.number] = read | own

    def _loop(self, node: expr.Result) -> None:
        """Store what a loop gives, and what it reads unless that is little work.

        Of one whose body is launches it is known what is stored, by its id.
        """
        before = self._repeated.get(id(node.loop))
        for arg in before or ():
            self._store([arg], node, "a loop reads it")
        for arg in expr.operands(node) if before is None else ():
            if isinstance(arg, expr.Result | expr.Input):
                continue
            large = [arg] if self._is_large(arg) else []
            apart = self._smallest(arg, whole=False) if self.seen(arg) else large
            self._store(apart, node, "a loop reads it")
        first = self._loops.setdefault(id(node.loop), node.number)
        self.reasons.setdefault(node.number, "a loop gives it")
        self._needs[node.number] = frozenset({first})

    def _is_large(self, node: Node) -> bool:
        """Say whether a node, or what it is computed of, is much in registers, or text."""
        pending, seen, text = [node], set[int](), 0
        while pending:
            node = pending.pop()
            if (
                isinstance(node, expr.Input)
                or node.number in seen
                or node.number in self.reasons
            ):
                continue
            seen.add(node.number)
            text += spelled(node, LANES)
            if prod(node.shape) > MOST_ELEMENTS or text > MOST_BEFORE:
                return True
            pending += expr.operands(node)
        return False

    def _part(self, node: expr.Apply) -> None:
        """Store operands until the rest can be computed with a node in one kernel."""
        last = max(node.args, key=self._weight)
        for arg in sorted(node.args, key=self._weight):
            if self.joint(self._read(node)) or arg is last:
                return
            self._store(self._smallest(arg, whole=False), node, f"{node.op} reads it")

    def _weight(self, node: Node) -> tuple[bool, int]:
        found = self.seen(node) - {MOVED}
        return not self.products.isdisjoint(found), max(found, default=-1)

    def joint(self, needs: Needs) -> bool:
        """Say whether one kernel computes these reductions, each once."""
        if len(needs - {MOVED}) < 2:
            return True
        if MOVED in needs or not self.products.isdisjoint(needs):
            return False
        first, *rest = [self.nodes[number] for number in needs]
        return isinstance(first, expr.Reduce) and all(
            isinstance(each, expr.Reduce)
            and each.axes == first.axes
            and each.arg.shape == first.arg.shape
            for each in rest
        )

    def _store(self, nodes: Iterable[Node], reader: Node, why: str) -> None:
        """Store values, and find again what the nodes behind them need."""
        new = [node for node in nodes if node.number not in self.reasons]
        if not new:
            return
        made = frozenset[int]().union(*[self._needs[n] for n in self.reasons])
        self.late |= {n.number: why for n in new if n.number in made}
        self.reasons |= dict.fromkeys([node.number for node in new], why)
        place = self._places[min(node.number for node in new)]
        for node in self.program.nodes[place + 1 : self._places[reader.number]]:
            if isinstance(node, expr.Result):
                continue  # it reads memory alone
            own = {node.number} if is_walk(node) else frozenset()
            self._needs[node.number] = self._read(node) | own
            self._place(node)

    def _smallest(self, root: Node, *, whole: bool) -> list[Node]:
        """Return the values to store that let a node be read without reductions.

        Those of the fewest bytes; for a product the `whole` factor, since its tiles are
        read often. Views and widening casts are read from where they are made of, and what
        follows from a product that others need too is computed again.
        """
        if not self.seen(root):
            return []
        chosen: dict[int, frozenset[int]] = {}
        common = frozenset[int]().union(*[self._needs[n] for n in self.reasons])
        behind = closure([root], lambda n: expr.operands(n) if self.seen(n) else ())
        uses, joined = users(behind), set(map(_joined, behind))
        for node in behind:
            if not self.seen(node):
                chosen[node.number] = frozenset()
            elif is_walk(node):
                chosen[node.number] = frozenset({node.number})
            else:
                below = [
                    chosen.get(arg.number, frozenset()) for arg in expr.operands(node)
                ]
                rest = frozenset[int]().union(*below)
                size = sum(nbytes(self.nodes[number]) for number in rest)
                if whole and isinstance(node, expr.Apply):
                    size = max(size, *[prod(a.shape) for a in node.args], 1)
                    size *= node.dtype.bytes
                alone = frozenset({node.number})
                again = spreads(node) and node not in joined
                shared = not self.products.isdisjoint(rest & common)
                fewer = not again and nbytes(node) + shared <= size
                chosen[node.number] = alone if fewer else rest
            also = self._uses.get(node.number, 0) > uses.get(node.number, 0)
            if also and (is_walk(node) or spreads(node)):
                common |= chosen[node.number]
        return [self.nodes[number] for number in sorted(chosen[root.number])]


def _of(node: Node) -> str:
    if isinstance(node, expr.Segments):
        return f"sum of segments along axis {node.axis}"
    if isinstance(node, expr.Along):
        return f"{node.op} along axis {node.axis}"
    return (
        f"{node.op} over axes {node.axes}"
        if isinstance(node, expr.Reduce)
        else "product"
    )

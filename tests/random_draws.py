"""Draws the programs of `random_programs`, of four families by what they compute with."""

from __future__ import annotations

import random

from intervals import COMPARED, FLOATS
from random_loops import Loops
from random_programs import (
    BOOL_2,
    DTYPES,
    EXTENTS,
    FLOAT_1,
    FLOAT_2,
    INT_1,
    INT_2,
    INTEGERS,
    NUMBERS,
    REDUCED,
    SMALL,
    Block,
    Program,
    joined,
    size,
)

LINES = 9  # one of so many programs is of lines
MOST_SMALL = 200  # elements of a value that registers hold
FAMILIES = {"elements": 7, "rows": 7, "small": 4, "loops": 3, "chains": 3}


def generated(seed):
    """Return one random program; the same for a seed each time."""
    draw = Draw(seed)
    if seed % LINES == 0:  # the others are those they were before there were lines
        return draw.lines()
    (family,) = draw.rng.choices(list(FAMILIES), FAMILIES.values())
    return getattr(draw, family)()


class Draw(Loops):
    """Draws one program."""

    def __init__(self, seed):
        self.seed = seed
        self.rng = random.Random(seed)
        self.most = 10**6
        self.names = []
        self.block = Block([])

    def one(self, choices):
        """Return one of the choices; None where there are none."""
        choices = list(choices)
        return self.rng.choice(choices) if choices else None

    def chance(self, share):
        """Say yes so often."""
        return self.rng.random() < share

    # The families.

    def elements(self):
        """One pass over elements, broadcast."""
        dtype = self.one(DTYPES)
        full = tuple(self.rng.choices(EXTENTS, k=self.rng.randint(0, 3)))
        while size(full) > 20_000:
            full = full[1:]
        kinds = [(full, dtype)]
        kinds += [self._operand(full, dtype) for _ in range(self.rng.randint(0, 3))]
        self._parameters(kinds)
        for _ in range(self.rng.randint(1, 8)):
            self._elementwise(self.block)
        return self._program(lambda shape: joined(shape, full) == full)

    def rows(self):
        """Reductions of rows, and what is made of them."""
        dtype = self.one(DTYPES)
        outer = tuple(self.rng.choices((0, 1, 1, 2, 3, 5, 8), k=self.rng.randint(0, 2)))
        width = self.one((*EXTENTS[1:], 257)) if self.chance(0.9) else 8
        square = bool(outer) and self.chance(0.4)  # has columns like rows
        if square:
            outer = (*outer[:-1], width)
        full = (*outer, width)
        while size(full) > 20_000:
            full = full[1:]
        kinds = [(full, dtype)]
        kinds += [self._operand(full, dtype) for _ in range(self.rng.randint(0, 3))]
        kinds += [(full[:-1], dtype)] if square else []
        self._parameters(kinds)
        for _ in range(self.rng.randint(0, 3)):
            self._elementwise(self.block)
        if self.chance(0.3):
            self._product(self.block, width)
        for _ in range(self.rng.randint(1, 3)):
            place = self.one(
                self.block.of(lambda s, d: len(s) and s[-1] == width and d != "bool")
            )
            self._reduce(self.block, place, keep=self.chance(0.75))
            for _ in range(self.rng.randint(0, 2)):
                self._elementwise(self.block)
        allowed = {full, (*full[:-1], 1), full[:-1]}
        return self._program(lambda shape: shape in allowed)

    def lines(self):
        """Run totals and sort along axes, and compute with what that gives."""
        dtype = self.one(("float32", "float32", "float64", "float16", "int32", "uint8"))
        rank = self.rng.randint(1, 3)
        full = tuple(self.rng.choices((1, 2, 3, 5, 8, 17, 33, 70), k=rank))
        while size(full) > 5_000:
            full = full[1:]
        self._parameters([(full, dtype), self._operand(full, dtype)])
        block, at = self.block, 0
        if self.chance(0.5):  # of what is known exactly
            axis = self.rng.randrange(len(full))
            at = block.add([(full, dtype)], "sort", 0, axis, self.chance(0.5))
        wide = {"int32": "int64", "uint8": "uint64"}.get(dtype, dtype)
        for _ in range(self.rng.randint(1, 2)):
            axis = self.rng.randrange(len(full))
            at = block.add([(full, wide)], "running", at, axis)
            for _ in range(self.rng.randint(0, 2)):
                self._elementwise(block)
        return self._program(lambda shape: shape == full)

    def small(self):
        """Transposes, reshapes, rows and products of small values."""
        self.most = MOST_SMALL
        dtype = self.one(("float32", "float32", "float64", "float16", "bfloat16"))
        self._parameters(
            [(self._small(), dtype) for _ in range(self.rng.randint(1, 3))]
        )
        for _ in range(self.rng.randint(2, 7)):
            self._any(self.block)
        return self._program(lambda shape: True)

    def loops(self):
        """Loops that carry small values."""
        self.most = MOST_SMALL // 2
        dtype = self.one(("float32", "float32", "float64", "bfloat16"))
        kinds = [(self._small(), dtype) for _ in range(self.rng.randint(1, 3))]
        self._parameters(kinds)
        for _ in range(self.rng.randint(1, 2)):
            self._loop(self.block, depth=1)
            self._any(self.block)
        return self._program(lambda shape: True)

    def chains(self):
        """Run loops, or small values, in many chains side by side."""
        count = self.one((1, 2, 3, 8, 17))
        program = self.loops() if self.chance(0.7) else self.small()
        axes = [self.chance(0.7) for _ in program.names]
        axes[self.rng.randrange(len(axes))] = True
        update = self.one(self._updates_of_unmapped(axes))
        if update:
            count = update[0]
        shapes = [
            (count, *shape) if axis else shape
            for shape, axis in zip(program.shapes, axes, strict=True)
        ]
        outputs = {
            name if not name.startswith("p") else f"q{place}": value
            for place, (name, value) in enumerate(program.outputs.items())
        }
        if update:
            outputs[update[1]] = update[2]
        kinds = self.block.kinds
        for name, value in list(outputs.items()):
            shape, dtype = kinds[value]
            same = [
                given
                for given, s, d in zip(
                    program.names, shapes, program.dtypes, strict=True
                )
                if s == (count, *shape) and d == dtype and given not in outputs
            ]
            if same and self.chance(0.7):
                outputs[self.one(same)] = outputs.pop(name)
        program.shapes, program.axes, program.outputs = shapes, axes, outputs
        return program

    def _updates_of_unmapped(self, axes):
        """Return how many chains may update which unmapped parameter by what."""
        return [
            (shape[0], name, place)
            for name, (shape, dtype), axis in zip(
                self.names, self.given, axes, strict=True
            )
            for place in self.block.of(lambda s, d, k=(shape[1:], dtype): (s, d) == k)
            if not axis and shape and shape[0] and place >= len(axes)
        ]

    # Their parts.

    def _small(self):
        shape = tuple(self.rng.choices(SMALL, k=self.rng.randint(1, 3)))
        while size(shape) > self.most:
            shape = shape[1:]
        return shape

    def _operand(self, full, dtype):
        shape = tuple(1 if self.chance(0.4) else extent for extent in full)
        shape = shape[self.rng.randint(0, len(shape)) :] if self.chance(0.6) else shape
        if self.chance(0.5):
            shape = full
        if dtype in FLOATS and self.chance(0.15):
            dtype = self.one(("float32", "float64", dtype))
        return shape, dtype

    def _parameters(self, kinds):
        self.names = [f"p{place}" for place in range(len(kinds))]
        self.block.kinds += kinds
        self.given = list(kinds)

    def _program(self, fits):
        """Return what is drawn, with some of its values as outputs, some in place."""
        block = self.block
        places = block.of(lambda s, d: fits(s) and size(s) <= self.most)
        made = [place for place in places if place >= len(self.names)]
        chosen = dict.fromkeys(made[-1:] or places[-1:])
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            chosen[self.one(places)] = None
        outputs = {}
        for number, place in enumerate(chosen):
            same = [
                name
                for name, kind in zip(self.names, self.given, strict=True)
                if kind == block.kinds[place] and name not in outputs
            ]
            name = self.one(same) if same and self.chance(0.6) else f"o{number}"
            outputs[name] = place
        shapes, kinds = zip(*self.given, strict=True)
        return Program(self.seed, self.names, list(shapes), list(kinds), block, outputs)

    def _any(self, block):
        """Add one step of any kind but a loop."""
        kind = self.one(("elements", "elements", "change", "reduce", "dot", "row"))
        if kind == "change":
            self._change(block)
        elif kind == "reduce":
            place = self.one(block.of(lambda s, d: s and 0 not in s and d != "bool"))
            self._reduce(block, place, keep=self.chance(0.5))
        elif kind == "dot":
            self._dot(block)
        elif kind == "row":
            place = self.one(block.of(lambda s, _: s and s[0] > 0))
            if place is not None:
                shape, dtype = block.kinds[place]
                index = self.rng.randrange(-shape[0], shape[0])
                block.add([(shape[1:], dtype)], "row", place, index)
        else:
            self._elementwise(block)

    def _elementwise(self, block):
        """Add an operation of values that broadcast, or with a number."""
        place = self.one(block.of(lambda s, _: size(s) <= self.most))
        shape, dtype = block.kinds[place]
        if dtype == "bool":
            self._of_bool(block, place)
            return
        is_float = dtype in FLOATS
        pick = self.rng.random()
        if pick < 0.25:
            op = self.one(FLOAT_1 if is_float else INT_1)
            block.add([(shape, dtype)], "apply", op, (place,))
        elif pick < 0.4:
            op = self.one(FLOAT_2 if is_float else INT_2)
            number = self.one(
                NUMBERS if is_float else (2, 3, 1 if dtype[0] == "u" else -1, 7)
            )
            block.add([(shape, dtype)], "number", op, place, number, self.chance(0.5))
        elif pick < 0.5:
            wanted = self.one(tuple(FLOATS) if is_float else INTEGERS)
            block.add([(shape, wanted)], "cast", place, wanted)
        else:
            other = self._partner(block, *block.kinds[place])
            shape = joined(shape, block.kinds[other][0])
            args = (place, other) if self.chance(0.5) else (other, place)
            if pick < 0.6:
                block.add([(shape, "bool")], "apply", self.one(COMPARED), args)
                return
            ops = FLOAT_2 if is_float else INT_2
            block.add([(shape, dtype)], "apply", self.one(ops), args)

    def _product(self, block, width):
        """Add a product of rows or columns, and its sum."""
        wide = block.of(lambda s, d: s[-1:] == (width,) and d in FLOATS)
        place = self.one(wide)
        if place is not None:
            other = self._partner(block, *block.kinds[place])
            shape, dtype = block.kinds[place]
            shape = joined(shape, block.kinds[other][0])
            made = block.add([(shape, dtype)], "apply", "multiply", (place, other))
            self._reduce(block, made, keep=self.chance(0.5))

    def _partner(self, block, shape, dtype):
        """Return a value of a dtype (None: any number's) that broadcasts with a shape."""

        def fits(s, d):
            both = joined(shape, s)
            alike = d == dtype if dtype else d != "bool"
            return alike and both is not None and size(both) <= self.most

        return self.one(block.of(fits))

    def _of_bool(self, block, place):
        shape, _ = block.kinds[place]
        pick = self.rng.random()
        if pick < 0.2:
            block.add([(shape, "bool")], "apply", "logical_not", (place,))
        elif pick < 0.4:
            other = self._partner(block, *block.kinds[place])
            both = joined(shape, block.kinds[other][0])
            op = self.one(BOOL_2)
            block.add([(both, "bool")], "apply", op, (place, other))
        elif pick < 0.5:
            block.add([(shape, "float32")], "cast", place, "float32")
        else:
            a = self._partner(block, shape, None)
            if a is not None:
                of_a, dtype = block.kinds[a]
                b = self._partner(block, joined(shape, of_a), dtype)
                both = joined(shape, of_a, block.kinds[b][0])
                block.add([(both, dtype)], "apply", "where", (place, a, b))

    def _reduce(self, block, place, *, keep):
        if place is None:
            return
        shape, dtype = block.kinds[place]
        op = self.one(REDUCED if dtype in FLOATS else ("sum", "max", "min"))
        if shape[-1] == 0:
            return
        wide = "uint64" if dtype[0] == "u" else "int64"
        made = wide if dtype in INTEGERS and op == "sum" else dtype
        kept = (*shape[:-1], 1) if keep else shape[:-1]
        block.add([(kept, made)], "reduce", op, place, keep)

    def _change(self, block):
        """Add a transpose, a part, padding, a reshape or a broadcast."""
        pick = self.rng.random()
        if pick < 0.25:
            self._part(block)
            return
        if pick < 0.5:
            place = self.one(block.of(lambda s, _: len(s) >= 2))
            if place is not None:
                shape, dtype = block.kinds[place]
                turned = (*shape[:-2], shape[-1], shape[-2])
                block.add([(turned, dtype)], "transpose", place)
            return
        place = self.one(block.of(lambda s, _: bool(s)))
        if place is None:
            return
        shape, dtype = block.kinds[place]
        if pick < 0.8:
            flat = (size(shape),) if self.chance(0.5) else shape[::-1]
            block.add([(flat, dtype)], "reshape", place, flat)
        elif size(shape) * 2 <= self.most:
            block.add([((2, *shape), dtype)], "broadcast", place, (2, *shape))

    def _part(self, block):
        """Add some rows, in either order, or rows of zeros around all."""
        place = self.one(block.of(lambda s, _: bool(s)))
        if place is None:
            return
        (count, *rest), dtype = block.kinds[place]
        if self.chance(0.3) and (count + 3) * size(rest) <= self.most:
            block.add([((count + 3, *rest), dtype)], "pad", place, (1, 2))
            return
        step = self.one((1, 2, -1, -2))
        ends = sorted(self.rng.choices(range(count + 1), k=2))
        rows = slice(*(ends if step > 0 else ends[::-1]), step)
        if step < 0 and rows.stop == 0:
            rows = slice(rows.start, None, step)
        kept = len(range(count)[rows])
        block.add([((kept, *rest), dtype)], "part", place, rows)

    def _dot(self, block):
        right = self.one(block.of(lambda s, d: len(s) == 2 and d in FLOATS))
        if right is None:
            return
        (inner, columns), dtype = block.kinds[right]
        left = self.one(
            block.of(
                lambda s, d: (
                    d == dtype
                    and s[-1:] == (inner,)
                    and len(s) <= 2
                    and size(s[:-1]) * columns * max(1, inner) <= 4 * self.most
                )
            )
        )
        if left is not None:
            shape = (*block.kinds[left][0][:-1], columns)
            block.add([(shape, dtype)], "dot", left, right)

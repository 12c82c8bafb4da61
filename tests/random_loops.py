"""Draws the loops of random programs: what they carry, read by row and stack."""

from __future__ import annotations

from intervals import FLOATS
from random_programs import Block, size


class Loops:
    """Steps that are loops, for what draws all other steps."""

    def _loop(self, block, depth):
        """Add a loop: a scan over rows, or so many turns, or until a counter is high."""
        floats = block.of(lambda s, d: d in FLOATS and size(s) <= self.most)
        inits = [self.one(floats) for _ in range(self.rng.randint(1, 2))]
        carried = [block.kinds[k] for k in inits]
        rows = block.of(lambda s, _: bool(s) and s[0] > 0)
        kind = self.one(("scan", "scan", "fori", "while"))
        if kind == "scan" and rows:
            count = block.kinds[self.one(rows)][0][0]
            fitting = [k for k in rows if block.kinds[k][0][0] == count]
            xs = [self.one(fitting) for _ in range(self.rng.randint(1, 2))]
            given = [(block.kinds[k][0][1:], block.kinds[k][1]) for k in xs]
            body = Block([*block.kinds, *carried, *given])
            nexts = self._body(body, len(block.kinds), carried, depth)
            news = range(len(block.kinds), len(body.kinds))
            most = self.most // count
            kept = [k for k in news if size(body.kinds[k][0]) <= most]
            kept = (
                [self.one(kept) for _ in range(self.rng.randint(0, 2))] if kept else []
            )
            stacks = [((count, *body.kinds[k][0]), body.kinds[k][1]) for k in kept]
            step = (
                body,
                inits,
                xs,
                nexts,
                kept,
                self.chance(0.4),
                self.rng.choice((0, 0, 1, 3)),
            )
            block.add([*carried, *stacks], "scan", *step)
        elif kind == "while":
            counter = self.one(block.of(lambda s, d: s == () and d == "int64"))
            if counter is None:
                first = self.one(floats)
                zero = block.add(
                    [(block.kinds[first][0], "bool")], "apply", "less", (first, first)
                )
                counter = self._zero(block, zero)
            kinds = [block.kinds[counter], *carried]
            body = Block([*block.kinds, *kinds])
            place = len(block.kinds)
            up = body.add([kinds[0]], "number", "add", place, 1, False)
            nexts = [up, *self._body(body, place + 1, carried, depth)]
            limit, most = self.rng.randint(0, 6), self.rng.randint(0, 8)
            block.add(kinds, "while", body, [counter, *inits], nexts, limit, most)
        else:
            body = Block([*block.kinds, *carried, ((), "int64")])
            nexts = self._body(body, len(block.kinds), carried, depth)
            low = self.rng.randint(-2, 3)
            block.add(
                carried, "fori", body, inits, nexts, low, low + self.rng.randint(-1, 6)
            )

    def _zero(self, block, place):
        """Add an int64 zero of shape (): a sum of no row, made of a false value."""
        shape, _ = block.kinds[place]
        zeros = block.add([(shape, "int64")], "cast", place, "int64")
        flat = block.add([((size(shape),), "int64")], "reshape", zeros, (size(shape),))
        return block.add([((), "int64")], "reduce", "sum", flat, False)

    def _body(self, body, first, carried, depth):
        """Add a body's steps; return what each carry goes on as."""
        for _ in range(self.rng.randint(1, 4)):
            self._any(body)
        if depth and self.chance(0.2):
            self._loop(body, depth - 1)
        if self.chance(0.2):
            self._by_index(body)
        nexts = []
        for place, kind in enumerate(carried):
            same = [k for k in range(first, len(body.kinds)) if body.kinds[k] == kind]
            nexts.append(self.one(same[-3:]) if same else first + place)
        return nexts

    def _by_index(self, body):
        """Add the row of an array at an index that the loop knows."""
        index = self.one(body.of(lambda s, d: s == () and d == "int64"))
        array = self.one([k for k in range(len(self.names)) if body.kinds[k][0]])
        if index is not None and array is not None:
            shape, dtype = body.kinds[array]
            if shape[0]:
                body.add([(shape[1:], dtype)], "index", array, index)

"""What compiling a text will take, told by the text alone.

Costs were fitted to processor time of single candidates on two cores of an AMD EPYC
(Zen 5): of 84 for sm_90a from five kernels the median error is 8 %, the ninth decile
25 %; of 60 for its own processor 5 % and 16 %; nvptx's are of a trivial kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

_UNROLL: Final = re.compile(r"#pragma unroll (\d+)")
_DIVISION: Final = re.compile(r" / |sqrt")
"""What becomes dozens of instructions where it must be rounded as IEEE says."""


class Costs(Struct, frozen=True):
    """What a compiler takes, in seconds."""

    program: float
    """Of a program, whatever is in it."""
    character: float
    repeated: float = 0.0
    """Of a character for each further time that its unrolled loops repeat it."""
    kernel: float = 0.0
    division: float = 0.0
    apart: str = ""
    """What no text of a program has if another lacks it."""

    def weight(self, text: str) -> float:
        """Predict the seconds that a candidate's text adds to a program."""
        found = self.kernel + self.character * len(text)
        if self.division:
            found += self.division * len(_DIVISION.findall(text))
        if self.repeated:
            again = sum((times - 1) * len(line) for line, times in unrolled(text))
            found += self.repeated * again
        return found


def unrolled(text: str) -> Iterator[tuple[str, int]]:
    """Yield a text's lines, each with how often its loops repeat it when unrolled."""
    times, turns = [1], 1
    for line in text.splitlines():
        if line.lstrip().startswith("}"):
            times.pop()
        yield line, times[-1]
        if line.endswith("{"):
            times.append(times[-1] * turns)
        asked = _UNROLL.search(line)  # of the loop in the next line
        turns = int(asked[1]) if asked else 1

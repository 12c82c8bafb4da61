"""What pictures of a page share: axes, intervals, texts. Pure.

Colours are classes of the page's style, so that they suit light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from steelyard.analyse.stats import Estimate
from steelyard.report.pages.html import Markup, tag
from steelyard.report.scale import Scale

COLOURS: Final = 8
"""Of a page's style, one a kind or a block; then they begin again."""


def picture(
    wide: float,
    high: float,
    title: str,
    about: str,
    *parts: str,
    styled: bool = False,
) -> Markup:
    """Return a picture with its name and its content in words.

    One that is ``styled`` has its width, too, from the page: there are many of it.
    """
    said = (
        (tag("title", title), tag("desc", about)) if about else (tag("title", title),)
    )
    box = f"0 0 {wide:.0f} {high:.0f}"
    width = None if styled else f"{wide:.0f}"
    return tag("svg", *said, *parts, viewBox=box, width=width, role="img")


def words(x: float, y: float, said: str, anchor: str = "", class_: str = "") -> Markup:
    """Return a text; ``anchor`` is ``middle`` or ``end``."""
    place = {"x": f"{x:.0f}", "y": f"{y:.0f}"}
    return tag("text", said, **place, text_anchor=anchor or None, class_=class_ or None)


def line(d: str, class_: str, said: str = "") -> Markup:
    """Return a path, which says something under the pointer."""
    if not said:
        return tag("path", d=d, class_=class_)
    return tag("g", tag("title", said), tag("path", d=d), class_=class_)


def axis(
    x: Scale, top: float, bottom: float, write: Callable[[float], str]
) -> Iterator[Markup]:
    """Yield upright lines at round values, which ``write`` writes below them."""
    places = x.ticks()
    yield line("".join(f"M{x(at):.1f} {top:.0f}V{bottom:.0f}" for at in places), "grid")
    said = (words(x(at), bottom + 14, write(at)) for at in places)
    yield tag("g", *said, text_anchor="middle")


def interval(x: Scale, y: float, one: Estimate, class_: str) -> Markup:
    """Return a value with its interval, lying; an end outside has no stop."""
    stops = [end for end in (one.low, one.high) if x.low <= end <= x.high]
    ends = "".join(f"M{x(end):.1f} {y - 4:.1f}v8" for end in stops)
    bar = tag("path", d=f"M{x(one.low):.1f} {y:.1f}H{x(one.high):.1f}{ends}")
    mark = tag("circle", cx=f"{x(one.value):.1f}", cy=f"{y:.1f}", r=3.5)
    return tag("g", bar, mark, class_=class_)

"""HTML that is escaped by construction: elements, tables, and the page around them. Pure.

A text becomes part of a page only through `tag`, which escapes what is no `Markup`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib import metadata, resources
from typing import Any, Final, TypeVar

from steelyard.machine import decoding
from steelyard.machine.printable import printable
from steelyard.report import curves, drawing
from steelyard.report.grid import Cell, Column, Sheet
from steelyard.store.archive import PAGE

T = TypeVar("T")

OPEN: Final = frozenset({"td", "th", "tr", "li", "dt", "dd", "tbody"})
"""Elements that HTML ends by itself: a page of 2,000 cases has 100,000."""

EMPTY: Final = frozenset({"path", "rect", "circle", "input", "meta", "link", "br"})

BARE: Final = re.compile(r"[\w.#:-]+")
"""Values of attributes that need no quotes."""

LONGEST: Final = 20_000
"""Characters of one text: errors may end in a build's log."""


class Markup(str):
    """Text that stands in a page as it is."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: object) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``, ``a_b`` is ``a-b``."""
    empty = name in EMPTY
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}={_value(str(value), always=empty)}"
        for key, value in attributes.items()
        if value is not None
    )
    if empty:
        return Markup(f"<{name}{said}/>")
    end = "" if name in OPEN else f"</{name}>"
    return Markup(f"<{name}{said}>{join(inside)}{end}")


def join(parts: Iterable[str]) -> Markup:
    """Return parts one after the other; what is no `Markup` is escaped."""
    return Markup(
        "".join(
            p if type(p) is Markup else escape(_clean(p), quote=False) for p in parts
        )
    )


def _value(text: str, *, always: bool) -> str:
    bare = not always and BARE.fullmatch(text)
    return text if bare else f'"{escape(_clean(text))}"'


def _clean(text: str) -> str:
    """Return what a page can hold: no control characters, no halves of characters."""
    return text if text.isprintable() else printable(text, LONGEST, keep="\n\t")


def sheet(
    made: Sheet[T],
    link: Callable[[T], str | None] | None = None,
    name: Callable[[T], str] | None = None,
) -> Markup:
    """Return a table; the first cell of a line names it, and leads to ``link``.

    ``name`` is what links to a line.
    """
    first, *rest = made.columns
    heads = [tag("th", c.title, scope="col", class_=_side(c)) for c in made.columns]
    lines = []
    for row in made.rows:
        said = _text(first.cell(row))
        place = link and link(row)
        if place:
            said = tag("a", said, href=place)
        cells = (tag("td", _text(c.cell(row)), class_=_side(c)) for c in rest)
        head = tag("th", said, scope="row", class_=_side(first))
        lines.append(tag("tr", head, *cells, id=name and name(row)))
    table = tag(
        "table",
        tag("caption", made.title),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *lines),
    )
    # What is wider than the screen is scrolled by keys too.
    return tag(
        "div", table, class_="wide", tabindex=0, role="region", aria_label=made.title
    )


def _text(cell: Cell) -> str:
    """Return a cell without its style; what is `Markup` stays it."""
    return cell if isinstance(cell, str) else str(cell)


def _side(column: Column[Any]) -> str | None:
    return None if column.right else "l"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading."""

    title: str
    parts: Sequence[str]

    @property
    def id(self) -> str:
        """What links to it."""
        return re.sub(r"\W+", "-", self.title.lower())

    def shown(self) -> Markup:
        """Return it with its heading."""
        heading = tag("h2", self.title, id=f"{self.id}-heading")
        named = {"aria_labelledby": f"{self.id}-heading"}
        return tag("section", heading, *self.parts, id=self.id, **named)


def page(
    title: str, about: Sequence[str], sections: Sequence[Section], data: Any
) -> str:
    """Return a whole page: its sections, and what it holds as JSON, or is of in a word."""
    sections = [one for one in sections if one.parts]
    document = {"steelyard": PAGE, "of": data} if isinstance(data, str) else data
    style, script = _asset("page.css") + _palette(), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    links = [tag("li", tag("a", one.title, href=f"#{one.id}")) for one in sections]
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", f"{title} · steelyard"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        Markup(f"<style>{style}</style>"),
    )
    body = (
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag(
            "header",
            tag("p", "steelyard", class_="brand"),
            tag("h1", title),
            *(tag("p", line) for line in about),
        ),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *(one.shown() for one in sections), id="main"),
        tag(
            "footer", tag("p", f"Written by steelyard {metadata.version('steelyard')}.")
        ),
        Markup(decoding.page_element(document)),
        Markup(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


@cache
def _asset(name: str) -> str:
    here = resources.files("steelyard.report.pages")
    return here.joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _palette() -> str:
    """Have pictures that are files of their own too take the colours of a page."""
    colours = {
        drawing.GRID: "line",
        drawing.LEVELS: "ink",
        drawing.POINTS: "c0",
        drawing.SLOWER: "slower",
        drawing.FASTER: "faster",
        drawing.BAND: "band",
        "white": "paper",
    } | {colour: f"c{n}" for n, colour in enumerate(curves.COLOURS)}
    return "".join(
        f'svg [{what}="{colour}"]{{{what}:var(--{name})}}'
        for colour, name in colours.items()
        for what in ("fill", "stroke")
    )

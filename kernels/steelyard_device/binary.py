"""A kernel's code with all that a launch of it has to know, for another process.

As bytes: a line of JSON, the head, and the image behind it: object code or a cubin.
Keys of a head::

    format   raised whenever the bytes change: the other process may run another version
    entry    the name of the code's entry
    slots    [kind, name, word] of each parameter, in their order
    facts    what the code's maker says of it
    threads  on a CPU: how many run a launch; 0: the whole pool
    grid, block, shared    on a GPU: extents, and dynamic bytes of a block
    order, homes    of launches that repeat: `turns`, and the slots of its own words
    launches    of several kernels in place of entry, slots and threads: each one's, with
             where in the image its own code begins and how long it is, as ``code``
    workspace   bytes of the array ``.workspace``, where values lie between these
    call, lines            on a CPU: of which arrays, and whether they begin on cache lines

A slot of kind ``input`` or ``output`` takes the address of the array ``name`` and
``word`` bytes, one of kind ``tensor`` what bulk copies have to know of it (``word``: the arguments of
`cuda.tensors.encoded` by name), one of kind ``bytes`` a structure in hexadecimal, one of
kind ``addresses`` such a structure with addresses in it (``{"bytes": hexadecimal, "at":
[[byte of the structure, array, byte of the array], ...]}``), and one of any other kind its
``word``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

FORMAT: Final = 1

ADDRESSED: Final = ("input", "output")
"""The kinds of slots that take an array's address."""

Slots = Sequence[Sequence[Any]]


def pack(head: Mapping[str, Any], image: bytes) -> bytes:
    """Return a head without its format, and an image, as bytes."""
    return json.dumps({"format": FORMAT, **head}).encode() + b"\n" + image


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the image of what `pack` wrote.

    Raises:
        ValueError: the bytes are of another format; the message names it.
    """
    head, _, image = data.partition(b"\n")
    try:
        told = json.loads(head)
    except ValueError:
        told = None
    seen = told.get("format") if isinstance(told, dict) else None
    if told is None or seen != FORMAT:
        raise ValueError(f"{seen}")
    return told, image


def launches(head: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what is launched one after another: the head's own launch, or each of several."""
    found: Sequence[Mapping[str, Any]] = head.get("launches", [head])
    return found


def code_of(launch: Mapping[str, Any], image: bytes) -> bytes:
    """Return the part of an image that is a launch's code."""
    first, size = launch.get("code", (0, len(image)))
    return image[first : first + size]


def words(slots: Slots, addresses: Mapping[str, int]) -> list[int | bytes]:
    """Return what the slots get of arrays at these addresses, but for tensors: 0."""
    found: list[int | bytes] = []
    for kind, name, word in slots:
        if kind in ADDRESSED:
            found.append(addresses[name] + word)
        elif kind == "bytes":
            found.append(bytes.fromhex(word))
        elif kind == "addresses":
            found.append(_filled(word, addresses))
        else:
            found.append(0 if kind == "tensor" else word)
    return found


def _filled(word: Mapping[str, Any], addresses: Mapping[str, int]) -> bytes:
    """Return a structure with the addresses that it holds."""
    body = bytearray.fromhex(word["bytes"])
    for place, name, shift in word["at"]:
        body[place : place + 8] = (addresses[name] + shift).to_bytes(8, "little")
    return bytes(body)

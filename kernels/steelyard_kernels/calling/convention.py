"""The calling convention of a build: which argument goes to which slot of a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from steelyard_kernels.artifact import Artifact
from steelyard_kernels.calling.wholes import Computed, computed
from steelyard_kernels.dtypes import bool_
from steelyard_kernels.expression.expr import Input, Output, Shape
from steelyard_kernels.ir.loops import Tensor
from steelyard_kernels.plan.launches import WORKSPACE


class Fresh(Struct, frozen=True):
    """An output that updates no input: given by the caller, or allocated.

    A hidden one is always allocated, and no part of the result.
    """

    output: Output
    shape: Shape
    dtype: np.dtype[Any]


class Convention(Struct, frozen=True):
    """What every call of one build needs to know, found once.

    A call's arrays are numbered: the parameters in order, then the fresh outputs, the
    hidden ones last. `outputs` are the numbers of what the caller sees written; `pairs` are (written, other, their
    bytes), which must not overlap; `words` are the slots' values with zeros where the
    address of an array is added (`addressed`: place, number) or a scalar (`scalars`: place,
    name, format) goes, or what is made of an array's (`tensors`: place, number,
    tensor); `computed` are the integers that are made of scalars;
    `result` picks of a call's arrays what the function returns;
    `streams` says that stores go round the caches, `spare` are workspaces in no use.
    """

    built: Artifact
    aligned: bool
    names: tuple[str, ...]
    fresh: tuple[Fresh, ...]
    hidden: tuple[Fresh, ...]
    outputs: tuple[int, ...]
    updated: tuple[int, ...]
    pairs: tuple[tuple[int, int, int, int], ...]
    words: tuple[int, ...]
    addressed: tuple[tuple[int, int], ...]
    scalars: tuple[tuple[int, str, str], ...]
    computed: tuple[Computed, ...]
    tensors: tuple[tuple[int, int, Tensor], ...]
    result: Callable[[Sequence[Any]], Any]
    streams: bool
    spare: list[Any]


def convention_of(built: Artifact, *, aligned: bool) -> Convention:
    """Read a build's convention; `aligned` as it was built."""
    program, slots = built.program, built.slots
    new = [
        Fresh(output, output.value.shape, output.value.dtype.numpy)
        for output in program.outputs
        if output.updates is None
    ]
    fresh = tuple(each for each in new if not each.output.hidden)
    hidden = tuple(each for each in new if each.output.hidden)
    if built.plan and built.plan.buffers:  # of no bytes, perhaps
        memory = Input(0, (built.plan.size,), bool_, WORKSPACE, -1)
        output = Output(WORKSPACE, memory, None, hidden=True)
        hidden = (Fresh(output, memory.shape, memory.dtype.numpy),)
    values = [*program.inputs, *(each.output.value for each in fresh)]
    names = tuple(
        [node.name for node in program.inputs]
        + [each.output.name for each in (*fresh, *hidden)]
    )
    outputs = tuple(
        names.index(output.name) if output.updates is None else output.updates
        for output in program.outputs
        if not output.hidden
    )
    return Convention(
        built=built,
        aligned=aligned,
        names=names,
        fresh=fresh,
        hidden=hidden,
        outputs=outputs,
        updated=tuple(number for number in outputs if number < len(program.inputs)),
        pairs=_pairs(outputs, [prod(v.shape) * v.dtype.bytes for v in values]),
        words=tuple(
            slot.index if slot.kind == "extent" or built.plan else 0 for slot in slots
        ),
        addressed=tuple(
            (place, names.index(slot.name))
            for place, slot in enumerate(slots)
            if slot.kind in {"input", "output"}
        ),
        scalars=tuple(
            (place, slot.name, slot.code)
            for place, slot in enumerate(slots)
            if slot.kind == "scalar"
        ),
        computed=computed(program.nodes),
        tensors=tuple(
            (place, names.index(slot.name), slot.tensor)
            for place, slot in enumerate(slots)
            if slot.tensor is not None
        ),
        result=_result(names, outputs, program.returns),
        streams=any(part.schedule.streaming for part in built.parts or (built,)),
        spare=[],
    )


def _result(
    names: Sequence[str], outputs: Sequence[int], returns: str
) -> Callable[[Sequence[Any]], Any]:
    """Return what makes one array, a tuple or a dict by name, as the function did.

    It is spelled out, which takes a third of a loop's time in every call.
    """
    picked = [f"arrays[{number}]" for number in outputs]
    if returns == "one":
        made = picked[0]
    elif returns == "tuple":
        made = f"({', '.join(picked)},)" if picked else "None"
    else:
        pairs = zip([names[number] for number in outputs], picked, strict=True)
        made = "{" + ", ".join(f"{name!r}: {array}" for name, array in pairs) + "}"
    result: Callable[[Sequence[Any]], Any] = eval(f"lambda arrays: {made}")  # noqa: S307 # quoted names and numbers
    return result


def _pairs(
    outputs: Sequence[int], sizes: Sequence[int]
) -> tuple[tuple[int, int, int, int], ...]:
    """Return every pair of arrays with bytes of which one or both are written."""
    return tuple(
        (one, other, sizes[one], sizes[other])
        for one in outputs
        for other in range(len(sizes))
        if sizes[one] and sizes[other]
        if one < other or (one > other and other not in outputs)
    )

"""Host programs that call one kernel on a GPU, and where they put its result.

The four of iree#17012, by `RESULTS`: ``allocated``, memory asked of the driver in every
call and given back, which waits; ``pooled``, from the library's pool; ``preallocated``,
one result for all calls; ``slab``, slices of one slab in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np

from steelyard.prepare.frameworks import adapter
from steelyard_device import cuda
from steelyard_device.cuda import driver

RESULTS: Final = ("allocated", "pooled", "preallocated", "slab")
SLICES: Final = 16
"""Results in one slab: nobody reads the last before the first is written again."""


class Program:
    """Work whose launch is a call as a program makes it, waited for at once or later."""

    def __init__(
        self,
        call: Callable[[], object],
        context: cuda.Context,
        facts: Mapping[str, Any],
        *,
        waits: bool,
    ) -> None:
        self.context, self.stream = context, context.stream
        self._facts = facts
        self._calls = (call, self.wait) if waits else (call,)

    def launch(self, count: int = 1) -> None:
        """Call ``count`` times."""
        for _ in repeat(None, count):
            for call in self._calls:
                call()

    def wait(self) -> None:
        """Return when everything on the stream is done."""
        self.context.wait(self.stream)

    def ready(self) -> None:
        """Nothing sleeps."""

    def facts(self) -> Mapping[str, Any]:
        """Say what the program does between its calls."""
        return self._facts


@dataclass(frozen=True, slots=True)
class Calls:
    """A function of arrays and ``out`` as one of these programs calls it."""

    function: Callable[..., Any]
    result: str
    """One of `RESULTS`."""
    waits: bool
    """Whether it waits for every call before the next."""

    def bind(self, *arrays: Any, out: Any) -> Program:
        """Return the work of calling it on these arrays; ``out`` is what comes of it."""
        context = context_of(out)
        call = _caller(self.function, arrays, out, context, self.result)
        waits = self.waits or self.result == "allocated"  # as giving memory back does
        facts: dict[str, Any] = {"synchronises": True} if waits else {}
        if not isinstance(out, cuda.View):
            facts["library"] = adapter("torch", context).library
        return Program(call, context, facts, waits=self.waits)

    def __call__(self, *arrays: Any, out: Any) -> None:
        """Call it once on the result that is there."""
        self.function(*arrays, out=out)


def context_of(array: Any) -> cuda.Context:
    """Return the context of an array of ours, or of a PyTorch tensor."""
    context: cuda.Context | None = getattr(array, "context", None)
    return context or cuda.context(array.device.index)


def _caller(
    function: Callable[..., Any],
    arrays: tuple[Any, ...],
    out: Any,
    context: cuda.Context,
    result: str,
) -> Callable[[], object]:
    if result == "pooled":  # the library's own: PyTorch's, or ours
        return lambda: function(*arrays)
    if result == "preallocated":
        return lambda: function(*arrays, out=out)
    shape, dtype = tuple(out.shape), np.dtype(str(out.dtype).removeprefix("torch."))
    tensors = not isinstance(out, cuda.View)
    if result == "slab":
        slab = cuda.Buffer(context, (SLICES, *shape), dtype)
        parts = [slab.part(n * out.nbytes, shape, dtype) for n in range(SLICES)]
        slices = itertools.cycle([_handed(part, tensors=tensors) for part in parts])
        return lambda: function(*arrays, out=next(slices))

    def allocated() -> None:
        with driver.current(context.handle):
            asked = f"allocating {out.nbytes} bytes of the driver's"
            address = driver.call(asked, "cuMemAlloc", out.nbytes)
            fresh = cuda.View(context, int(address), shape, dtype)
            function(*arrays, out=_handed(fresh, tensors=tensors))
            driver.call("giving them back", "cuMemFree", address)

    return allocated


def _handed(view: cuda.View, *, tensors: bool) -> Any:
    if not tensors:
        return view
    import torch

    return torch.as_tensor(view, device=f"cuda:{view.context.device.index}")

"""Options that say which kernels, and mistakes as sentences: for several commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from steelyard.commands import _options as common
from steelyard.declare.axes import parse_override
from steelyard.errors import SteelyardError
from steelyard_device.errors import DeviceError
from steelyard_kernels.errors import KernelError

if TYPE_CHECKING:
    from steelyard_kernels.library.examples import Spec
    from steelyard_lock.points import Axis

MODES: Final = ("kernel/warm", "kernel/cold")
"""What candidates may be measured in, the first where nobody says."""


def _axes(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> dict[str, list[Axis]]:
    return dict(map(parse_override, given))


def _arrays(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> list[Spec]:
    if not given:
        return []
    from steelyard_lock.points import spec_of

    with sentences("--arg "):
        return [spec_of(text) for text in given]


axes_option = common.option(
    "-p axes",
    "Replace an axis's values: n, rows, hidden, dtype, or those of a benchmark.",
    multiple=True,
    callback=_axes,
    metavar="AXIS=1,2",
)
arrays_option = common.option(
    "--arg --shape arrays",
    "An array parameter, in order: 1024x768:float16.",
    multiple=True,
    callback=_arrays,
    metavar="SHAPE:DTYPE",
)


@contextmanager
def sentences(option: str = "") -> Iterator[None]:
    """Turn mistakes of the compiler's users, in an `option` or not, into the harness's."""
    try:
        yield
    except (KernelError, DeviceError) as error:
        raise SteelyardError(f"{option}{error}") from error

"""Write a kernel's code, inputs and measurement to one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steelyard.commands import _capsules
from steelyard.commands import _options as options
from steelyard.declare import plan
from steelyard.declare.plan import PlannedTrial, Settings
from steelyard.errors import FINE, BenchmarkError, SteelyardError
from steelyard.process import scratch, wire
from steelyard.process.runner import Workers
from steelyard.store import capsules, session


@click.command()
@click.argument("case")
@click.argument("paths", nargs=-1)
@options.option(
    "-o --output",
    f"Write it there: x{capsules.SUFFIX}.",
    required=True,
    type=options.FILE,
)
@options.overrides_option
@options.modes_option("what the benchmark asks for, else kernel/cold,kernel/warm")
@options.inputs_option
@options.seed_option
@options.turns_options
def command(*, case: str, paths: tuple[str, ...], output: Path, **asked: Any) -> int:
    """Measure CASE of PATHS and write its capsule: code, launch, inputs, results, ticks.

    CASE is a compiled kernel's or a cubin's; inputs are kept by their seed, or as they
    are where they come from a file. `steelyard replay` measures the same instructions
    on another machine, or next year.
    """
    _capsules.require_place(output)
    chosen = options.loaded(asked, paths)
    request = session.Request(
        places=options.places(chosen, paths),
        pattern=case,
        blocks=chosen.blocks,
        **asked,
    )
    turns, _, broken = session.planned(request, chosen)
    every = {turn.case.id for turn in plan.once(turns)}
    if len(every) > 1:
        raise SteelyardError(
            f"{case!r} names {len(every)} cases, and a capsule holds one: "
            f"{', '.join(sorted(every)[:5])}. Write more of its id."
        )
    with scratch.folder() as folder:
        place = Path(folder)

        def recorded(how: Settings) -> tuple[dict[str, Any], Path]:
            return _recorded(turns[0], how, place), place

        code = _capsules.write(output, turns, request, chosen, recorded)
    return code or (broken.exit_code if broken else FINE)


def _recorded(turn: PlannedTrial, how: Settings, folder: Path) -> dict[str, Any]:
    """Have a worker write the members of a capsule; return what it says of them.

    Raises:
        BenchmarkError: it cannot.
    """
    with Workers() as workers:
        answer = workers.ask(turn, how, wire.CAPSULE, folder=str(folder))
    if "error" in answer:
        raise BenchmarkError(str(answer["error"]))
    found: dict[str, Any] = answer["content"]
    return found

"""Write a kernel's code, inputs and measurement to one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steelyard.commands import _options as options
from steelyard.declare import config, plan
from steelyard.declare.plan import PlannedTrial
from steelyard.declare.settings import Settings
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.machine import files
from steelyard.process import scratch, wire
from steelyard.process.runner import Workers
from steelyard.report import progress, stored
from steelyard.store import capsules, session


@click.command()
@click.argument("case")
@click.argument("paths", nargs=-1)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Write it there: x{capsules.SUFFIX}.",
)
@options.overrides_option
@options.modes_option("what the benchmark asks for, else kernel/cold,kernel/warm")
@options.inputs_option
@options.seed_option
@options.budget_option
@options.precision_option
@options.blocks_option
@options.timeout_option
@options.wait_option
@options.gpu_option
@options.store_option
def command(*, case: str, paths: tuple[str, ...], output: Path, **asked: Any) -> int:
    """Measure CASE of PATHS and write its capsule: code, launch, inputs, results, ticks.

    CASE is a compiled kernel's or a cubin's; inputs are kept by their seed, or as they
    are where they come from a file. `steelyard replay` measures the same instructions
    on another machine, or next year.
    """
    if output.suffix != capsules.SUFFIX:
        raise SteelyardError(
            f"-o {output}: a capsule's name ends in {capsules.SUFFIX}."
        )
    files.require_writable(output, "-o")
    flags = {key: asked.pop(key) for key in config.READERS.keys() & asked}
    chosen = config.load(flags | {"suites": paths or None})
    request = session.Request(
        places=options.places(chosen, paths),
        pattern=case,
        blocks=chosen.blocks,
        **asked,
    )
    how = session.settings(chosen, request)
    turns, _, broken = session.planned(request, chosen.seed)
    every = {turn.case.id for turn in plan.once(turns)}
    if len(every) > 1:
        raise SteelyardError(
            f"{case!r} names {len(every)} cases, and a capsule holds one: "
            f"{', '.join(sorted(every)[:5])}. Write more of its id."
        )
    how, device = session.on_gpu(turns, how, chosen)
    with scratch.folder() as folder:
        told = _recorded(turns[0], how, Path(folder))  # else measured for nothing
        outcome = progress.measured(turns, how, request, chosen.store, device)
        progress.ending(outcome, chosen.store)
        stored.print_rows(
            outcome.run, stored.rows_of(outcome.run, outcome.trials, None), [], None
        )
        if outcome.exit_code:
            click.echo(f"{output} is not written: it would lack numbers", err=True)
            return outcome.exit_code
        data = capsules.write(told, Path(folder), outcome.run, outcome.trials)
    files.save(output, data, "-o")
    click.echo(f"{output}: {len(data)} bytes; `steelyard replay {output} --trust`")
    return broken.exit_code if broken else 0


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

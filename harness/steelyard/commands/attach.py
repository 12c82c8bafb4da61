"""Say where the time of a program that nobody rewrote goes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import psutil
from rich.console import RenderableType
from rich.text import Text

from steelyard.analyse import program
from steelyard.analyse.program import Events
from steelyard.commands import _capsules
from steelyard.commands import _options as options
from steelyard.declare import config, plan
from steelyard.declare import mode as modes
from steelyard.errors import SteelyardError
from steelyard.machine import children, files
from steelyard.machine.decoding import Malformed
from steelyard.prepare import capsule_work
from steelyard.prepare.capsules import SUFFIX
from steelyard.process import attached, scratch, stacks
from steelyard.report import program_table, tables
from steelyard.store import capsules, session

MODULE: Final = "steelyard.process.attached"

MEMBERS: Final = "capsule"
"""The folder of what a program's process writes of a capsule."""

MODES: Final = ("kernel/cold", "kernel/warm")

TAG: Final = "attach"
"""Of runs of what was captured, which are no history of the checkout."""

SAMPLERS: Final = {
    "py-spy": ("record", "--format", "speedscope", "-o", "{}", "--"),
    "perf": ("record", "-q", "-g", "-o", "{}", "--"),
}
"""Programs that sample the stacks of another, with what writes them to a file."""


@click.command(context_settings={"ignore_unknown_options": True})
@options.written(
    "--trace place",
    "Write a trace of the GPU's work too, for ui.perfetto.dev.",
    type=options.FILE,
)
@options.option(
    "--memory",
    "Memory and waits too: a launch then takes the host 3 us longer, not 1.",
    is_flag=True,
)
@options.written(
    "--stacks sampled",
    "Sample Python's stacks too, by py-spy or perf, whichever is installed.",
    type=options.FILE,
)
@options.option(
    "--capture kernel",
    "Write a capsule of a launch of this kernel; * stands for any part of its name.",
    metavar="KERNEL",
)
@options.option(
    "--launch",
    "Which launch of it to capture.",
    shown=True,
    type=click.IntRange(min=1),
    default=1,
)
@options.option(
    "-o --output", f"Write the capsule there: x{SUFFIX}.", type=options.FILE
)
@options.option(
    "--timeout",
    "End the program after this long.",
    "none",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
)
@click.argument("words", metavar="-- python PROGRAM [ARGUMENTS]...", nargs=-1)
def command(
    *,
    place: Path | None,
    memory: bool,
    sampled: Path | None,
    kernel: str | None,
    launch: int,
    output: Path | None,
    timeout: float | None,
    words: tuple[str, ...],
) -> int:
    """Run a Python program, a file or -m MODULE, and say where its time on the GPU goes.

    Kernels by name with time, count and gaps, copies, and the share of the time in which
    no kernel runs, by CUPTI; without a GPU the spans of our own code. It ends as the
    program does.
    """
    interpreter, rest = _program(words)
    if (kernel is None) != (output is None):
        raise SteelyardError(
            f"--capture KERNEL needs -o FILE{SUFFIX}, and -o needs --capture: pass both."
        )
    if output:
        _capsules.require_place(output)
    sampler = _sampler(sampled) if sampled else []
    with scratch.folder() as folder:
        home = Path(folder)
        how = attached.How(
            every=memory, kernel=kernel, launch=launch, folder=str(home / MEMBERS)
        )
        answer = home / "events.npz"
        line = [interpreter, "-P", "-m", MODULE, str(answer), json.dumps(how), *rest]
        code = _run([*sampler, *line], timeout)
        events = _events(answer, code)
        if events is None:
            return 128 - code if code < 0 else code  # as shells report a signal
        found = program.ledger(events)
        console = tables.console(stderr=True)
        console.print(*program_table.page(events, found), sep="\n")
        if sampled:
            console.print(*_sampled(sampled, sampler[0]), sep="\n")
        if place:
            made = program_table.trace(events, " ".join(words))
            files.save(place, json.dumps(made) + "\n", "--trace")
            click.echo(f"{place}: open it at ui.perfetto.dev", err=True)
        sealed = _sealed(output, events, home) if output else 0
        return int(events.about["code"]) or sealed  # py-spy ends with a code of its own


def _program(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the interpreter, and what it is to run.

    Raises:
        SteelyardError: it is no program of Python's.
    """
    python, *rest = words or ("",)
    named = rest[1:] if rest[:1] == ["-m"] else rest
    plain = bool(named) and not named[0].startswith("-")
    if not (re.fullmatch(r"(.*/)?python[\d.]*", python) and plain):
        raise SteelyardError(
            f"attach got {' '.join(words) or 'no program'}, expected -- python PROGRAM or "
            "-- python -m MODULE: it runs within the program's own Python. Set what "
            "Python's options say by variables (-u: PYTHONUNBUFFERED=1), and write what "
            "-c runs to a file."
        )
    return sys.executable if python in {"python", "python3"} else python, rest


def _events(answer: Path, code: int) -> Events | None:
    """Return what the program's process wrote down; say why where it wrote nothing."""
    try:
        return attached.read(answer)
    except (OSError, ValueError, KeyError):
        what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        click.echo(
            f"{what} ended the program: nothing is known of it. Look for what ends its "
            "process at once, or an interpreter without steelyard.",
            err=True,
        )
        return None


def _sealed(output: Path, events: Events, home: Path) -> int:
    """Measure a launch that was captured, and write its capsule.

    Raises:
        SteelyardError: there is none.
    """
    content = events.about["captured"]
    if not isinstance(content, Mapping):
        why = content or events.about["note"]
        raise SteelyardError(f"--capture: nothing was captured: {why}")
    if content["check"] is None:
        click.echo(
            "--capture: its results are not known: it left all memory as it was, or other "
            "bytes each time. Its first launch may have some (--launch).",
            err=True,
        )
    folder = home / MEMBERS
    case = capsule_work.drafted(content, capsules.members(folder), home).case()
    cases, _ = plan.require_able([case])
    chosen = config.load()
    turns = plan.plan(cases, modes.parse_all(MODES), chosen.blocks, chosen.seed)
    request = session.Request((), blocks=chosen.blocks, tags=(TAG,))
    return _capsules.write(output, turns, request, chosen, lambda _: (content, folder))


def _sampler(place: Path) -> list[str]:
    """Return the beginning of a command line that samples what follows.

    Raises:
        SteelyardError: none is installed.
    """
    for name, words in SAMPLERS.items():
        if shutil.which(name):
            return [name, *(word.format(place) for word in words)]
    raise SteelyardError(
        "--stacks: neither py-spy nor perf is installed. Install one, `pip install py-spy` "
        "for example, or leave --stacks out."
    )


def _sampled(place: Path, sampler: str) -> Iterator[RenderableType]:
    """Yield where the stacks lie that were sampled, and what to look at them with."""
    try:
        content = files.read(place)
        if sampler == "perf":
            line = [sampler, "script", "-i", str(place)]
            own = children.environment()
            done = subprocess.run(line, env=own, capture_output=True, check=False)
            content = done.stdout
        yield from program_table.stacks_page(stacks.of_program(stacks.read(content)))
    except (OSError, Malformed) as error:
        yield Text(f"\n--stacks {place} cannot be read: {error}")
        return
    hint = f"`steelyard report {place}`, or speedscope.app"
    if sampler == "perf":
        hint = f"perf report -i {place}, or perf script and `steelyard report`"
    yield Text(f"{place}, by {sampler}: {hint}")


def _run(line: list[str], timeout: float | None) -> int:
    """Run a program with this terminal as its own; return its exit code, or a signal below 0.

    Raises:
        SteelyardError: it cannot be started, or took too long and was ended.
    """
    own = {"PYTHONPERFSUPPORT": "1"} if line[0] == "perf" else {}  # names its frames
    try:
        with subprocess.Popen(line, env=children.environment(**own)) as process:
            try:
                return process.wait(timeout)
            except BaseException:
                _end(process.pid)
                raise
    except OSError as error:
        raise SteelyardError(
            f"{line[0]} cannot be started: {error.strerror}. Name an interpreter."
        ) from error
    except subprocess.TimeoutExpired:
        raise SteelyardError(
            f"the program was not done within {timeout:g} s and was ended."
        ) from None


def _end(process: int) -> None:
    """End a process and all that it started: a sampler would leave the program alone."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(process)
        for one in (*first.children(recursive=True), first):
            with suppress(psutil.NoSuchProcess):
                one.kill()

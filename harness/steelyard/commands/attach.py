"""Say where the time of a program that nobody rewrote goes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import psutil

from steelyard.analyse import program
from steelyard.errors import SteelyardError
from steelyard.machine import children, files
from steelyard.process import attached, scratch
from steelyard.report import program_table, tables

MODULE: Final = "steelyard.process.attached"

SAMPLERS: Final = {
    "py-spy": ("record", "--format", "speedscope", "-o", "{}", "--"),
    "perf": ("record", "-q", "-g", "-o", "{}", "--"),
}
"""Programs that sample the stacks of another, with what writes them to a file."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--trace",
    "place",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a trace of the GPU's work too, for ui.perfetto.dev.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Memory and waits too: a launch then takes the host 3 us longer, not 1.",
)
@click.option(
    "--stacks",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sample Python's stacks too, by py-spy or perf, whichever is installed.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the program after this long.",
    show_default="none",
)
@click.argument("words", metavar="-- python PROGRAM [ARGUMENTS]...", nargs=-1)
def command(
    *,
    place: Path | None,
    memory: bool,
    stacks: Path | None,
    timeout: float | None,
    words: tuple[str, ...],
) -> int:
    """Run a Python program, a file or -m MODULE, and say where its time on the GPU goes.

    Kernels by name with time, count and gaps, copies, and the share of the time in which
    no kernel runs, by CUPTI; without a GPU the spans of our own code. It ends as the
    program does.
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
    for option, file in (("--trace", place), ("--stacks", stacks)):
        if file:
            files.require_writable(file, option)
    sampler = _sampler(stacks) if stacks else []
    interpreter = sys.executable if python in {"python", "python3"} else python
    with scratch.folder() as folder:
        answer = Path(folder) / "events.npz"
        kinds = attached.EVERY if memory else "usual"
        line = [interpreter, "-P", "-m", MODULE, str(answer), kinds, *rest]
        code = _run([*sampler, *line], timeout)
        try:
            events = attached.read(answer)
        except (OSError, ValueError, KeyError):
            if code < 0:
                what = signal.Signals(-code).name
                click.echo(
                    f"{what} ended the program: nothing is known of it", err=True
                )
                return 128 - code  # as shells report it
            raise SteelyardError(
                f"the program ended with {code} and left nothing to show. Look for what "
                "ends its process at once, such as os._exit, or an interpreter without "
                "steelyard."
            ) from None
    found = program.ledger(events)
    tables.console(stderr=True).print(*program_table.page(events, found), sep="\n")
    if place:
        made = program_table.trace(events, " ".join(words))
        files.save(place, json.dumps(made) + "\n", "--trace")
        click.echo(f"{place}: open it at ui.perfetto.dev", err=True)
    return int(events.about["code"])  # py-spy ends with a code of its own


def _sampler(stacks: Path) -> list[str]:
    """Return the beginning of a command line that samples what follows.

    Raises:
        SteelyardError: none is installed.
    """
    for name, options in SAMPLERS.items():
        if shutil.which(name):
            hint = "speedscope.app" if name == "py-spy" else f"perf report -i {stacks}"
            click.echo(f"--stacks: by {name}, to be opened with {hint}", err=True)
            return [name, *(option.format(stacks) for option in options)]
    raise SteelyardError(
        "--stacks: neither py-spy nor perf is installed. Install one, `pip install py-spy` "
        "for example, or leave --stacks out."
    )


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

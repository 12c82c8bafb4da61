"""A package adds a command, a format, a clock, a doubt and a tool's results: a file each."""

import os
import sys
import textwrap
from pathlib import Path

import pytest
import shell

ENTRY_POINTS = """
[steelyard.commands]
greet = extra.greet:command
[steelyard.formats]
shout = extra.shout:FORMAT
[steelyard.clocks]
sundial = extra.sundial:CLOCK
[steelyard.doubts]
shade = extra.shade:DOUBT
[steelyard.imports]
tally = extra.tally:FORMAT
"""

FILES = {
    "greet": '''
        """Greet whoever asks."""
        import click

        @click.command()
        def command():
            """Greet."""
            click.echo("hello from a package")
    ''',
    "shout": """
        from steelyard.report.formats import Format

        FORMAT = Format(results=lambda found: f"{len(found.rows)} ROWS!\\n")
    """,
    "sundial": """
        from steelyard.analyse.trial import ClockFacts
        from steelyard.clocks.gpu import Kind

        class Sundial:
            def __init__(self, context):
                self.facts = ClockFacts("sundial", 1, 1.0, (), pulsed=True)

        CLOCK = Kind(Sundial, rank=9, traits={"pulsed": True})
    """,
}

FILES["shade"] = """
    from steelyard.analyse.doubts import Act, Doubt

    DOUBT = Doubt(
        "shade",
        "nobody can read a sundial in it",
        Act.OPEN,
        "it is dark on both sides",
        lambda seen: seen.warm,
    )
"""

FILES["tally"] = """
    from typing import TypedDict

    from steelyard.store.foreign import Format, Report, Result, Window


    class _File(TypedDict):
        strokes: dict[str, float]


    def _reports(found, source):
        every = found["strokes"].items()
        yield Report([Result(n, "tally", [Window(time)]) for n, time in every])


    FORMAT = Format("tally", frozenset({"strokes"}), _File, _reports)
"""

SUITE = """
import numpy
from steelyard import benchmark

@benchmark
def copy(b):
    b.mode("kernel/warm")
    x = b.input(10)
    y = b.output(10)
    return b.launch(numpy.copyto, y, x)
"""


def about(entries):
    """Return the files that say what is installed: a package with entry points."""
    return {
        "extra-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: extra\nVersion: 1\n",
        "extra-1.0.dist-info/entry_points.txt": entries,
    }


@pytest.fixture
def packaged(tmp_path):
    """Run the command line beside a package that adds one of each."""
    site = tmp_path / "site"
    texts = {
        f"extra/{name}.py": textwrap.dedent(text).lstrip()
        for name, text in {"__init__": "", **FILES}.items()
    }
    shell.files(site, texts | about(ENTRY_POINTS))
    (tmp_path / "suite.py").write_text(SUITE)
    here = str(Path(__file__).parent)
    path = os.pathsep.join([str(site), here, *sys.path])

    def run(*lines, before=""):
        done = shell.python(
            *("-c", before + SEVERAL, *lines),
            folder=tmp_path,
            check=True,
            PYTHONPATH=path,
        )
        return done.stdout.split(END)

    return run


END = "(the end of a command)\n"
SEVERAL = f"""
import shlex, sys, shell
for line in sys.argv[1:]:
    print(shell.command(*shlex.split(line), code=None).output, end={END!r})
"""
"""Runs command lines one after the other; what each prints ends with that line."""


def test_a_package_adds_a_command(packaged):
    """Help has the first line of its file."""
    shown, said, _ = packaged("--help", "greet")
    assert "greet     Greet whoever asks." in shown
    assert said == "hello from a package\n"


def test_a_package_adds_results_of_a_tool_and_a_format(packaged, tmp_path):
    """They are recognised and imported like others; it is one of what it can write."""
    (tmp_path / "t.json").write_text('{"strokes": {"five": 5.0}}')
    lines = ["show", "show --format shout", "verdict --format shout"]
    added, shown, shouted, refused, _ = packaged("import t.json", *lines)
    assert " of tally: 1 trials added" in added
    assert "5.000 s" in shown
    assert shouted == "1 ROWS!\n"
    assert "'shout' is not one of" in refused


def test_a_package_adds_a_clock(packaged):
    """It is named and made by its id, and refused where no package has it."""
    code = (
        "from steelyard.clocks import gpu\n"
        "(clock,) = gpu.clocks(None, 'sundial')\n"
        "print(clock.facts.id, clock.facts.pulsed, gpu.names())\n"
    )
    lines = [
        f"run suite.py --clock {name} --dry-run" for name in ("moondial", "sundial")
    ]
    refused, accepted, _ = packaged(*lines, before=code)
    names = "('cupti', 'events', 'globaltimer', 'graph', 'sundial')"
    said, _, refused = refused.partition("\n")
    assert said == f"sundial True {names}"
    assert "there is no clock moondial" in refused
    assert "--clock sundial is not used" in accepted


def test_a_package_adds_a_doubt(packaged, tmp_path):
    """Trials raise it, and open where nobody knows what it means."""
    policy = "from steelyard.gate import policy\nassert 'shade' in policy.acting()\n"
    said, _ = packaged("run suite.py --blocks 1 --budget 0.2 --no-check", before=policy)
    assert "shade: nobody can read a sundial in it" in said
    alone = shell.steelyard("show", folder=tmp_path)
    assert "shade: not known to this steelyard" in alone.stdout, alone.stderr


def test_entry_points_are_read_only_where_a_package_has_some(tmp_path):
    """Reading them takes 20 ms in each process that measures, and most have none."""
    script = (
        "import sys; from steelyard_device import entries; "
        "print(*[e.name for e in entries.entry_points('steelyard.nobodys')], "
        "'importlib.metadata' in sys.modules)"
    )
    assert shell.python("-c", script, check=True).stdout.split() == ["False"]
    shell.files(tmp_path, about("[steelyard.nobodys]\nmine = os:path\n"))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"
    done = shell.python("-c", script, check=True)
    assert done.stdout.split() == ["mine", "True"]

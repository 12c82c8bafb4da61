"""Every listing of README.md and docs runs, or is what its tool's own parser accepts."""

import functools
import importlib.util
import json
import re
import runpy
import shlex
import sys
import tomllib
import types
from itertools import chain
from pathlib import Path
from unittest import mock

import click
import pytest
import shell
import trials
import yaml

from steelyard.analyse import doubts
from steelyard.commands import init, main
from steelyard.declare import claims_file, config, discovery
from steelyard.declare.plan import Settings
from steelyard.gate import policy_file, words
from steelyard.measure.prepared import PreparedCase
from steelyard_device import install

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
TABLES = types.SimpleNamespace(**runpy.run_path(str(ROOT / "ci" / "tables.py")))
CAPTION = re.compile(r"`(?:steelyard|python) [^`]*` on .*, commit `[0-9a-f]{7,10}`")
CELL = re.compile(r"-|[\d.]+( (ns|us|ms|s))?( ± (> )?[\d.]+( %)?)?( \?)?")
FENCE = re.compile(r"^( *)```(\w+|\{.*?\})\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)

LIBRARIES = ("triton", "triton.language", "cupy", "numba", "torch")
ELSEWHERE = install.requirement(install.ELSEWHERE)
ABSENT = [
    name
    for name in LIBRARIES
    if importlib.util.find_spec(name.partition(".")[0]) is None
]
WORKFLOW = init.gate(f"python -m pip install -e . {ELSEWHERE}")
"""Of CI, as `init` writes it."""
OTHER_TOOLS = {"cd", "eval", "git", "jq", "make", "pip"}
"""Commands that are not held against a parser."""


def listings(*languages):
    """Return the listings of all pages in these languages, as parameters of a test."""
    found = []
    for page in PAGES:
        text = page.read_text().replace(f"```yaml\n{WORKFLOW}```\n", "")
        blocks = [(b[1], b[2], len(b[0])) for b in FENCE.findall(text)]
        bare = FENCE.sub("", text)
        blocks += [("sh", b, 4) for b in INDENTED.findall(bare)]
        for number, (language, block, indent) in enumerate(blocks):
            if language in languages:
                lines = [line[indent:] for line in block.splitlines(keepends=True)]
                name = f"{page.name}-{number}"
                found.append(pytest.param("".join(lines), id=name))
    return found


def commands():
    """Return every command line of the pages, each once, without its comment."""
    lines = chain.from_iterable(
        param.values[0].splitlines() for param in listings("sh")
    )
    return list(
        dict.fromkeys(line.partition("  #")[0].rstrip() for line in lines if line)
    )


def test_every_listing_is_in_a_language_that_a_test_here_reads():
    """And there are some of each."""
    read = {"python", "sh", "toml", "yaml", "json"}
    shown = {"text", "{eval-rst}", "{toctree}"}
    every = [block[1] for page in PAGES for block in FENCE.findall(page.read_text())]
    assert set(every) <= read | shown
    assert all(listings(language) for language in read)


@pytest.mark.parametrize("listing", listings("python"))
def test_python_runs_and_benchmarks_are_right(listing, tmp_path, monkeypatch):
    """On a GPU they are described; where a library is missing, another stands in."""
    file = tmp_path / f"{tmp_path.name}.py"
    file.write_text(listing)
    if "__file__" in listing:  # asv's adapter: beside a suite it has a class of each
        (tmp_path / "bench_example.py").write_text(init.EXAMPLE)
        (tmp_path / "__init__.py").touch()
        made = {"__file__": str(file)}
        exec(listing, made)
        assert "softmax_rows" in made
        return
    if "@benchmark" not in listing:
        for name in ("jax", "torch"):
            if f"import {name}" in listing and not importlib.util.find_spec(name):
                pytest.skip(f"needs {name}: pip install 'steelyard[{name}]'")
        shell.python(str(file), check=True)
        return
    on_gpu = 'b.on("cuda")' in listing
    for library in ABSENT if on_gpu else ():
        monkeypatch.setitem(sys.modules, library, mock.MagicMock())
    (found,) = discovery.discover([str(file)])
    described = [case.describe() for case in found.cases()]
    assert all(one.check is not None for one in described)
    assert {one.device for one in described} == {"cuda" if on_gpu else "cpu"}
    if not on_gpu:
        assert PreparedCase(found.cases()[0], Settings()).checked


@pytest.mark.parametrize("line", commands())
def test_a_command_line_is_one_that_its_tool_takes(line):
    """Options, choices and numbers of arguments; nothing is measured."""
    words = shlex.split(line)
    tool = Path(words[0]).name
    if tool == "steelyard":
        parsed(main, words[1:])
    elif tool == "asv":
        accepted(words[1:])
    elif tool == "pytest":
        known = set(re.findall(r"(?<![\w-])-[\w-]+", of_pytest()))
        assert {w.partition("=")[0] for w in words if w.startswith("-")} <= known
    else:
        assert tool in OTHER_TOOLS
        extras = re.search(r"\[([\w,]+)\]$", words[-1]) if tool == "pip" else None
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = extras[1].split(",") if extras else []
        assert set(wanted) <= set(known["optional-dependencies"])


@functools.cache
def of_pytest():
    """Return every option of pytest and its plugins, as its help has them."""
    return shell.pytest_in(ROOT, "--help").stdout


def parsed(group, words):
    """Parse a command of ours without running it."""
    context = click.Context(group)
    name, command, rest = group.resolve_command(context, list(words))
    if rest in (["--help"], ["-h"]):
        return
    with command.make_context(name, rest, parent=context):
        pass


def accepted(words):
    """Let asv parse its own command line."""
    from asv.commands import make_argparser

    parser, _ = make_argparser()
    assert parser.parse_args(words).func


@pytest.mark.parametrize("listing", listings("toml"))
def test_toml_is_a_configuration_that_is_read(listing, tmp_path):
    """As steelyard's own table, as claims, as the gate's policy, or as pytest's."""
    found = tomllib.loads(listing)
    if "claim" in found:
        assert claims_file.parse(listing, tmp_path / "claims.toml").claims
    elif "tool" not in found:
        assert policy_file.parse(listing, tmp_path / "policy.toml").tolerances
    elif "pytest" in found["tool"]:
        assert set(found["tool"]["pytest"]["ini_options"]) == {"steelyard_suites"}
    else:
        (tmp_path / "pyproject.toml").write_text(listing)
        assert config.load(folder=tmp_path, environment={}).suites


@pytest.mark.parametrize("listing", listings("json"))
def test_json_is_a_configuration_that_asv_reads(listing, tmp_path):
    """With every key known to it."""
    from asv.config import Config

    (tmp_path / "asv.conf.json").write_text(listing)
    assert Config.load(str(tmp_path / "asv.conf.json")).benchmark_dir == "benchmarks"
    assert set(json.loads(listing)) <= set(Config().__dict__) | {"version"}


@pytest.mark.parametrize("listing", listings("yaml"))
def test_workflows_call_what_is_there(listing):
    """The inputs are those of the workflow that is called."""
    (job,) = yaml.safe_load(listing)["jobs"].values()
    called = job["uses"].partition("@")[0].split("/", 2)[2]
    workflow = yaml.safe_load((ROOT / called).read_text())
    assert set(job["with"]) <= set(workflow[True]["workflow_call"]["inputs"])


def test_the_workflow_of_the_page_is_the_one_that_init_writes():
    """Its first listing, but for where steelyard comes from."""
    text = (ROOT / "docs" / "ci.md").read_text()
    assert text.partition("```yaml\n")[2].partition("```\n")[0] == WORKFLOW


def test_every_setting_and_every_doubt_has_its_row():
    """In the table of settings; in that of doubts; and no other has."""
    settings = (ROOT / "docs" / "configuration.md").read_text()
    assert re.findall(r"^\| `(\w+)`", settings, re.MULTILINE) == list(config.READERS)
    (_, table) = (ROOT / "docs" / "rows.md").read_text().split("## Doubts\n")
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(named) == list(doubts.known())


def test_verdicts_mean_on_a_terminal_what_the_page_says():
    """A reader of the table finds there what a word of it means."""
    page = (ROOT / "docs" / "gate.md").read_text()
    for verdict, meaning in words.MEANINGS.items():
        assert f"| `{verdict}` | {meaning} |" in page


def test_pages_are_short_enough_to_be_read():
    """900 words of README, 9,000 of all pages; prose is at most 100 columns wide."""
    words = {page: len(page.read_text().split()) for page in PAGES}
    assert words[README] <= 900
    assert sum(words.values()) <= 9000
    for page in PAGES:
        prose = FENCE.sub("", TABLES.TABLE.sub("", page.read_text()))
        assert [
            x for x in prose.splitlines() if len(x) > 100 and x[0] not in "| "
        ] == []


MARKED = [
    pytest.param(*found, id=f"{page.name}: {found[0]}")
    for page in PAGES
    for found in TABLES.TABLE.findall(page.read_text())
]


@pytest.mark.parametrize(("command", "table"), MARKED)
def test_a_table_between_markers_is_what_its_command_prints(command, table):
    """A line that says where it comes from, a title, and rows of numbers."""
    tool, *words = shlex.split(command)
    if tool == "steelyard":
        parsed(main, words)
    else:
        assert (ROOT / words[0]).is_file()
    caption, *lines = filter(None, table.splitlines())
    assert CAPTION.fullmatch(caption)
    heads, marks, *rows = [x.split(" | ") for x in lines if x.startswith("|")]
    assert len(lines) - len(rows) - 2 == (tool == "steelyard")
    assert {len(marks), *map(len, rows)} == {len(heads)}
    numbers = [one.rstrip(" |") for row in rows for one in row[1:]]
    assert len(numbers) >= 2
    assert all(map(CELL.fullmatch, numbers)), numbers


def test_tables_between_markers_are_made_again(tmp_path, monkeypatch):
    """Of the run that is named; where there is none the table stays, and that is said."""
    monkeypatch.setenv("STEELYARD_STORE", str(tmp_path / "store.db"))
    command = "steelyard show readme --across impl --format markdown"
    page = f"# A page\n<!-- {command} -->\nold\n<!-- end -->\nprose\n"
    other = page.replace("show", "list")
    trials.kept(tmp_path / "store.db", [])
    assert TABLES.refreshed(page, "steelyard show") == (page, False)
    assert TABLES.refreshed(other, "steelyard show") == (other, True)
    cases = [f"copy[n=8,impl={impl}]" for impl in ("ours", "numpy")]
    made = [trials.trial(case, block=block) for case in cases for block in range(2)]
    trials.kept(tmp_path / "store.db", made, tags=("readme",))
    made, done = TABLES.refreshed(page, "steelyard show")
    assert done
    assert "\n**copy[n=8] kernel/warm**\n\n| impl=numpy | impl=ours |\n" in made
    assert TABLES.refreshed(made, "steelyard show") == (made, True)


def test_pages_link_to_pages_that_are_there():
    """From the README, and back."""
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
            assert (page.parent / link).is_file(), (page, link)


def test_every_page_is_in_the_contents_of_the_site():
    """Each once; Sphinx refuses those that are not."""
    (contents,) = re.findall(
        r"```\{toctree\}\n.*?\n\n(.*?)```",
        (ROOT / "docs" / "index.md").read_text(),
        re.DOTALL,
    )
    pages = {page.stem for page in PAGES} - {"README", "index"} | {"results/claims"}
    assert sorted(contents.split()) == sorted(pages)

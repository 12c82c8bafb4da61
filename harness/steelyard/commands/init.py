"""Write a first suite, its configuration and a CI workflow into a repository.

Files that are there are kept. Two are added to: ``pyproject.toml`` and ``.gitignore``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from steelyard.errors import SteelyardError
from steelyard.machine import git
from steelyard_device import install

PROJECT: Final = "pyproject.toml"
SUITE: Final = "benchmarks/bench_example.py"
WORKFLOW: Final = ".github/workflows/steelyard.yml"

EXAMPLE: Final = '''\
"""A first benchmark. Run it with `steelyard run`."""

import numpy as np
from steelyard import benchmark


def softmax(x, out):
    """Replace this by an import of your own kernel."""
    np.subtract(x, x.max(-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(-1, keepdims=True)


def reference(x):
    """Return what a right result is; x is float64 here."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@benchmark(columns=[128, 1024])
def softmax_rows(b, columns):
    x = b.input((64, columns))  # random float32, always the same
    y = b.output((64, columns))
    b.check(reference, x)
    return b.launch(softmax, x, out=y)
'''

TABLE: Final = """\
[tool.steelyard]
suites = ["benchmarks"] # files, folders or modules
"""

IGNORED: Final = ".steelyard/"
"""Where runs are kept."""

GATE: Final = """\
# Fails a pull request that makes a benchmark slower.
name: steelyard{suffix}

on: pull_request

permissions:
  contents: read

jobs:
  gate:
    # A fork's code is not measured. A quiet runner of your own sees smaller changes.
    if: github.event.pull_request.head.repo.full_name == github.repository
    runs-on: ubuntu-24.04
    timeout-minutes: 60
{where}    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0 # the base is a commit
          persist-credentials: false
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: {install}
      - run: steelyard gate --ci gate --budget 1200 -- "$BASE"
        env:
          BASE: ${{{{ github.event.pull_request.base.sha }}}}
      - run: cat gate/summary.md >> "$GITHUB_STEP_SUMMARY"
        if: always()
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: gate{suffix}
          path: {prefix}gate
"""

WHERE: Final = """\
    defaults:
      run:
        working-directory: "{prefix}"
"""
"""Of a project that is a folder of its repository."""


@click.command()
@click.argument(
    "folder", default=".", type=click.Path(path_type=Path, file_okay=False, exists=True)
)
def command(folder: Path) -> None:
    """Write a first suite, its configuration and a CI workflow into FOLDER.

    FOLDER is a repository, here unless it is named. No file is overwritten; to
    pyproject.toml and .gitignore lines are added.
    """
    project = _add(folder / PROJECT, TABLE, _configured)
    _say(_new(folder / SUITE, EXAMPLE), SUITE, "two cases to start from")
    _say(project, f"[tool.steelyard] in {PROJECT}", "what is measured")
    ignored = _add(folder / ".gitignore", f"{IGNORED}\n", _ignores)
    _say(ignored, f"{IGNORED} in .gitignore", "where runs are kept")
    own = ["-e ."] if _installable(folder / PROJECT) else []
    line, known = install.elsewhere(*own)
    up, prefix = _within(folder)
    workflow = up + WORKFLOW.replace(".yml", f"{_suffix(prefix)}.yml")
    new = _new(folder / workflow, gate(line, prefix))
    _say(new, workflow, "a gate for pull requests")
    if new and not known:
        click.echo(f"\nIn {workflow} say where steelyard is installed from.")
    here = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    click.echo(f"\nnext: {here}steelyard run")
    click.echo("then: commit, change a kernel, and `steelyard gate HEAD`")


def gate(install: str, prefix: str = "") -> str:
    """Return the workflow of a project, which may be a folder of its repository."""
    where = WHERE.format(prefix=prefix) if prefix else ""
    suffix = _suffix(prefix)
    return GATE.format(install=install, where=where, prefix=prefix, suffix=suffix)


def _suffix(prefix: str) -> str:
    return f"-{Path(prefix).name}" if prefix else ""


def _within(folder: Path) -> tuple[str, str]:
    """Return the way up to a folder's repository and down again; nothing at its root.

    GitHub looks for workflows there alone.
    """
    asked = "rev-parse", "--show-cdup", "--show-prefix"
    said = (git.output(folder, *asked) or "").splitlines()
    up, prefix = said if len(said) == 2 else ("", "")
    return up, prefix


def _say(done: bool, what: str, why: str) -> None:
    click.echo(f"{'wrote' if done else 'kept '} {what:<36} {why}")


def _new(path: Path, text: str) -> bool:
    """Write a file where there is none; say whether there was none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise _refused(path, error) from error
    return True


def _add(path: Path, text: str, there: Callable[[str], bool]) -> bool:
    """Append to a file what is not there yet; say whether it was not."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if there(before):
            return False
        end = "\n" if before and not before.endswith("\n") else ""
        gap = "\n" if before and text.startswith("[") else ""
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{end}{gap}{text}")
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error
    return True


def _refused(path: Path, error: Exception) -> SteelyardError:
    why = getattr(error, "strerror", None) or error
    return SteelyardError(
        f"{path} cannot be read or added to: {why}. Correct that and run "
        "`steelyard init` again; it keeps what it wrote."
    )


def _configured(text: str) -> bool:
    return "steelyard" in tomllib.loads(text).get("tool", {})


def _ignores(text: str) -> bool:
    wanted = IGNORED.strip("/")
    return any(line.strip().strip("/") == wanted for line in text.splitlines())


def _installable(path: Path) -> bool:
    return not {"project", "build-system"}.isdisjoint(tomllib.loads(path.read_text()))

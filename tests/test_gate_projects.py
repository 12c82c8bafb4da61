"""What both sides of a gate import of a project, however that is installed."""

import json
import sys
import tempfile
from contextlib import ExitStack

import pytest
import shell
from shell import git

from steelyard.errors import USAGE, SteelyardError
from steelyard.gate import projects, worktrees
from steelyard.gate.sides import Side

BACKEND = """
import zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = NAME
    if Path("broken").exists():
        raise SystemExit("no compiler here")
    info = f"{name}-1.dist-info"
    wheel = Path(folder) / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in Path(SOURCES).rglob("*.py"):
            if path.name != "backend.py":
                file.write(path, path.relative_to(SOURCES))
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel.name
"""

PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "{name}"
version = "1"
"""


def distribution(folder, name, sources, *files, where="1"):
    """Write a project with a build backend of its own."""
    backend = BACKEND.replace("SOURCES", repr(sources)).replace(
        "NAME", repr(name.replace("-", "_"))
    )
    texts = {"pyproject.toml": PROJECT.format(name=name), "backend.py": backend}
    texts |= {f"{sources}/{file}": f"WHERE = {where!r}\n" for file in files}
    shell.files(folder, texts)


def installed(site, name, origin, *files, editable=False, tops=""):
    """Install files as of another commit, with what an installer writes beside them."""
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        "RECORD": "".join(f"{file},,\n" for file in files),
    }
    if tops:
        about["top_level.txt"] = tops
    if origin:
        facts = {"url": f"file://{origin}", "dir_info": {"editable": editable}}
        about["direct_url.json"] = json.dumps(facts)
    shell.files(site / f"{name}-1.dist-info", about)
    shell.files(site, dict.fromkeys(files, "WHERE = 'installed'\n"))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a repository, where things are installed, and what commits it twice."""
    root, site = tmp_path / "checkout", tmp_path / "site-packages"
    for folder in (root, site):
        folder.mkdir()
    monkeypatch.chdir(root)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.syspath_prepend(site)
    # What other tests have left there may be a project of the same name.
    others = [place for place in sys.path if str(tmp_path.parent) not in place]
    sys.path[:] = [str(site), *filter(None, others)]
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)

    def commit():
        """Commit what there is, and leave head a change that is not committed."""
        shell.commit(root, "first")
        for file in root.rglob("*.py"):
            file.write_text(file.read_text().replace("'1'", "'2'"))

    return root, site, commit


def imported(names):
    """Return what processes of base and of head import, or why they are refused."""
    script = """
import importlib, os, sys
from steelyard.process.origins import Origins
sys.path.append(os.getcwd())
found = [importlib.import_module(name).WHERE for name in sys.argv[1:]]
print(*(["refused"] if Origins.stated().refusal() else found))
"""
    with ExitStack() as opened:
        head = opened.enter_context(Side.head().prepared())
        base = opened.enter_context(Side.of_ref("HEAD"))
        return [
            shell.run(
                [side.python, "-P", "-c", script, *names], side.root, side.variables()
            ).stdout.split()
            for side in (base, head.beside(base))
        ]


LAYOUTS = {
    "": ("src", ["of_src/__init__.py"], "of_src"),
    "flat": (".", ["of_flat/__init__.py"], "of_flat"),
    "module": (".", ["of_module.py"], "of_module"),
    "lib/ns": ("src", ["acme/mine/__init__.py", "acme/one.py"], "acme.mine"),
}
"""By the folder of a distribution: its sources, what they are and are imported as."""


def test_each_side_runs_its_own_code_of_an_installed_copy(checkout):
    """Whichever commit was installed, by whatever name, head's changes included.

    Of a namespace other distributions' parts stay what they are.
    """
    root, site, commit = checkout
    for folder, (sources, files, name) in LAYOUTS.items():
        distribution(root / folder, f"{name.replace('.', '-')}-dist", sources, *files)
    commit()
    installed(site, "of_src_dist", root, *LAYOUTS[""][1])
    installed(site, "of_flat_dist", root / "dist" / "x.whl", *LAYOUTS["flat"][1])
    installed(site, "renamed", "", *LAYOUTS["module"][1])  # from an index: nobody knows
    installed(site, "acme_mine_dist", root / "lib" / "ns", *LAYOUTS["lib/ns"][1])
    installed(site, "other", "", "acme/other.py", "third.py")
    distribution(root / "tests" / "data", "third", ".", "third.py")  # is a fixture
    assert projects.find(root).folders == tuple(sorted(LAYOUTS))
    names = [name for _, _, name in LAYOUTS.values()]
    assert imported([*names, "acme.other", "third"]) == [
        [told] * 4 + ["installed"] * 2 for told in ("1", "2")
    ]
    assert git(root, "status", "--porcelain").count("??") == 1  # that fixture
    assert list(root.parent.glob(f"{worktrees.PREFIX}*")) == []


@pytest.mark.parametrize("how", ["path", "finder", "foreign finder", "not at all"])
def test_sources_that_are_imported_from_the_checkout_are_not_built(
    checkout, monkeypatch, how
):
    """An editable install whose finder may lead anywhere is."""
    root, site, commit = checkout
    sources = "." if how in {"finder", "not at all"} else "src"
    distribution(root, "mine", sources, "mine/__init__.py")
    commit()
    if how == "path":
        monkeypatch.syspath_prepend(root / "src")
    if how != "not at all":
        files = ["__editable___mine_finder.py"] * how.endswith("finder")
        installed(site, "mine", root, *files, editable=True, tops="mine")
    built = how == "foreign finder"
    assert projects.find(root).folders == ("",) * built
    assert imported(["mine"]) == [["1"], ["2"]]


def test_native_code_beside_editable_sources_is_built_for_each_side(
    checkout, monkeypatch
):
    """No other commit has what was built in place."""
    root, site, commit = checkout
    distribution(root, "mine", "src", "mine/__init__.py")
    (root / ".gitignore").write_text("*.so\n")
    commit()
    monkeypatch.syspath_prepend(root / "src")
    installed(site, "mine", root, editable=True)
    assert projects.find(root).folders == ()
    (root / "src" / "mine" / "core.so").touch()
    assert projects.find(root).folders == ("",)
    assert imported(["mine"]) == [["1"], ["2"]]


def test_a_side_that_does_not_build_says_why_and_what_to_do(checkout):
    """Base, and head; and a project that nothing can build is refused when imported."""
    root, site, commit = checkout
    distribution(root, "mine", ".", "mine/__init__.py")
    (root / "broken").touch()
    commit()
    installed(site, "mine", root, "mine/__init__.py")
    for side in (Side.head().prepared(), Side.of_ref("HEAD")):
        with pytest.raises(SteelyardError, match="no compiler here") as told, side:
            pytest.fail("it was measured")
        assert told.value.exit_code == USAGE
        assert "does not build, and what is installed is" in str(told.value)
        assert "[tool.steelyard] build" in str(told.value)
        assert str(told.value).count("no compiler here") == 1
    (root / "pyproject.toml").unlink()
    (site / "mine-1.dist-info" / "direct_url.json").unlink()
    git(root, "commit", "-qam", "no project")
    assert imported(["mine"]) == [["refused"], ["refused"]]


def test_a_build_command_is_for_both_sides_of_an_installed_copy(checkout):
    """In a checkout of each, head's with its changes."""
    root, site, commit = checkout
    distribution(root, "mine", "src", "mine/__init__.py")
    commit()
    installed(site, "mine", root, "mine/__init__.py")
    script = root.parent / "build.py"
    script.write_text(
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "line = [sys.executable, '-m', 'venv', '--without-pip', '.venv']\n"
        "subprocess.run(line, check=True)\n"
        "(site,) = Path('.venv').glob('lib/python*/site-packages')\n"
        "(site / 'mine.py').write_text(Path('src/mine/__init__.py').read_text())\n"
    )
    build = f"{sys.executable} {script}"
    with (
        Side.head().prepared(build) as head,
        Side.of_ref("HEAD", build=build) as base,
    ):
        for side, told in ((base, "1"), (head.beside(base), "2")):
            variables = {**side.variables(), "PYTHONPATH": ""}
            line = [side.python, "-P", "-c", "import mine; print(mine.WHERE)"]
            assert shell.run(line, None, variables).stdout.strip() == told
            own = [one for one in side.origins.places if "/.venv/" in one]
            assert own[0].startswith(str(root.parent / worktrees.PREFIX))

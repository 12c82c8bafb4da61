import fcntl
import mmap
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import shell
from shell import git

from steelyard.errors import USAGE, SteelyardError
from steelyard.gate import listing, sides, worktrees
from steelyard.gate.sides import Side
from steelyard.process.origins import Origins
from steelyard.store.session import Request

SUITE = """
import numpy
from steelyard import benchmark
from mine import work

@benchmark(n=[{sizes}])
def adding(b, n):
    b.mode("kernel/warm")
    x = b.input((n,), "float64")
    y = b.output((n,), "float64")
    b.check(lambda x: x, x)
    return b.launch(work, x, out=y)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a project whose kernel changed since its only commit, and stand in it."""
    root = tmp_path / "project"
    work = "def work(x, out):\n    out[:] = {} * x\n"
    write(root, work.format(1), "16, 32")
    shell.commit(root, "first")
    write(root, work.format(2), "32, 64")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(root / "src")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield root
    for name in [n for n in sys.modules if n.partition(".")[0] == "mine"]:
        del sys.modules[name]


def write(root, text, sizes):
    """Write a kernel and a suite."""
    suite = SUITE.format(sizes=sizes)
    shell.files(root, {"src/mine/__init__.py": text, "suites/adding.py": suite})


def homes(tmp_path):
    """Return what gates have left."""
    return list(tmp_path.glob(f"{worktrees.PREFIX}*"))


def imported(side, expression):
    """Return what a process of a side's prints."""
    command = [side.python, "-c", f"import mine, steelyard; print({expression})"]
    return shell.run(command, side.root, side.variables()).stdout.strip()


def test_sources_that_a_link_leads_to_are_the_checkouts(project, monkeypatch):
    """A path by way of a link, such as a home's, would leave base with head's."""
    link = project.with_name("link")
    link.symlink_to(project)
    places = [p for p in sys.path if p != str(project / "src")]
    monkeypatch.setattr(sys, "path", [str(link / "src"), *places])
    with Side.of_ref("HEAD", ["suites"]) as base:
        assert imported(base, "mine.__file__").startswith(str(base.root))


def test_variables_lead_each_side_to_its_own(project, monkeypatch):
    """What a project reads by them would be head's on both sides."""
    (project / "built").mkdir()
    monkeypatch.setenv("MINE_HOME", str(project))
    monkeypatch.setenv("MINE_PATH", f"{project}/src:{project}/built:/usr::{project}2")
    with Side.of_ref("HEAD", ["suites"]) as base:
        told, kept = base.variables(), Side.head().beside(base).variables()
        assert told["MINE_HOME"] == str(base.root)
        changed = f"{base.root}/src:{project}/built:/usr::{project}2"
        assert told["MINE_PATH"] == changed
        assert kept["MINE_HOME"] == str(project)


def test_sides_start_where_the_command_did(project, monkeypatch):
    """As `run` does: a project may read a file by its path from there."""
    suite = project / "suites" / "adding.py"
    suite.write_text(f"open('adding.py').close()\n{suite.read_text()}")
    git(project, "commit", "-qam", "second")
    monkeypatch.chdir(suite.parent)
    with Side.of_ref("HEAD", ["."]) as base:
        for side in (base, Side.head().beside(base)):
            asked = Request([str(side.path_of(suite))])
            assert len(listing.of(side, asked).cases) == 2
    with Side.of_ref("HEAD~1") as base:
        assert base.folder == base.root / "suites"
    (project / "more").mkdir()
    monkeypatch.chdir(project / "more")
    with Side.of_ref("HEAD") as base:
        assert base.folder == base.root


def test_head_is_run_with_a_path_like_bases(project):
    """As long, with its own sources where base has base's."""
    with Side.of_ref("HEAD", ["suites"]) as base:
        head = Side.head().beside(base)
        assert imported(head, "mine.work([1], out := [0]) or out") == "[1, 1]"
        sides_path = [
            imported(side, "len(__import__('sys').path)") for side in (base, head)
        ]
        assert sides_path[0] == sides_path[1]
        assert imported(head, "mine.__file__").startswith(str(project))


@pytest.mark.parametrize("told", ["", "1"])
def test_both_sides_keep_bytecode_or_neither_does(project, monkeypatch, told):
    """A worktree would compile all of its sources in each process that is timed."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", told)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    with Side.of_ref("HEAD", ["suites"]) as base:
        head = Side.head().beside(base)
        places = [Path(imported(s, "mine.__cached__")) for s in (base, head)]
        assert [place.exists() for place in places] == [True, True]
        ours = [base.root.parent in place.parents for place in places]
        assert ours == [True, bool(told)]


def test_what_goes_wrong_meanwhile_leaves_no_worktree(project, tmp_path):
    """Not even Ctrl-C does."""
    with pytest.raises(KeyboardInterrupt), Side.of_ref("HEAD"):
        raise KeyboardInterrupt
    assert homes(tmp_path) == []


@pytest.mark.parametrize("ref", ["nothing", "--all", ""])
def test_a_baseline_that_git_does_not_know_says_so(project, ref):
    """An option of git's is no commit either."""
    with pytest.raises(SteelyardError, match="is no commit of") as told:
        worktrees.require_commit(ref, project)
    assert told.value.exit_code == USAGE


def test_a_commit_that_a_shallow_clone_lacks_can_be_fetched(project, tmp_path):
    """Continuous integration clones one commit, unless it is told otherwise."""
    git(project, "commit", "-q", "-a", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", project.as_uri(), "shallow")
    assert "--unshallow" in worktrees.no_commit("HEAD~1", tmp_path / "shallow")
    git(project, "checkout", "-q", "-b", "trunk")
    assert "where branch trunk is" in worktrees.no_commit("main", project)


def test_a_folder_that_is_no_repository_is_told_apart_from_a_commit_that_is_none(
    project, tmp_path
):
    """Or it is another user's, or there is no git: git says which."""
    assert "`git status` there" in worktrees.no_commit("main", tmp_path)
    assert "`git status` there" not in worktrees.no_commit("nothing", project)


def test_submodules_are_those_of_each_side(project, tmp_path):
    """Worktrees have empty folders there, so that no base could be imported."""
    inner = tmp_path / "inner"
    for number in (1, 2):
        shell.commit(shell.files(inner, {"kernel.py": str(number)}))
        if number == 1:
            add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q")
            git(project, *add, str(inner), "lib é")
            git(project, "commit", "-q", "-m", "with a submodule")
    lib = project / "lib é"
    git(lib, "pull", "-q")
    (lib / "new.py").write_text("not committed")
    with Side.of_ref("HEAD") as base:
        tree = base.root / lib.name
        assert (tree / "kernel.py").read_text() == "1"
        worktrees.bring(project, base.root)
        assert (tree / "kernel.py").read_text() == "2"
        assert (tree / "new.py").exists()
    assert homes(tmp_path) == []
    empty = "0" * 39 + "1"
    git(project, "update-index", "--cacheinfo", f"160000,{empty},lib é")
    git(project, "commit", "-q", "-m", "what nobody pushed")
    with pytest.raises(SteelyardError, match=f"fetch origin {empty}"):
        Side.of_ref("HEAD").__enter__()
    assert homes(tmp_path) == []


def test_a_base_that_does_not_build_says_why_and_is_removed(project, tmp_path):
    """With the end of its log."""
    script = project / "build.py"
    script.write_text("print('line 1'); print('no compiler'); raise SystemExit(3)")
    build = f"{sys.executable} {script}"
    with (
        pytest.raises(SteelyardError, match=r"ended with 3(.|\n)*no compiler") as told,
        Side.of_ref("HEAD", build=build),
    ):
        pytest.fail("it was measured")
    assert told.value.exit_code == USAGE
    assert homes(tmp_path) == []
    with (
        pytest.raises(
            SteelyardError, match=r"ended with 127 in the top(.|\n)*not found"
        ),
        Side.of_ref("HEAD", build="/no/such/compiler"),
    ):
        pytest.fail("it was measured")


def test_a_build_may_make_an_environment_of_its_own(project):
    """Its interpreter runs base, and finds what the harness needs behind its own."""
    build = f"true && {sys.executable} -m venv --without-pip .venv > build.log"
    with Side.of_ref("HEAD", build=build) as base:
        assert Path(base.python) == base.root / ".venv" / "bin" / "python"
        assert imported(base, "__import__('sys').prefix") == str(base.root / ".venv")
        assert imported(base, "__import__('numpy').__name__") == "numpy"


def test_a_build_is_announced(project):
    """It may take minutes; nothing is said where nothing is built."""
    said = []
    with Side.of_ref("HEAD", build="true", say=said.append) as base:
        assert said == [f"base {base.commit[:12]}: building by `true`"]
    with Side.of_ref("HEAD", say=said.append):
        assert len(said) == 1


def test_a_library_that_is_older_than_its_source_is_named(project):
    """A forgotten `make` measures the code of before, which is the same as base's."""
    built = {"libk.so": "", "libs/site-packages/x.so": ""}
    shell.files(project, {".gitignore": "*.so\n", "kernel.c": "int one;\n", **built})
    for place in built:
        os.utime(project / place, (1, 1))
    git(project, "add", ".")
    assert worktrees.stale(project, worktrees.changed(project, "HEAD")) == (
        "libk.so of the checkout is older than kernel.c, which changed: if it is made "
        "of it, build the checkout and gate again"
    )
    assert worktrees.stale(project, ("src/mine/__init__.py", "run.sh", "gone.c")) == ""
    (project / "build_k.py").write_text('ffi.set_source("_k", "int one;")\n')
    assert "older than build_k.py" in worktrees.stale(project, ("build_k.py",))
    (project / "libk.so").touch()
    assert worktrees.stale(project, ("kernel.c", "build_k.py")) == ""


def test_the_worktree_of_a_killed_gate_is_removed_by_the_next(project, tmp_path):
    """Git knows nothing of it any more; that of a living gate stays."""
    names = [f"{worktrees.PREFIX}{name}" for name in ("left", "used")]
    for home in (tmp_path / name for name in names):
        home.mkdir()
        git(project, "worktree", "add", "-q", "--detach", str(home / worktrees.TREE))
    held = os.open(home, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    worktrees.remove_left(project)
    assert not (tmp_path / names[0]).exists()
    assert (home / worktrees.TREE / "suites").exists()
    os.close(held)
    worktrees.remove_left(project)
    assert not home.exists()
    assert git(project, "worktree", "list").count("\n") == 0


def test_a_worker_refuses_what_it_imports_from_the_other_side(project):
    """What is installed in an environment within the checkout is nobody's."""
    import mine  # from the project

    assert Origins().refusal() is None
    assert Origins(avoided=(f"{project}/src/mi",)).refusal() is None
    told = Origins(avoided=(str(project),), wrong="it is head's.")
    assert told.refusal() == f"mine from {mine.__file__}: it is head's."
    assert replace(told, places=(str(project / "src"),)).refusal() is None
    mine.__file__ = f"{project}/.venv/lib/site-packages/mine.py"
    assert told.refusal() is None
    named = replace(told, names=("min", "mine.deep"), places=(str(project),))
    assert named.refusal() is None
    named = replace(named, names=("mine",))
    assert Origins.stated(named.variable()).refusal() == named.refusal() is not None


def test_a_worker_refuses_libraries_that_it_loads_from_the_other_side(project):
    """LD_LIBRARY_PATH or a full path in ctypes.CDLL leads to head's on both sides."""
    library = project / "build" / "libk.so"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    told = Origins(avoided=(str(project),), wrong="it is head's.")
    with library.open("rb") as file:
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):  # data
            assert told.refusal() is None
        executable = mmap.PROT_READ | mmap.PROT_EXEC
        with mmap.mmap(file.fileno(), 0, prot=executable):
            assert told.refusal() == f"{library}: it is head's."
            assert replace(told, places=(str(library.parent),)).refusal() is None
            assert Origins(names=("mine",)).refusal() is None
    assert told.refusal() is None


def test_environments_of_workers_differ_in_length(project):
    """Where the stack lies must not tell the sides apart."""
    head = Side.head()
    assert head.root == project.resolve()
    lengths = {len(head.variables()[sides.PADDING]) for _ in range(20)}
    assert len(lengths) > 1


def test_a_commit_under_way_keeps_its_index(project, monkeypatch):
    """A gate in a hook of git's: the commit would have been that of base's tree."""
    index = project / "index.lock"
    monkeypatch.setenv("GIT_INDEX_FILE", str(index))
    monkeypatch.setenv("GIT_DIR", str(project / ".git"))
    git(project, "add", "src")
    before = index.read_bytes()
    with Side.of_ref("HEAD", ["suites"]) as base:
        assert imported(base, "mine.work([1], out := [0]) or out") == "[1]"
    assert index.read_bytes() == before


def test_hooks_of_git_and_builds_have_no_credentials_of_a_store(project, monkeypatch):
    """Making base's tree runs both."""
    seen = project / "seen.txt"
    hook = project / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nenv >> {seen}\n")
    hook.chmod(0o755)
    for name in ("STEELYARD_STORE", "PGPASSWORD"):
        monkeypatch.setenv(name, "correct horse")
    with Side.of_ref("HEAD", build=f"sh -c 'env >> {seen}'"):
        assert "PATH=" in seen.read_text()
        assert "STEELYARD_PYTHON=" in seen.read_text()
        assert "horse" not in seen.read_text()

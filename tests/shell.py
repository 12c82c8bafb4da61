"""Git, Python in a process of its own and commands in this one, each in a line of a test."""

import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import contextmanager

import pytest

SOMEBODY = {
    "user.name": "somebody",
    "user.email": "somebody@example.org",
    "init.defaultBranch": "main",
    "commit.gpgsign": "false",
}


def run(command, folder=None, environment=None, *, check=True):
    """Run a command; return what it came to. With ``check`` it must end with 0."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not (check and done.returncode), done.stdout + done.stderr
    return done


def git(folder, *arguments, **environment):
    """Run git there, in no configuration of this machine's; return what it printed."""
    settings = [word for pair in SOMEBODY.items() for word in ("-c", "=".join(pair))]
    own = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull} | environment
    return run(["git", *settings, *arguments], folder, own).stdout.strip()


def files(folder, texts):
    """Write texts, each named by its path in a folder; return the folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def commit(folder, message="one"):
    """Commit all of a folder, a repository from then on; return the commit."""
    if not (folder / ".git").exists():
        git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def python(*arguments, folder=None, check=False, **environment):
    """Run Python; return what it came to."""
    own = os.environ | environment
    return run([sys.executable, *arguments], folder, own, check=check)


def steelyard(*arguments, folder=None, **environment):
    """Run the command line; return what it came to."""
    return python("-m", "steelyard.cli", *arguments, folder=folder, **environment)


@contextmanager
def printed(said):
    """Keep what this process and those that it starts print, as two texts in ``said``."""
    kept = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = tempfile.TemporaryFile("w+")  # noqa: SIM115 # closed below
        kept[number] = file, os.dup(number), name, getattr(sys, name)
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
    try:
        yield
    finally:
        for number, (file, before, name, stream) in kept.items():
            file.flush()
            os.dup2(before, number)
            os.close(before)
            setattr(sys, name, stream)
            file.seek(0)
            said.append(file.read())
            file.close()


def command(*words, code=0, **options):
    """Run the command line in this process; it ends with ``code``, unless that is None.

    Of a set of codes it ends with one. ``options`` are those of click's runner.
    """
    from click.testing import CliRunner

    from steelyard.commands import main

    done = CliRunner().invoke(main, [str(word) for word in words], **options)
    expected = code if isinstance(code, set) else {code}
    assert expected & {None, done.exit_code}, done.output
    return done


def pytest_in(project, *arguments, fresh=False, **environment):
    """Run pytest there, warnings being errors and the machine's lock a private one.

    It runs in a fork of this process, which has imported what it needs; or in a new
    one, as it must where a GPU may be asked. Without the plugins of ours that projects
    need not have.
    """
    plugins = ("cacheprovider", "hypothesispytest", "xdist")
    words = ["-W", "error", *(f"-pno:{name}" for name in plugins), *arguments]
    own = {"STEELYARD_LOCK": str(project / "lock"), **environment}
    if fresh:
        return python("-m", "pytest", *words, folder=project, **own)

    def main():
        os.chdir(project)
        os.environ.update(own)
        sys.argv[:] = ["pytest", *words]
        return pytest.main(words)

    said = []
    with printed(said):
        (code,) = forks([main])
    return subprocess.CompletedProcess(words, code, *said)


def forks(works):
    """Do works at once, each in a fork of this process; return their exit codes.

    A fork has imported what a new process would. It ends with what the work returns.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: it has none
        children = [_fork(work) for work in works]
    return [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]


def _fork(work):
    child, code = os.fork(), 70
    if not child:
        try:
            code = work() or 0
        except BaseException:  # noqa: BLE001 # the code says that there was one
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return child

import json
import os
import signal
import subprocess
import sys

import pytest

from steelyard.errors import USAGE, SteelyardError
from steelyard.machine import lock

HOLD = """
import sys, pathlib
from steelyard.machine import lock
with lock.measuring(path=pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    """Give a lock file of this test alone."""
    return tmp_path / "steelyard.lock"


@pytest.fixture
def holder(path):
    """Start a process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def refused(path, match="another run measures", **how):
    """Ask for a lock that cannot be had; return the error."""
    with pytest.raises(SteelyardError, match=match) as caught:
        lock.measuring(path=path, **how).__enter__()
    return caught.value


def test_a_second_run_is_refused_and_told_who_measures(path, holder):
    """The sentence names process, user, time, command and folder; the code is 4."""
    said = r"process \d+ of .*since 20\d\d-.*`-c .*` in /.*--wait SECONDS"
    error = refused(path, said)
    assert error.exit_code == USAGE
    assert f"process {holder.pid} of " in str(error)


def test_waiting_ends_when_the_holder_is_done(path, holder):
    """A run that waits starts as soon as the one before has ended."""

    def pause(seconds):
        assert seconds == lock.PAUSE
        holder.communicate("")

    with lock.measuring(wait=60, path=path, pause=pause):
        assert lock.content(path)["pid"] == os.getpid()


def test_waiting_in_vain_says_how_long(path, holder, monkeypatch):
    """The clock runs out, the holder still holds."""
    ticks = iter([0.0, 1.0, 6.0])
    monkeypatch.setattr(lock.time, "monotonic", lambda: next(ticks))
    refused(path, "after 5 s of waiting", wait=5, pause=lambda _: None)
    assert holder.poll() is None


def test_a_dead_holder_never_blocks(path, holder):
    """The kernel drops the lock of a killed process, whatever the file still says."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert lock.content(path)["pid"] == holder.pid
    with lock.measuring(path=path):
        pass


def test_nobody_else_may_read_the_lock_file(path):
    """What a user runs, and where, is in it; one that was open to all is closed."""
    path.touch()
    path.chmod(0o666)
    with lock.measuring(path=path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_another_users_run_is_not_measured_beside(path, holder, monkeypatch):
    """Its file cannot be opened, but the kernel says that it is locked."""
    monkeypatch.setattr(lock.os, "geteuid", lambda: 12345)
    refused(path)
    own = path.with_name(f"{path.name}.12345")
    assert own.stat().st_mode & 0o777 == 0o600
    holder.communicate("")
    with lock.measuring(path=path):
        assert lock.is_held(path) is True
        monkeypatch.undo()
        refused(path)


def test_a_lock_file_that_cannot_be_opened_is_one_sentence(tmp_path):
    """A folder, or a link that somebody planted, in the place of the lock file."""
    planted = tmp_path / "planted"
    planted.symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    places = (tmp_path, planted, tmp_path / "missing" / "lock", tmp_path / "pipe")
    for path in places:
        refused(path, "STEELYARD_LOCK")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", "\0\0", json.dumps({"pid": 7})])
def test_what_the_file_says_is_never_trusted(path, text):
    """Any content gives a description and no error."""
    path.write_text(text)
    assert lock.describe(lock.content(path))


def test_asking_who_holds_the_lock_does_not_take_it(path, holder):
    """`is_held` reads the kernel's list of locks."""
    assert lock.is_held(path) is True
    assert lock.is_held(path.with_name("other")) is False
    holder.communicate("")
    assert lock.is_held(path) is False


@pytest.mark.parametrize("stated", [None, ""])
def test_the_lock_is_the_machines_unless_another_is_stated(monkeypatch, stated):
    """An empty variable states none, as in a shell."""
    if stated is None:
        monkeypatch.delenv("STEELYARD_LOCK")
    else:
        monkeypatch.setenv("STEELYARD_LOCK", stated)
    machine = lock.default_path()
    assert machine.is_absolute()
    monkeypatch.setenv("STEELYARD_LOCK", "other")
    assert str(lock.default_path()) == "other"


@pytest.mark.parametrize("user", [os.geteuid(), 12345])
def test_parts_of_a_machine_are_held_together_and_the_whole_alone(
    path, monkeypatch, user
):
    """Whoever's they are."""
    with lock.measuring(path=path, part="gpu0") as first:
        monkeypatch.setattr(lock.os, "geteuid", lambda: user)
        with lock.measuring(path=path, part="gpu1") as second:
            assert first != second
        refused(path)
    with lock.measuring(path=path):
        monkeypatch.undo()
        refused(path, part="gpu0")

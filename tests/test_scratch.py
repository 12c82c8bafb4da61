import os
import tempfile
from pathlib import Path

import pytest
import shell

from steelyard.machine import files
from steelyard.process import scratch


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Have temporary folders made in one of the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def orphan(house):
    """Return the folder of a process that was killed."""
    code = (
        "import os, tempfile; from steelyard.process import scratch\n"
        f"tempfile.tempdir = {str(house)!r}\n"
        "with scratch.folder() as home:\n"
        "    print(home, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    said = shell.python("-c", code)
    return Path(said.stdout.strip())


def test_a_folder_goes_with_its_run(house):
    """Whatever lies in it, and if an error ends the run."""

    def fail():
        with scratch.folder() as home:
            (Path(home) / "rows.npz").write_bytes(b"rows")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(house.iterdir())


def test_the_folder_of_a_killed_run_goes_with_the_next(house):
    """And that of a run beside it stays."""
    left = orphan(house)
    assert left.exists()
    with scratch.folder() as first, scratch.folder():
        assert not left.exists()
        assert Path(first).exists()


@pytest.mark.parametrize("content", [None, "owner.json", "bytecode"])
def test_what_nobody_holds_goes_whatever_is_in_it(house, content):
    """A run may be killed at any moment; a pipe in its folder hung all later ones."""
    home = house / f"{scratch.PREFIX}a"
    home.mkdir()
    if content:
        os.mkfifo(home / content)
    with scratch.folder() as own:
        assert list(house.iterdir()) == [Path(own)]


def test_what_looks_like_a_folder_is_left_alone(house):
    """A file, and a link to a folder of somebody's."""
    (house / "own").mkdir()
    (house / f"{scratch.PREFIX}a").symlink_to(house / "own")
    (house / f"{scratch.PREFIX}b").touch()
    with scratch.folder():
        assert len(list(house.iterdir())) == 4


def test_a_folder_that_is_taken_before_it_is_claimed_is_made_again(house, monkeypatch):
    """By whoever removes what is left behind."""
    make, calls = tempfile.mkdtemp, []

    def taken(prefix):
        calls.append(make(prefix=prefix))
        if len(calls) == 1:
            Path(calls[0]).rmdir()
        return calls[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken)
    with scratch.folder() as home:
        assert home == calls[1]


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path):
    """A file that is written aside at the moment stays, and so does what is no such."""
    dead = shell.python("-c", "import os; print(os.getpid())").stdout.strip()
    others = {f".run.json.{os.getppid()}", ".run.json.backup", f".other.{dead}"}
    for name in (*others, f".run.json.{dead}"):
        (tmp_path / name).touch()
    files.replace(tmp_path / "run.json", b"whole")
    assert {one.name for one in tmp_path.iterdir()} == {*others, "run.json"}

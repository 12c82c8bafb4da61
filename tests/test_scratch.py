import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from steelyard.processes import scratch


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Have temporary folders made in one of the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def orphan(house):
    """Return the folder of a process that was killed."""
    code = (
        "import os, tempfile; from steelyard.processes import scratch\n"
        f"tempfile.tempdir = {str(house)!r}\n"
        "with scratch.folder() as home:\n"
        "    print(home, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
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


def test_a_folder_that_nobody_signed_is_left_alone_for_a_while(house):
    """Its owner may be about to; an hour later it was killed before."""
    young, old = house / f"{scratch.PREFIX}a", house / f"{scratch.PREFIX}b"
    for each in (young, old):
        each.mkdir()
    os.utime(old, (0, 0))
    scratch.sweep()
    assert young.exists()
    assert not old.exists()


def test_a_damaged_signature_takes_nothing_away(house):
    """Nobody knows whose it is."""
    home = house / f"{scratch.PREFIX}c"
    home.mkdir()
    for text in ("", "{", "[]", '{"pid": "x"}', '{"pid": 1}'):
        (home / scratch.OWNER).write_text(text)
        scratch.sweep()
        assert home.exists()

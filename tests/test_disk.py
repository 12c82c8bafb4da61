import errno
import json
import os
import struct
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import disk as module
from steelyard_device.disk import Disk, default_directory

KEY = "ab" + "0123456789" * 3
OTHER = "cd" + "0123456789" * 3
HEADER = 36  # bytes before the payload


def key(number):
    """Return the key of an entry by its number."""
    return blake2b(str(number).encode(), digest_size=16).hexdigest()


def entry(folder, name=KEY):
    """Return where an entry lies."""
    return folder / name[:2] / f"{name}.build"


def room(folder, payload=100):
    """Return what one entry takes on this disk: whole blocks of it."""
    disk = Disk(folder / "one")
    disk.put(KEY, bytes(payload))
    return disk.size()[1]


def test_what_was_put_is_got(tmp_path):
    """By any object and process that shares the folder."""
    assert Disk(tmp_path).put(KEY, b"code")
    assert Disk(tmp_path).get(KEY) == b"code"
    assert Disk(tmp_path).get(OTHER) is None


@given(st.binary(max_size=300))
def test_any_bytes_come_back(tmp_path_factory, payload):
    """Bytes in, the same bytes out."""
    disk = Disk(tmp_path_factory.getbasetemp() / "any")
    assert disk.put(KEY, payload)
    assert disk.get(KEY) == payload


@pytest.mark.parametrize("length", [0, 1, 61])
def test_every_torn_or_flipped_entry_is_a_miss(tmp_path, length):
    """Cut at every byte, each bit flipped, and with a tail."""
    disk = Disk(tmp_path)
    disk.put(KEY, bytes(range(length)))
    whole = entry(tmp_path).read_bytes()
    bad = [whole[:size] for size in range(len(whole))] + [whole + b"\0"]
    for place in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        bad.append(bytes(flipped))
    for text in bad:
        entry(tmp_path).write_bytes(text)
        assert disk.get(KEY) is None
    assert disk.put(KEY, b"again")
    assert disk.get(KEY) == b"again"


def test_an_entry_under_another_key_is_foreign(tmp_path):
    """A copy is whole, but of another build."""
    disk = Disk(tmp_path)
    disk.put(KEY, b"code")
    disk.put(OTHER, b"other")
    entry(tmp_path, OTHER).write_bytes(entry(tmp_path).read_bytes())
    assert disk.get(OTHER) is None


@pytest.mark.parametrize("schema", [0, 1, 3, 2**32 - 1])
def test_older_and_newer_schemas_are_misses(tmp_path, monkeypatch, schema):
    """An entry with the right digest, of another version of the format."""
    monkeypatch.setattr(module, "SCHEMA", schema)
    Disk(tmp_path).put(KEY, b"code")
    assert Disk(tmp_path).get(KEY) == b"code"
    monkeypatch.undo()
    assert struct.unpack_from("<I", entry(tmp_path).read_bytes(), 8) == (schema,)
    assert Disk(tmp_path).get(KEY) is None


@pytest.mark.parametrize("bad", ["", "ab", "../../etc/passwd", "AB" * 16, "ab" * 65])
def test_a_key_is_a_hex_digest(tmp_path, bad):
    """Anything else would be a path."""
    with pytest.raises(ValueError, match="Give a hex digest"):
        Disk(tmp_path).get(bad)


def misses(disk):
    """Say whether a disk refuses everything quietly."""
    return (
        not disk.put(KEY, b"code") and disk.get(KEY) is None and disk.size() == (0, 0)
    )


def test_no_folder_is_a_disk_that_misses():
    """It is how a cache is turned off."""
    assert misses(Disk(None))
    assert Disk(None).drop() == 0


def test_a_file_in_the_way_is_a_miss(tmp_path):
    """Of the folder, of one above it, or of a folder of two digits."""
    (tmp_path / "file").write_text("mine")
    assert misses(Disk(tmp_path / "file"))
    assert misses(Disk(tmp_path / "file" / "below"))
    (tmp_path / KEY[:2]).write_text("mine")
    assert misses(Disk(tmp_path))
    assert Disk(tmp_path).drop() == 0
    assert (tmp_path / KEY[:2]).read_text() == "mine"


def test_a_folder_or_pipe_in_an_entrys_place_is_a_miss(tmp_path):
    """Neither is read, waited for or replaced by force."""
    entry(tmp_path).mkdir(parents=True)
    assert Disk(tmp_path).get(KEY) is None
    assert not Disk(tmp_path).put(KEY, b"code")
    assert not list(tmp_path.glob("*/*.tmp"))
    entry(tmp_path).rmdir()
    os.mkfifo(entry(tmp_path))
    assert Disk(tmp_path).get(KEY) is None


def test_a_link_is_replaced_not_written_through(tmp_path):
    """What it points to is somebody else's; a link that loops is a miss."""
    (tmp_path / "theirs").write_text("theirs")
    Disk(tmp_path).put(KEY, b"code")
    entry(tmp_path).unlink()
    entry(tmp_path).symlink_to(entry(tmp_path))
    assert Disk(tmp_path).get(KEY) is None
    entry(tmp_path).unlink()
    entry(tmp_path).symlink_to(tmp_path / "theirs")
    assert Disk(tmp_path).get(KEY) is None
    assert Disk(tmp_path).put(KEY, b"code")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert Disk(tmp_path).get(KEY) == b"code"


def test_a_linked_folder_may_be_the_cache(tmp_path):
    """Caches are moved to bigger disks that way."""
    (tmp_path / "big").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "big")
    disk = Disk(tmp_path / "cache")
    assert disk.put(KEY, b"code")
    assert disk.get(KEY) == b"code"
    assert disk.drop() == 1


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("open", errno.EROFS),
        ("open", errno.EMFILE),
        ("write", errno.ENOSPC),
        ("write", errno.EDQUOT),
        ("close", errno.EIO),
        ("replace", errno.EACCES),
    ],
)
def test_a_disk_that_refuses_keeps_what_it_had(tmp_path, monkeypatch, call, code):
    """Read-only, full, failing: put says False, and the old entry still stands."""
    disk = Disk(tmp_path)
    disk.put(KEY, b"old")
    close = os.close

    def refuse(*arguments, **options):
        if call == "close":
            close(*arguments)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    assert not disk.put(KEY, b"new")
    monkeypatch.undo()
    assert disk.get(KEY) == b"old"
    assert [p.name for p in tmp_path.glob("*/*")] == [f"{KEY}.build"]


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    """The kernel may take fewer bytes than it was given."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    assert Disk(tmp_path).put(KEY, bytes(100))
    assert Disk(tmp_path).get(KEY) == bytes(100)


def test_an_interrupted_writer_leaves_no_temporary(tmp_path, monkeypatch):
    """Control-C comes through, and the file is gone."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Disk(tmp_path).put(KEY, b"code")
    assert not list(tmp_path.glob("*/*"))


def test_the_longest_unused_go_first(tmp_path):
    """A limit of four entries: a hit makes the oldest the newest."""
    size = room(tmp_path)
    disk = Disk(tmp_path / "cache", limit=4 * size, every=1)
    for number in range(4):
        disk.put(key(number), bytes(100))
        os.utime(entry(disk.directory, key(number)), (1000 + number, 1000 + number))
    assert disk.get(key(0)) == bytes(100)
    disk.put(key(4), bytes(100))
    kept = [number for number in range(5) if disk.get(key(number)) is not None]
    assert kept == [0, 2, 3, 4]
    assert disk.size() == (4, disk.limit)


def test_a_hit_writes_its_time_at_most_once_an_hour(tmp_path):
    """Reading a warm cache is reading."""
    disk = Disk(tmp_path)
    disk.put(KEY, b"code")
    recent = time.time() - module.TOUCH_SECONDS / 2
    for before, touched in ((recent, False), (1000, True)):
        os.utime(entry(tmp_path), (before, before))
        assert disk.get(KEY) == b"code"
        assert (entry(tmp_path).stat().st_mtime - before > 1) is touched


def test_a_time_that_cannot_be_written_is_still_a_hit(tmp_path, monkeypatch):
    """As on a read-only disk."""
    disk = Disk(tmp_path)
    disk.put(KEY, b"code")
    os.utime(entry(tmp_path), (0, 0))

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert disk.get(KEY) == b"code"


def test_what_is_above_the_limit_is_not_kept(tmp_path):
    """Keeping it would throw out all else; and such a file is not even read.

    Nothing is thrown out meanwhile.
    """
    big, small = Disk(tmp_path), Disk(tmp_path, HEADER + 9, 1 << 64)
    assert small.put(KEY, bytes(9))
    assert not small.put(KEY, bytes(10))
    assert small.get(KEY) == bytes(9)
    assert big.put(KEY, bytes(10))
    assert small.get(KEY) is None


def test_eviction_survives_another_ones(tmp_path, monkeypatch):
    """Files vanish between the look and the removal: they count as removed."""
    disk = Disk(tmp_path / "cache", limit=2 * room(tmp_path), every=1)
    others = Disk(disk.directory)
    for number in range(6):
        others.put(key(number), bytes(100))
        os.utime(entry(disk.directory, key(number)), (1000 + number, 1000 + number))
    remove = module._remove

    def twice(path):
        remove(path)
        return remove(path)

    monkeypatch.setattr(module, "_remove", twice)
    assert disk.put(key(6), bytes(100))
    assert disk.size() == (2, disk.limit)
    assert disk.get(key(6)) == bytes(100)


def test_few_puts_look_at_all_entries(tmp_path, monkeypatch):
    """One in 256 by the temporary's random name."""
    looks = []
    monkeypatch.setattr(Disk, "_evict", lambda disk: looks.append(1))
    names = iter(range(1000))
    Disk(tmp_path).put(KEY, b"")  # which makes the folder's secret
    looks.clear()
    monkeypatch.setattr(os, "urandom", lambda n: next(names).to_bytes(n, "little"))
    for _ in range(513):
        Disk(tmp_path).put(KEY, b"")
    assert len(looks) == 3


def test_only_old_temporaries_are_swept(tmp_path):
    """A young one may be another process's that is writing now."""
    disk = Disk(tmp_path, every=1)
    disk.put(KEY, b"code")
    young = tmp_path / "ab" / f"{KEY}.build.{'0' * 16}.tmp"
    old = tmp_path / "ab" / f"{KEY}.build.{'1' * 16}.tmp"
    for path in (young, old):
        path.write_bytes(b"torn")
    os.utime(old, (0, 0))
    disk.put(OTHER, b"code")
    assert young.exists()
    assert not old.exists()
    assert disk.size()[0] == 2


def test_drop_removes_ours_only(tmp_path):
    """Other files, folders and what links lead to stay."""
    disk = Disk(tmp_path / "cache")
    for number in range(5):
        disk.put(key(number), b"code")
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    theirs = tmp_path / "cache" / key(0)[:2] / "0123456789abcdef"
    theirs.write_text("an object of git's")
    elsewhere = Disk(tmp_path / "elsewhere")
    elsewhere.put("ff" * 16, b"code")
    (tmp_path / "cache" / "ff").symlink_to(tmp_path / "elsewhere" / "ff")
    torn = tmp_path / "cache" / key(1)[:2] / f"{key(1)}.build.{'0' * 16}.tmp"
    torn.write_bytes(b"torn")
    assert disk.drop() == 5
    assert disk.size() == (0, 0)
    assert theirs.exists()
    assert elsewhere.get("ff" * 16) == b"code"
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left == {"notes.txt", key(0)[:2], "ff", module.KEY_FILE}
    assert disk.put(KEY, b"code")


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_whatever_the_umask_nothing_is_open_to_others(tmp_path, mask):
    """The folders above that did not exist, the folder, those in it, and every file."""
    before = os.umask(mask)
    try:
        assert Disk(tmp_path / "above" / "steelyard" / "builds").put(KEY, b"code")
    finally:
        os.umask(before)
    made = list(tmp_path.rglob("*"))
    assert {path.name for path in made} >= {"above", "builds", KEY[:2], "key"}
    for path in made:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
@pytest.mark.parametrize("which", [".", KEY[:2]])
def test_a_folder_that_others_may_write_keeps_nothing(tmp_path, capfd, mode, which):
    """Who could put code there is said once, with what to do about it."""
    disk = Disk(tmp_path / "cache")
    disk.put(KEY, b"code")
    (disk.directory / which).chmod(mode)
    module._SAID.clear()
    for _ in range(3):
        assert disk.get(KEY) is None
        assert not disk.put(KEY, b"code")
    assert capfd.readouterr().err.count("can be written by other users") == 1
    assert ("chmod" in (disk.refusal() or "")) is (which == ".")
    (disk.directory / which).chmod(0o755)
    assert disk.get(KEY) == b"code"
    assert disk.put(KEY, b"code")
    assert (disk.directory / which).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o606, 0o622])
def test_a_file_that_others_may_open_is_a_miss(tmp_path, mode):
    """An entry or the secret; what is put anew is the user's alone."""
    for name in (entry(tmp_path), tmp_path / "key"):
        Disk(tmp_path).put(KEY, b"code")
        name.chmod(mode)
        assert Disk(tmp_path).get(KEY) is None
        assert Disk(tmp_path).put(KEY, b"code")
        assert name.stat().st_mode & 0o777 == 0o600
        assert Disk(tmp_path).get(KEY) == b"code"


def test_an_entry_made_with_another_secret_is_a_miss(tmp_path):
    """As of a fork's cache, even where file and folder are this user's now."""
    ours, theirs = Disk(tmp_path / "ours"), Disk(tmp_path / "theirs")
    ours.put(KEY, b"code")
    theirs.put(KEY, b"planted")
    entry(ours.directory).write_bytes(entry(theirs.directory).read_bytes())
    assert ours.get(KEY) is None
    assert ours.put(KEY, b"code")
    for damage in (b"", b"short", bytes(32)):
        (ours.directory / "key").write_bytes(damage)
        assert ours.get(KEY) is None
        ours.put(KEY, b"code")
        assert ours.get(KEY) == b"code"
    (ours.directory / "key").unlink()
    (ours.directory / "key").symlink_to(theirs.directory / "key")
    assert ours.get(KEY) is None


def test_processes_that_begin_together_share_one_secret(tmp_path):
    """What any of them puts all of them get."""
    script = (
        "import sys; from pathlib import Path; from steelyard_device.disk import Disk\n"
        "Disk(Path(sys.argv[1])).put(sys.argv[2], b'code')"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), key(number)])
        for number in range(6)
    ]
    assert [child.wait() for child in children] == [0] * 6
    assert all(Disk(tmp_path).get(key(number)) == b"code" for number in range(6))
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["key"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
@pytest.mark.parametrize("which", [".", KEY[:2], "key", f"{KEY[:2]}/{KEY}.build"])
def test_what_belongs_to_another_user_is_not_read(tmp_path, which):
    """A folder, the secret, or one entry, also where its mode is private."""
    disk = Disk(tmp_path / "cache")
    disk.put(KEY, b"code")
    os.chown(disk.directory / which, 65534, 65534)
    assert disk.get(KEY) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a user without a name")
def test_a_user_without_name_and_home_has_no_cache(tmp_path):
    """There is nowhere to keep builds: they are made, and nothing is said."""
    script = (  # imported before, where this user may not read them
        "import os, platformdirs, platformdirs.unix, pwd\n"
        "from steelyard_device.disk import default_directory\n"
        "os.setuid(54321)\n"
        "print(default_directory())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_the_limit_counts_blocks(tmp_path):
    """Twenty entries of a byte take twenty blocks of the disk."""
    disk = Disk(tmp_path)
    for number in range(20):
        disk.put(key(number), b"x")
    blocks = sum(p.stat().st_blocks * 512 for p in tmp_path.glob("??/*"))
    assert disk.size() == (20, max(blocks, 20 * (1 + HEADER)))


def test_the_environment_names_the_folder(monkeypatch, tmp_path):
    """A path, `off`, or nothing: the user's cache folder."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    assert default_directory() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for unset in ("", None):
        monkeypatch.setenv("STEELYARD_CACHE", unset or "")
        if unset is None:
            monkeypatch.delenv("STEELYARD_CACHE")
        assert default_directory() == tmp_path / "xdg" / "steelyard" / "builds"


def test_a_storm_of_killed_processes_leaves_no_wrong_byte():
    """Writers and readers killed at any point, files damaged: misses, never errors."""
    script = Path(__file__).with_name("storm.py")
    done = subprocess.run(
        [sys.executable, script, "--seconds", "1", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    counts = json.loads(done.stdout)
    assert done.returncode == 0, counts
    assert min(counts[name] for name in ("kills", "hits", "kept", "damages")) > 0

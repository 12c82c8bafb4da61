import math
import os
import re
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import textwrap
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pytest
import sqlalchemy as sa
import trials
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from steelyard.analyse.trial import Samples
from steelyard.errors import StoreError
from steelyard.store import codec, places, run, schema, store
from steelyard.store.store import Store

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def path(tmp_path):
    """Give the path of a store that does not exist yet, in a folder that does not."""
    return tmp_path / ".steelyard" / "steelyard.db"


@pytest.fixture
def filled(path):
    """Make a store with one finished run of three trials."""
    trials.kept(path, [trials.trial(block=block) for block in range(3)])
    return path


def child(code, *arguments):
    """Start a process that has the made-up trials at hand."""
    here = Path(__file__).parent
    text = f"import sys; sys.path.insert(0, {str(here)!r}); import trials\n"
    text += "from steelyard.store.store import Store\n" + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("arrays", [5, 6])
@given(st.data())
def test_samples_survive_the_blob_unchanged(arrays, data):
    """Any 64-bit integers in any number come back equal, a GPU's frequencies too."""
    windows = data.draw(st.lists(st.tuples(*[INT64] * arrays)))
    floor = data.draw(st.lists(INT64))
    columns = [tuple(c) for c in zip(*windows, strict=True)] or [()] * arrays
    samples = Samples(*columns)
    assert codec.unpack(codec.pack(samples, tuple(floor))) == (samples, tuple(floor))


def test_blobs_of_the_first_format_are_still_read():
    """They had no frequencies, and no flag that says so."""
    numbers = (3, 4, 0, 3, 1, 1, 3, 4, 0, 0, 7)
    body = struct.pack("<11q", *numbers)
    digest = blake2b(body, digest_size=16).digest()
    blob = struct.pack("<4sHHII16s", b"STYD", 1, 0, 2, 1, digest) + body
    expected = Samples((3, 4), (0, 3), (1, 1), (3, 4), (0, 0))
    assert codec.unpack(blob) == (expected, (7,))


@given(st.data())
def test_a_blob_with_any_changed_byte_is_refused_or_reads_the_same(data):
    """A flipped bit never changes a number silently."""
    samples = trials.samples([3, 1, 4, 1, 5])
    blob = bytearray(codec.pack(samples, (9,)))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(StoreError):
        assert codec.unpack(bytes(blob)) == (samples, (9,))


@pytest.mark.parametrize("cut", [0, 1, 3, 31, 32, 40])
def test_a_cut_blob_is_refused(cut):
    """What is left of a half-written blob is never read as samples."""
    with pytest.raises(StoreError):
        codec.unpack(codec.pack(trials.samples([1, 2, 3]), ())[:cut])


def test_a_trial_comes_back_equal_with_its_ugly_values(path):
    """NaN, infinities, nested facts, newlines, NULs and no samples are all kept."""
    ugly = trials.trial(
        ticks=(),
        facts={"ratio": math.inf, "deep": {"list": [1, None, True, -math.inf]}},
        extra={"text": 'a\nb\0"\u2028', "huge": 2**70},
        doubts=("preempted", "bimodal"),
        error="it raised ValueError: \0",
    )
    with Store.open(str(path)) as opened:
        uid = opened.begin(trials.run())
        opened.add(uid, ugly)
        assert opened.trials(uid) == [ugly]
    (nan,) = [codec.restore(codec.plain({"x": math.nan}))["x"]]
    assert math.isnan(nan)


def test_trials_come_back_in_the_order_they_were_measured(filled):
    """`trials` keeps the order, and picks one case when asked."""
    with Store.open(str(filled)) as opened:
        (only,) = opened.runs()
        assert only.state == "finished"
        assert [t.block for t in opened.trials(only.uid)] == [0, 1, 2]
        assert opened.trials(only.uid, "copy[n=9]") == []
        assert len(opened.trials(only.uid, "copy[n=1024,impl=numpy]")) == 3


def test_a_killed_run_keeps_its_finished_trials_and_reads_killed(path):
    """SIGKILL in the middle of a run loses no trial whose `add` returned."""
    writer = child(
        """
        store = Store.open(sys.argv[1])
        uid = store.begin(trials.run())
        for block, _ in enumerate(sys.stdin):
            store.add(uid, trials.trial(block=block))
            print(block, flush=True)
        """,
        path,
    )
    writer.stdin.write("add\n" * 7)
    writer.stdin.flush()
    for _ in range(7):
        last = int(writer.stdout.readline())
    with Store.open(str(path)) as opened:
        assert opened.runs()[0].state == "running"
    writer.stdin.write("add\n" * 1000)
    writer.stdin.flush()
    last = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with Store.open(str(path), create=False) as opened:
        (only,) = opened.runs()
        assert (only.state, only.partial) == ("killed", True)
        blocks = [t.block for t in opened.trials(only.uid)]
    assert blocks == list(range(len(blocks)))
    assert len(blocks) > last


def test_two_processes_make_and_fill_one_store_at_once(path):
    """Neither the making of the tables nor the trials get lost or mixed."""
    code = """
        store = Store.open(sys.argv[1])
        uid = store.begin(trials.run())
        for block in range(40):
            store.add(uid, trials.trial(block=block))
        store.finish(uid, "finished")
        """
    writers = [child(code, path) for _ in range(2)]
    for writer in writers:
        assert writer.communicate()[1] == ""
        assert writer.returncode == 0
    with Store.open(str(path)) as opened:
        runs = opened.runs()
        assert [r.state for r in runs] == ["finished"] * 2
        for one in runs:
            assert [t.block for t in opened.trials(one.uid)] == list(range(40))


def test_a_run_on_another_machine_is_not_called_killed():
    """A process that cannot be seen from here may well be alive."""
    here = trials.run()
    away = dict(here.writer, machine="ffffffffffff", pid=2**22 + 1)
    assert not run.is_gone(trials.run(writer=away))
    assert not run.is_gone(here)
    assert run.is_gone(trials.run(writer=dict(here.writer, pid=2**22 + 1)))
    assert run.is_gone(trials.run(writer=dict(here.writer, boot="before")))


def test_a_full_disk_is_one_sentence_and_loses_nothing(filled):
    """SQLite's own page limit stands in for a full disk: SQLITE_FULL."""
    with Store.open(str(filled)) as opened:
        with opened._database._engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
        uid = opened.runs()[0].uid
        big = trials.trial(ticks=[n * 7919**3 % 10**9 for n in range(10**4)])
        with pytest.raises(StoreError, match=r"the disk is full.*--store"):
            opened.add(uid, big)
    with Store.open(str(filled)) as opened:
        assert len(opened.trials(uid)) == 3


def test_a_file_size_limit_is_one_sentence_and_loses_nothing(path):
    """A write that the system refuses (EFBIG) leaves the trials before it."""
    writer = child(
        """
        import random, resource
        store = Store.open(sys.argv[1])
        uid = store.begin(trials.run())
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        stored = 0
        try:
            while True:
                ticks = [random.randrange(10**9) for _ in range(500)]
                store.add(uid, trials.trial(ticks=ticks, block=stored))
                stored += 1
        except Exception as error:
            print(stored, type(error).__name__, error)
        """,
        path,
    )
    out, err = writer.communicate()
    assert (err, writer.returncode) == ("", 0)
    stored, kind, sentence = out.split(" ", 2)
    assert kind == "StoreError"
    assert "what was stored before is safe" in sentence
    with Store.open(str(path)) as opened:
        (only,) = opened.runs()
        assert len(opened.trials(only.uid)) == int(stored) > 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 300_000


@pytest.fixture
def nobody():
    """Run the rest of the test without the rights of root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def open_house(tmp_path):
    """Make a folder that everybody may look into but only its owner may change."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):
            folder.chmod(0o755)
    return tmp_path


def test_a_folder_without_write_permission_is_one_sentence(open_house, request):
    """A new store where nothing may be written says so and names --store."""
    locked = open_house / "locked"
    locked.mkdir(mode=0o555)
    request.getfixturevalue("nobody")
    for path in (locked / "s.db", locked / ".steelyard" / "s.db"):
        with pytest.raises(StoreError, match=r"(?i)permission.*--store"):
            Store.open(str(path))


def test_a_read_only_store_can_be_read_but_not_filled(open_house, request):
    """A run that somebody mounted read-only is shown; writing to it is refused."""
    path = open_house / "s.db"
    with Store.open(str(path)) as opened:
        uid = opened.begin(trials.run())
        opened.add(uid, trials.trial())
    path.chmod(0o444)
    open_house.chmod(0o555)
    request.getfixturevalue("nobody")
    with Store.open(str(path), create=False) as opened:
        assert len(opened.trials(uid)) == 1
        with pytest.raises(StoreError, match=r"no permission to write.*--store"):
            opened.add(uid, trials.trial(block=1))


def test_a_missing_folder_is_not_made_but_the_projects_own(tmp_path):
    """A misspelt path would be a second store that nobody finds."""
    for path in (tmp_path / "gone" / "s.db", tmp_path / "a" / "b" / "s.db"):
        for opened in (Store.open, places.require_place):
            with pytest.raises(StoreError, match=r"there is no folder .*--store"):
                opened(str(path))
    with pytest.raises(StoreError, match="No such file"):
        Store.open(str(tmp_path / "gone" / ".steelyard" / "s.db"))
    assert list(tmp_path.iterdir()) == []
    places.require_place("postgresql+psycopg://user@host/database")
    Store.open(str(tmp_path / ".steelyard" / "s.db")).close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_store_on_a_full_disk_can_be_read(filled, killed):
    """A limit of no bytes to any file stands in for it, also where a log was left."""
    if killed:
        leave_a_log(filled)
        filled.with_name("steelyard.db-shm").unlink()
    reader = child(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        with Store.open(sys.argv[1], create=False) as opened:
            (only,) = opened.runs()
            print(len(opened.trials(only.uid)), len(opened.export(only.uid)) > 99)
            try:
                opened.add(only.uid, trials.trial(block=9))
            except Exception as error:
                print(type(error).__name__, error)
        """,
        filled,
    )
    out, err = reader.communicate()
    assert (err, reader.returncode) == ("", 0)
    first, second = out.splitlines()
    assert first == f"{3 + killed} True"
    assert second.startswith("StoreError store ")
    assert "what was stored before is safe" in second
    assert sum(map(len, read_everything(filled))) == 3 + killed


def leave_a_log(path):
    """Have a process end with a trial that is in the log alone."""
    writer = child(
        """
        import os
        store = Store.open(sys.argv[1])
        store.add(store.runs()[0].uid, trials.trial(block=3))
        os._exit(0)
        """,
        path,
    )
    assert writer.communicate() == ("", "")
    assert path.with_name("steelyard.db-wal").stat().st_size > 0


def recipes(path):
    """Make a database of somebody else's."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.write_text("weights and measures"), "store.*weights and"),
        (Path.mkdir, "is a directory"),
        (recipes, r"something else.*recipes"),
    ],
)
def test_what_is_not_a_store_is_refused_and_stays_as_it_is(tmp_path, make, says):
    """Before anything is written: no table of ours is added."""
    path = tmp_path / "notes.txt"
    make(path)
    before = path.is_file() and path.read_bytes()
    with pytest.raises(StoreError, match=says):
        Store.open(str(path))
    assert before == (path.is_file() and path.read_bytes())


def test_a_second_look_at_an_open_store_keeps_the_locks_of_the_first(path):
    """Without them the next process to close it takes itself for the last."""

    def locks():
        place = f":{Path(path).stat().st_ino} "
        return sum(
            place in line for line in Path("/proc/locks").read_text().splitlines()
        )

    with Store.open(str(path)):
        before = locks()
        with Store.open(str(path)):
            pass
        assert locks() == before > 0


@pytest.mark.parametrize("keep", [100, 4096, 9000])
def test_a_truncated_store_is_one_sentence(filled, keep):
    """Half a file is refused when it is opened or read, never with a traceback."""
    data = filled.read_bytes()
    filled.write_bytes(data[:keep])
    with pytest.raises(StoreError, match=r"--store|Weigh|copy"):
        read_everything(filled)


def read_everything(path):
    """Return every trial of every run of a store."""
    with Store.open(str(path), create=False) as opened:
        return [opened.trials(one.uid) for one in opened.runs()]


def test_an_id_that_changed_anywhere_in_the_file_loses_nothing_in_silence(filled):
    """Also in an index: a run that is listed has all of its trials, or is refused."""
    data, expected = filled.read_bytes(), read_everything(filled)
    with Store.open(str(filled)) as opened:
        (only,) = opened.runs()
    case = expected[0][0].case
    for word in (only.uid, case):
        places = [
            found.start() for found in re.finditer(re.escape(word.encode()), data)
        ]
        assert len(places) > 3
        for at in places:
            filled.write_bytes(data[:at] + b"~" + data[at + 1 :])
            try:
                with Store.open(str(filled), create=False) as opened:
                    (run,) = opened.runs()
                    found = opened.trials(run.uid), opened.trials(run.uid, case)
            except StoreError:
                continue
            wanted = [one for one in expected[0] if one.case == case]
            assert found == (expected[0], wanted), at


def test_an_empty_file_becomes_a_store_but_does_not_read_as_one(tmp_path):
    """A writer may fill an empty file; a reader says that it is empty."""
    path = tmp_path / "s.db"
    path.touch()
    with pytest.raises(StoreError, match="is empty"):
        Store.open(str(path), create=False)
    with Store.open(str(path)) as opened:
        assert opened.runs() == []


def test_a_missing_store_names_the_command_that_makes_one(path):
    """Reading makes no file."""
    with pytest.raises(StoreError, match=r"no store at .* `steelyard run`"):
        Store.open(str(path), create=False)
    assert not path.parent.exists()


def test_a_damaged_row_is_one_sentence(filled):
    """Values that are not JSON any more do not come back as something else."""
    with sqlite3.connect(filled) as connection:
        connection.execute("UPDATE trial SET document = '{\"case\":'")
    connection.close()
    with Store.open(str(filled)) as opened, pytest.raises(StoreError, match="digest"):
        opened.trials(opened.runs()[0].uid)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense://x", "pip install"),
        ("://", "URL"),
        ("postgresql+nodriver://me:secret@host/db", "postgresql"),
    ],
)
def test_an_unusable_url_is_one_sentence_without_its_password(url, says):
    """What can go wrong with a URL is said, and secrets stay secret."""
    with pytest.raises(StoreError, match=says) as caught:
        Store.open(url)
    assert "secret" not in str(caught.value)


def test_the_tables_are_legal_for_postgresql():
    """Each table's text compiles for the other database the store may live in."""
    for table in schema.METADATA.sorted_tables:
        text = str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        assert text.strip().startswith("CREATE TABLE")


def test_runs_are_found_by_age_tag_id_and_commit(path):
    """A selector names one run, or says what there is."""
    made = [
        trials.run(uid=f"{digit}{digit}{31 * '0'}"[:32], tags=tags, started=f"2026-{i}")
        for i, (digit, tags) in enumerate(
            [("a", ("base",)), ("b", ()), ("c", ("base",))]
        )
    ]
    with Store.open(str(path)) as opened:
        with pytest.raises(StoreError, match="no run yet"):
            opened.find("@-1")
        for one in made:
            opened.begin(one)
        assert opened.find("@-1").uid == made[2].uid
        assert opened.find("@-3").uid == made[0].uid
        assert opened.find("base").uid == made[2].uid
        assert opened.find("bb00").uid == made[1].uid
        assert opened.find("c0ffee").uid == made[2].uid
        opened.begin(trials.run(started="2025", commit="unknown"))
        with pytest.raises(StoreError, match="has 4"):
            opened.find("@-5")
        for unknown in ("", "bb0", "nothing", "unknown", "@-0", "@1"):
            with pytest.raises(StoreError, match=r"latest runs: .* 2025; cc00.* base"):
                opened.find(unknown)


def test_the_beginning_of_two_ids_is_refused(path):
    """An id that could mean two runs is never guessed."""
    with Store.open(str(path)) as opened:
        for end in "01":
            opened.begin(trials.run(uid="abcd" + 27 * "0" + end))
        with pytest.raises(StoreError, match="beginning of 2 ids"):
            opened.find("abcd")


def test_an_exported_run_is_imported_once(filled, tmp_path):
    """The same run comes out of the file; a second import adds nothing."""
    with Store.open(str(filled)) as opened:
        (only,) = opened.runs()
        data = opened.export(only.uid)
        expected = opened.trials(only.uid)
    with Store.open(str(tmp_path / "other.db")) as other:
        assert other.load(data) == store.Loaded(only.uid, 3, 0)
        assert other.load(data) == store.Loaded(only.uid, 0, 3)
        assert other.runs() == [only]
        assert other.trials(only.uid) == expected


def test_an_import_completes_a_run_that_was_exported_too_early(path, tmp_path):
    """Trials that a first import did not have are added by the second."""
    with Store.open(str(path)) as opened, Store.open(str(tmp_path / "b.db")) as other:
        uid = opened.begin(trials.run())
        opened.add(uid, trials.trial(block=0))
        other.load(opened.export(uid))
        opened.add(uid, trials.trial(block=1))
        opened.finish(uid, "finished")
        assert other.load(opened.export(uid)) == store.Loaded(uid, 1, 1)
        assert other.trials(uid) == opened.trials(uid)
        assert other.runs()[0].state == "finished"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: b"", "is not JSON"),
        (lambda _: b"\x89PNG\r\n", "is not JSON"),
        (lambda _: b"[1]", "not an exported run"),
        (lambda d: d[: len(d) // 2], "is not JSON"),
        (lambda d: d.replace(b'"format": 1', b'"format": 8'), "format 8.*reads 1"),
        (lambda d: d.replace(b"copy[n=1024", b"copy[n=4096"), "digest differs"),
    ],
)
def test_a_file_that_is_not_an_exported_run_is_refused(filled, change, says):
    """Nothing of a foreign, cut, newer or edited file is imported."""
    with Store.open(str(filled)) as opened:
        data = opened.export(opened.runs()[0].uid)
        with pytest.raises(StoreError, match=says):
            opened.load(change(data))
        assert len(opened.runs()) == 1


def test_an_unknown_run_cannot_be_exported(filled):
    """The sentence names the store and where to look."""
    with (
        Store.open(str(filled)) as opened,
        pytest.raises(StoreError, match="no run dead"),
    ):
        opened.export("dead")

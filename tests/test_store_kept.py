"""What a store keeps stays what it was: damage is noticed, an import takes nothing back."""

import contextlib
import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
import shell
import trials

from steelyard.errors import StoreError
from steelyard.machine import decoding
from steelyard.store import archive, places
from steelyard.store.store import Loaded, Store

SCHEMA_1 = """
CREATE TABLE steelyard_schema (version INTEGER NOT NULL PRIMARY KEY, written_by VARCHAR(32) NOT NULL);
CREATE TABLE run (uid VARCHAR(32) NOT NULL PRIMARY KEY, started VARCHAR(32) NOT NULL,
 finished VARCHAR(32), state VARCHAR(16) NOT NULL, version VARCHAR(32) NOT NULL,
 "commit" VARCHAR(64) NOT NULL, dirty BOOLEAN, command TEXT NOT NULL, tags JSON NOT NULL,
 settings JSON NOT NULL, machine JSON NOT NULL, writer JSON NOT NULL);
CREATE TABLE trial (id INTEGER NOT NULL PRIMARY KEY, run VARCHAR(32) NOT NULL REFERENCES run (uid)
 ON DELETE CASCADE, "case" TEXT NOT NULL, mode VARCHAR(64) NOT NULL, block INTEGER NOT NULL,
 position INTEGER NOT NULL, error TEXT, document JSON NOT NULL, samples BLOB NOT NULL);
CREATE INDEX trial_of_run ON trial (run, "case");
CREATE INDEX ix_run_started ON run (started);
INSERT INTO steelyard_schema VALUES (1, '0.1.0');
"""
"""As the first version made it."""


def said(*words):
    """Return the one sentence of a command that is refused."""
    return shell.command(*words, code=4).output


@pytest.fixture
def path(tmp_path):
    """Make a store with two runs of three trials."""
    place = tmp_path / "s.db"
    for tag in ("one", "two"):
        made = [trials.trial(block=block) for block in range(3)]
        trials.kept(place, made, tags=(tag,))
    return place


def change(path, *statements):
    """Change a store behind steelyard's back."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def as_first_version(path):
    """Turn a store into what the first version would have made of the same runs."""
    new = path.with_name("old.db")
    with contextlib.closing(sqlite3.connect(new)) as connection:
        connection.executescript(SCHEMA_1)
        connection.execute("ATTACH ? AS new", [str(path)])
        for table in ("run", "trial"):
            info = connection.execute(f"PRAGMA main.table_info({table})")
            names = ",".join(f'"{one[1]}"' for one in info)
            copy = f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table}"
            connection.execute(copy)
        connection.commit()
    return new


@pytest.mark.parametrize("writable", [True, False])
def test_a_store_of_the_first_version_is_read_and_brought_up_to_date(
    path, writable, monkeypatch
):
    """Where it may not be written it stays as it is, and is read all the same."""
    with Store.open(str(path)) as opened:
        expected = [(one, opened.trials(one.uid)) for one in opened.runs()]
    old = as_first_version(path)
    monkeypatch.setattr(places, "_may_write", lambda _: writable)
    with Store.open(str(old), create=False) as opened:
        found = [(one, opened.trials(one.uid)) for one in opened.runs()]
        if not writable:
            with pytest.raises(StoreError, match="no permission to write"):
                opened.begin(trials.run())
    assert found == expected
    with contextlib.closing(sqlite3.connect(old)) as connection:
        (version,) = connection.execute("SELECT version FROM steelyard_schema")
    assert version == (3 if writable else 1,)


LOSSES = [
    ("DELETE FROM trial WHERE id = 2", "2 trials, where 3 were stored"),
    ("DELETE FROM run WHERE tags LIKE '%one%'", "1 runs where 2 were stored"),
    ("UPDATE trial SET document = replace(document, '8192', '8193')", "digest"),
]
DAMAGES = [
    *LOSSES,
    ("UPDATE trial SET \"case\" = 'copy[n=9]' WHERE id = 2", "digest"),
    ("UPDATE trial SET error = 7 WHERE id = 1", "digest"),
    ("UPDATE trial SET samples = 'text'", "digest"),
    ("UPDATE run SET state = 'failed' WHERE tags LIKE '%two%'", "digest"),
    ("UPDATE run SET machine = '{'", "digest"),
    ("INSERT INTO steelyard_schema VALUES (1, 'x', 1, 1)", "says 2 times"),
    ("UPDATE steelyard_schema SET version = 0", "schema 0"),
]
OTHERS = ("history", "compare @-2 @-1", "export")
"""Commands that read a store as `show` does, which is held to all."""


@pytest.mark.parametrize(
    ("command", "statement", "says"),
    [("show", *one) for one in DAMAGES]
    + [(name, *one) for name in OTHERS for one in LOSSES],
)
def test_what_was_damaged_is_never_shown_for_what_was_stored(
    path, command, statement, says
):
    """Lost rows, other values, labels and types: each is one sentence."""
    change(path, "PRAGMA foreign_keys = OFF", statement)
    if (
        command == "history"
    ):  # it reads what was kept of the trials, or all of them anew
        change(path, "DELETE FROM summary")
    words = command.split()
    if command == "export":
        words += ["@-2" if "id = " in statement else "@-1", os.devnull]
    elif command == "show" and "id = " in statement:
        words += ["@-2"]
    assert says in " ".join(said(*words, "--store", path).split())


def test_a_damaged_run_is_removed_and_the_rest_is_read(path):
    """The sentence names the command, and it works."""
    change(path, "UPDATE run SET command = 'x' WHERE tags LIKE '%one%'")
    refused = said("show", "one", "--store", path)
    (name,) = [w for w in refused.split() if len(w.strip("`.")) == 8][-1:]
    assert f"`steelyard store remove {name.strip('`.')}`" in refused
    shell.command("store", "remove", name.strip("`."), "--yes", "--store", path)
    shell.command("show", "two", "--store", path)


def test_a_run_is_removed_when_asked_and_agreed_to(path):
    """It says what goes; a running one stays."""
    store = ("--store", path)
    asked = shell.command("store", "remove", "one", *store, input="n\n")
    assert "with 3 trials?" in asked.output
    assert "nothing was removed" in asked.output
    shell.command("store", "remove", "one", *store, input="y\n")
    assert "nearest" not in said("show", "one", *store)
    with Store.open(str(path)) as opened:
        assert [run.tags for run in opened.runs()] == [("two",)]
        uid = opened.begin(trials.run(tags=("busy",)))
    assert "is still running" in said("store", "remove", "busy", "--yes", *store)
    with Store.open(str(path)) as opened:
        assert opened.runs()[-1].uid == uid


def test_an_import_never_takes_back_how_a_run_ended(tmp_path):
    """An export from while it ran, imported once it has finished, changes nothing."""
    with Store.open(str(tmp_path / "s.db")) as opened:
        uid = opened.begin(trials.run())
        opened.add(uid, trials.trial(block=0))
        early = opened.export(uid)
        opened.add(uid, trials.trial(block=1))
        opened.finish(uid, "finished")
        before = opened.runs(), opened.trials(uid)
        assert opened.load(early) == Loaded(uid, 0, 1)
        assert (opened.runs(), opened.trials(uid)) == before


def crafted(**changes):
    """Return an export with a right digest of a run with other values."""
    document = json.loads(archive.write(trials.run(), [trials.trial()]))
    content = document["content"]
    for key, value in changes.items():
        *above, last = key.split("__")
        place = content
        for name in above:
            place = place[int(name) if name.isdecimal() else name]
        place[last] = value
    document["digest"] = decoding.digest(content)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"run__writer": {"pid": "x"}}, "writer has no machine"),
        ({"run__writer__pid": "x"}, "writer.pid is 'x', expected a whole number"),
        ({"run__machine": []}, "machine is a list, expected a table"),
        ({"run__machine__gpu": 7}, "machine.gpu is 7, expected a table"),
        ({"run__state": "done"}, "state is 'done'"),
        ({"run__tags": "a"}, "tags is 'a', expected a list"),
        ({"run__uid": 7}, "uid is 7, expected text"),
        ({"run__uid": "../x"}, "uid is '../x'"),
        ({"trials__0__document__block": True}, "block is True"),
        ({"trials__0__document__floors": {"empty": "x"}}, "floors.empty is 'x'"),
        ({"trials__0__document__clock": None}, "clock is None"),
        ({"trials__0__document__doubts": [1]}, r"doubts[0] is 1, expected text"),
        ({"trials__0__document__facts": {"$float": "x"}}, "$float is 'x'"),
        ({"trials__0__samples": "!"}, "trial 0"),
        ({"trials": {}}, "trials is a table, expected a list"),
    ],
)
def test_an_export_with_other_types_is_refused_at_the_door(tmp_path, changes, says):
    """The field and what was expected there are named; the store stays usable."""
    file, store = tmp_path / "e.json", tmp_path / "s.db"
    file.write_bytes(crafted(**changes))
    assert says in said("import", file, "--store", store)
    with Store.open(str(store)) as opened:
        assert opened.runs() == []


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b'"\\ud800"', b"\xff", b"NaN", b""]
)
def test_what_is_hardly_json_is_refused(tmp_path, data):
    """Nested too deeply, half a character, no text."""
    (tmp_path / "e.json").write_bytes(data)
    assert "e.json" in said("import", tmp_path / "e.json", "--store", tmp_path / "s.db")


def test_a_file_too_large_for_any_run_is_refused_before_it_is_read(tmp_path):
    """So is one whose samples would take more memory than they could fill."""
    file = tmp_path / "e.json"
    with file.open("wb") as opened:
        opened.truncate(2 << 30)
    assert "expected at most" in said("import", file, "--store", tmp_path / "s.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite+pysqlite:///nope", "no store at nope"),
        ("sqlite://host/x", "names no file"),
        ("postgresql+psycopg://u:secret@h:port/d", "cannot be opened"),
    ],
)
def test_a_url_that_keeps_nothing_or_cannot_be_read_is_refused(
    tmp_path, monkeypatch, url, says
):
    """Nothing is made, and nothing of a password is said."""
    monkeypatch.chdir(tmp_path)
    refused = said("show", "--store", url)
    assert says in refused
    assert "secret" not in refused
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_the_place_of_a_store_or_an_export_hangs_nobody(tmp_path):
    """Both are refused."""
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in said("show", "--store", tmp_path / "pipe")
    assert "no regular file" in said(
        "import", tmp_path / "pipe", "--store", tmp_path / "s"
    )


def test_a_full_disk_leaves_the_older_export(path):
    """A limit on the size of files stands in for it."""
    file = path.with_name("e.json")
    file.write_text("older")
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99));"
        f"from steelyard.commands import main; main(['export', '@-1', {str(file)!r},"
        f" '--store', {str(path)!r}])"
    )
    done = shell.python("-B", "-c", code)
    assert (done.returncode, file.read_text()) == (4, "older")
    assert "Name another file" in done.stderr
    assert sorted(p.name for p in path.parent.glob("*e.json*")) == ["e.json"]


def test_an_export_names_no_folder_unless_asked(path):
    """Nor does one name a user in a URL."""
    hashes = {"file": "/home/joe/suites/x.py", "source": "s"}
    made = [trials.trial(hashes=hashes, error="in '/home/joe/x.py': no")]
    asked = (
        "steelyard run '/home/joe/a b/x.py' --input x=@/home/joe/x.npy "
        "--store postgresql://joe:***@host/db"
    )
    trials.kept(path, made, command=asked)
    file = path.with_name("e.json")
    shell.command("export", "@-1", file, "--store", path)
    assert "joe" not in file.read_text()
    assert "x.py" in file.read_text()
    shell.command("import", file, "--store", path.with_name("t.db"))
    words = ("export", "@-1", file, "--with-paths", "--store", path)
    shell.command(*words)
    assert "/home/joe/suites/x.py" in file.read_text()


def test_a_table_s_name_that_is_no_text_is_a_sentence(tmp_path):
    """SQLite keeps bytes, whatever it calls them."""
    path = tmp_path / "s.db"
    with Store.open(str(path)) as store:
        store.begin(trials.run())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    good = path.read_bytes()
    for name in (b"steelyard_schema", b"summary", b"kernel", b"finished"):
        path.write_bytes(good.replace(name, b"\xf1" + name[1:]))
        codes = {0, 1, 2, 3, 4}
        done = shell.command("show", "--runs", "--store", path, code=codes)
        assert "Traceback" not in done.output


SCHEMA_2 = (
    *(f"ALTER TABLE run DROP COLUMN {n}" for n in ("kind", "place", "pruned", "head")),
    "DROP TABLE entry",
    "DROP TABLE summary",
    "CREATE TABLE summary (run VARCHAR(32) PRIMARY KEY, digest VARCHAR(32), document TEXT)",
    "INSERT INTO summary SELECT uid, 'x', '[]' FROM run",
    "UPDATE steelyard_schema SET version = 2",
)


def test_a_store_of_the_second_version_is_brought_up_to_date(path):
    """Runs get the kinds of their machines, and summaries are made anew."""
    with Store.open(str(path)) as opened:
        expected = [(one, opened.trials(one.uid)) for one in opened.runs()]
        summaries = opened.summaries([one.uid for one, _ in expected])
        heads = opened.heads()
    change(path, *SCHEMA_2)
    with Store.open(str(path)) as opened:
        assert [(one, opened.trials(one.uid)) for one in opened.runs()] == expected
        assert opened.heads() == heads
        assert heads[0].kind == "cpu=Test CPU; cores=2"
        assert opened.summaries([one.uid for one, _ in expected]) == summaries


def aged(path, *days):
    """Store a finished run that began so many days ago, for each number."""
    now = datetime.now(UTC)
    for number in days:
        started = (now - timedelta(number)).isoformat()
        tagged = {"started": started, "tags": ("nightly",)}
        yield trials.kept(path, [trials.trial()], **tagged).uid


def test_old_samples_and_old_runs_are_pruned_when_agreed_to(tmp_path):
    """Estimates stay where samples go; what is kept by name, and the latest, stay."""
    path = tmp_path / "s.db"
    oldest, old, young, latest = aged(path, 800, 400, 20, 500)
    with Store.open(str(path)) as opened:
        before = opened.summaries([old])
        running = opened.begin(trials.run(started="2020-01-01T00:00:00+00:00"))
    words = ("store", "prune", "--samples", 90, "--runs", 730, "--store", path)
    asked = shell.command(*words)
    assert "samples, keeping estimates, of 1 run of" in asked.output
    assert "everything of 1 run of" in asked.output
    assert "stay as they are: 3 runs" in asked.output
    assert "give --yes" in asked.output
    kept = shell.command(*words, "--keep", "nightly", "--yes")
    assert "stay as they are: 5 runs" in kept.output
    with Store.open(str(path)) as opened:
        assert len(opened.trials(old)) == 1
    size = path.stat().st_size
    shell.command(*words, "--yes")
    assert path.stat().st_size <= size
    with Store.open(str(path)) as opened:
        assert {run.uid for run in opened.runs()} == {old, young, latest, running}
        assert opened.summaries([old]) == before
        assert len(opened.trials(young)) == 1
    assert f"run {old[:8]} of store" in said("show", old, "--store", path)
    assert oldest not in shell.command("show", "--runs", "--store", path).output
    assert "samples" not in shell.command(*words).output
    assert "name a limit" in said("store", "prune", "--store", path)
    change(path, "UPDATE entry SET estimate = '[1, 1, 1, 0]'")
    assert "digest of its summary" in said("history", "--store", path)


def test_a_summary_that_lost_an_entry_is_made_anew(path):
    """Or has another one, or none of its own."""
    with Store.open(str(path)) as opened:
        uids = [one.uid for one in opened.runs()]
        expected = opened.summaries(uids)
        for statement in (
            "DELETE FROM entry WHERE position = 0",
            "UPDATE entry SET mode = 'latency/cold'",
            "DELETE FROM summary",
        ):
            change(path, statement)
            assert opened.summaries(uids) == expected

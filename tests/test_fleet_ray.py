"""Fleets on a cluster of Ray's on localhost, whose nodes pass for machines."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

import postgresql
import psutil
import pytest
import shell
import sqlalchemy as sa
import test_bisect
from fleet_chaos import SUITE, attempts, overlaps

from steelyard.fleet import cluster
from steelyard.fleet.record import Record, State
from steelyard.store import archive
from steelyard.store.store import Store

pytest.importorskip("ray", reason="needs the extra fleet")

BOX = {
    "steelyard/name": "box",
    "steelyard/gpu": "Fake",
    "steelyard/gpus": "2",
    **{f"steelyard/gpu{at}": "Fake" for at in range(2)},
    **{f"steelyard/uuid{at}": f"GPU-fake-{at}" for at in range(2)},
}
LONE = {"steelyard/name": "lone", "steelyard/cpu": "Slow"}

SEEN = """
(Path({folder!r}) / "seen").open("a").write(
    f"{{JOB.split()[-1]}} {{os.environ.get('CUDA_VISIBLE_DEVICES')}} "
    f"{{sorted(os.sched_getaffinity(0))}}\\n"
)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make a repository with a suite that writes down when and where it runs."""
    folder = tmp_path_factory.mktemp("fleet")
    root, beats = folder / "repository", folder / "beats"
    beats.mkdir()
    text = SUITE.format(folder=str(beats)) + SEEN.format(folder=str(folder))
    shell.commit(shell.files(root, {"suites/bench_slow.py": text}))
    return folder


@pytest.fixture(scope="module")
def variables(place):
    """Give what every process of these fleets has."""
    own = {
        "STEELYARD_CACHE": str(place / "cache"),
        "STEELYARD_LOCK": str(place / "lock"),
    }
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    kept = {n: os.environ.get(n) for n in own}
    os.environ.update(own)
    found = {**os.environ, **cluster.authenticated(), **own}
    for name, value in kept.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    return found


@pytest.fixture(scope="module")
def address(place, variables):
    """Start a cluster of two machines, one of them with two GPUs."""
    file = place / "address"
    line = [sys.executable, "-m", "steelyard.fleet.local", str(file)]
    with subprocess.Popen(
        [*line, json.dumps(BOX), json.dumps(LONE)], env=variables
    ) as process:
        while not file.exists():
            assert process.poll() is None
            time.sleep(0.1)
        yield file.read_text()
        process.terminate()


def fleet(root, variables, address, *words, **changes):
    """Start a command of a fleet in a checkout."""
    line = [sys.executable, "-m", "steelyard.cli", *words, "--address", address]
    return subprocess.Popen(
        line,
        cwd=root,
        env=variables | changes,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def opened(url):
    """Make the tables of a store."""
    with Store.open(url):
        return {"STEELYARD_STORE": url}


def ran(place):
    """Return the attempts that were seen to run since the last time."""
    beats = place / "beats"
    found = attempts(beats)
    for file in beats.iterdir():
        file.unlink()
    return found


RUN = ("fleet", "run", "suites", "--options", "--blocks 1")


def test_two_gpus_of_a_machine_have_a_job_each_at_once(place, variables, address):
    """Each sees its own GPU and its share of the cores; never two jobs on one."""
    (place / "seen").unlink(missing_ok=True)
    store = opened(str(place / "gpus.db"))
    words = (*RUN, "--on", "gpu=fake", "--per", "gpu", "--repeat", "4")
    with fleet(place / "repository", variables, address, *words, **store) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    spans = ran(place)
    machines = {job.split(" ")[2] for job in spans}
    assert machines == {"box/gpu0", "box/gpu1"}
    assert not overlaps(spans)
    by_part = [
        [moments for job, moments in spans.items() if job.endswith(part)]
        for part in sorted(machines)
    ]
    assert any(
        min(one) < max(two) and min(two) < max(one)
        for one in by_part[0]
        for two in by_part[1]
    )
    seen = {*(place / "seen").read_text().splitlines()}
    cores = sorted(os.sched_getaffinity(0))
    for line in seen:
        part, gpu, own = line.split(" ", 2)
        assert gpu == f"GPU-fake-{part[-1]}"
        if len(cores) == 2:
            assert own == str([cores[int(part[-1])]])


def test_two_fleets_have_a_machine_one_after_the_other(place, variables, address):
    """With a store each; one takes the whole of it, the other its GPUs."""
    ways = (("--per", "gpu"), ("--per", "machine"))
    words = (*RUN, "--on", "gpu=fake", "--repeat", "2")
    begun = [
        fleet(
            place / "repository",
            variables,
            address,
            *words,
            *way,
            **opened(str(place / f"{n}.db")),
        )
        for n, way in enumerate(ways)
    ]
    for one in begun:
        said, _ = one.communicate(timeout=300)
        assert one.returncode == 0, said
    spans = ran(place)
    assert len(spans) == 4
    ends = {}
    for job, moments in spans.items():
        name = job.split("-")[0]
        low, high = ends.get(name, (float("inf"), 0.0))
        ends[name] = min(low, *moments), max(high, *moments)
    one, two = sorted(ends.values())
    assert one[1] < two[0]


def test_equal_machines_search_commits_together(bisected, variables, address):
    """Each measures both ends and its own commits; another kind is left alone."""
    root, first, last = bisected
    url = str(root / ".steelyard.db")
    words = ("bisect", "summed", first, last, "--per", "gpu", "--on", "gpu=fake")
    store = opened(url)
    with fleet(root, variables, address, *words, **store) as process:
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "change 3" in said
    for machine in ("box/gpu0", "box/gpu1"):
        assert f"on {machine}: bisect" in said
    assert "lone" not in said
    with Store.open(url) as store:
        assert {tag for run in store.runs() for tag in run.tags} == {
            "bisect/base",
            "bisect/head",
        }
    words = ("bisect", "missing", first, last, "--on", "cpu=slow")
    with fleet(root, variables, address, *words, STEELYARD_STORE=url) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 4, said
    assert "lone cannot bisect" in said
    words = ("bisect", "summed", first, last, "--on", "any")
    with fleet(root, variables, address, *words, STEELYARD_STORE=url) as process:
        said, _ = process.communicate(timeout=300)
    assert "machines of 2 kinds" in said


@pytest.fixture
def bisected(tmp_path):
    """Make a repository of five commits, whose fourth does three times the work."""
    works = [test_bisect.WORK.format(times) for times in (1, 1, 1, 3, 3)]
    made = test_bisect.changes(tmp_path, works)
    return tmp_path, made[0], made[-1]


def test_ctrl_c_leaves_a_campaign_that_is_resumed(place, variables, address):
    """Nothing of it runs on; what was done is not done again."""
    url = str(place / "resumed.db")
    store = opened(url)
    words = (*RUN, "--on", "cpu=slow", "--repeat", "3")
    with fleet(place / "repository", variables, address, *words, **store) as process:
        book = Record(url)
        while not [
            one for one in book.entries() if one.job.id == 1 and one.state == "running"
        ]:
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    (name,) = {one.campaign for one in book.entries()}
    assert f"fleet run --resume {name}" in said
    assert State.RUNNING not in {one.state for one in book.entries(name)}
    before = ran(place)
    words = ("fleet", "run", "--resume", name)
    with fleet(place / "repository", variables, address, *words, **store) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert {one.state for one in book.entries(name)} == {State.DONE}
    again = ran(place)
    assert len(before) >= 1
    assert not [job for job in again if job.startswith(f"{name}-0 ")]
    book.close()


LOGS = re.compile(r"/[^=]*/session_[^/]*/logs")


def test_nobody_reads_the_stores_password(place, variables, address):
    """Neither in command lines nor in Ray's files, nor in what is printed or stored."""
    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    if postgresql.programs() is None:
        pytest.skip("needs the programs of a PostgreSQL server (Debian: postgresql)")
    servers = postgresql.serve()
    url = next(servers).url()
    secret = sa.make_url(url).password
    assert len(secret) > 8
    seen, own = set(), variables["STEELYARD_CACHE"]
    words = (*RUN, "--on", "cpu=slow")
    root = place / "repository"
    with (
        Store.open(url),
        fleet(root, variables, address, *words, STEELYARD_STORE=url) as process,
    ):
        while process.poll() is None:
            for one in psutil.process_iter(["cmdline", "environ"]):
                if (one.info["environ"] or {}).get("STEELYARD_CACHE") == own:
                    seen |= {*one.info["cmdline"]}
            time.sleep(0.05)
        said = process.stdout.read()
    assert process.returncode == 0, said
    (logs,) = {Path(one) for word in seen for one in LOGS.findall(word)}
    spellings = (secret, urllib.parse.quote(secret), urllib.parse.quote_plus(secret))
    texts = [
        said,
        *seen,
        *(one.read_text(errors="replace") for one in logs.rglob("*.*")),
    ]
    texts += [one.read_text() for one in Path(own, "fleet", "spool").iterdir()]
    with Store.open(url) as store:
        runs = [(run, store.trials(run.uid)) for run in store.runs()]
    texts += [archive.write(*one).decode() for one in runs]
    book = Record(url)
    texts += [str(one) for one in book.entries()]
    book.close()
    servers.close()
    assert len(texts) > 100
    assert not [text for text in texts if any(one in text for one in spellings)]

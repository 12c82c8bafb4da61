"""Many machines: which job goes where, who holds what, and what a machine does."""

import heapq
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fleet_leases
import postgresql
import pytest
import shell

from steelyard.analyse import kinds
from steelyard.errors import (
    FAILED,
    FINE,
    REGRESSION,
    SteelyardError,
    StoreError,
    UnjudgedError,
)
from steelyard.fleet import agent, campaign, cluster, environments, jobs, record
from steelyard.fleet.agent import Order
from steelyard.fleet.campaign import Campaign
from steelyard.fleet.jobs import Job, Queue
from steelyard.fleet.record import Claim, Record, State
from steelyard.store import archive
from steelyard.store.store import Store

H200 = {"gpu": "NVIDIA H200", "cpu": "Intel Xeon"}
EPYC = {"cpu": "AMD-EPYC-9654"}


def test_a_machine_takes_the_oldest_job_that_is_for_it():
    """Each commit once on each kind before any is repeated."""
    every = list(jobs.planned(["a", "b"], ["suites"], ["gpu=h200", "cpu=epyc"], 2))
    assert [(one.commit, one.repeat) for one in every[::2]] == [
        *(("a", 0), ("b", 0)),
        *(("a", 1), ("b", 1)),
    ]
    queue = Queue(every)
    assert [queue.take(H200).id for _ in range(4)] == [0, 2, 4, 6]
    assert queue.take(H200) is None
    assert queue.unserved([H200]) == ["cpu=epyc"]
    assert queue.unserved([H200, EPYC]) == []
    assert queue.take(EPYC).id == 1
    queue.put(Job(9, "c", (), kinds.ANY))
    assert queue.take(H200).id == 9


def campaign_of(count, machines):
    """Simulate jobs on machines that take random times; return seconds per decision."""
    draw = random.Random(count)
    on = ["gpu=h200", "cpu=epyc", "gpu=a100", kinds.ANY]
    models = ["NVIDIA H200", "NVIDIA A100"]
    facts = [
        {"name": f"m{n}", "cpu": "EPYC", "gpu": draw.choice(models)}
        for n in range(machines)
    ]
    queue = Queue(Job(n, "c", (), draw.choice(on)) for n in range(count))
    free = [(0.0, at) for at in range(machines)]
    done, spent, decisions = set(), 0.0, 0
    while free:
        now, at = heapq.heappop(free)
        before = time.process_time()
        job = queue.take(facts[at])
        spent += time.process_time() - before
        decisions += 1
        if job is not None:
            assert job.id not in done
            assert kinds.accepts(job.on, facts[at])
            done.add(job.id)
            heapq.heappush(free, (now + draw.expovariate(1), at))
    assert len(done) == count
    return spent / decisions


def test_a_decision_takes_less_than_a_millisecond_however_many_jobs_there_are():
    """100,000 jobs on 1,000 machines, and no more each than of a tenth."""
    few, many = campaign_of(10_000, 1000), campaign_of(100_000, 1000)
    assert many < 1e-3
    assert many < 5 * few


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Give an empty store in a file, or on a server."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    return request.getfixturevalue("server").url()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Keep environments and all else in a folder of the test's own, also the user's."""
    user = SimpleNamespace(pw_dir=str(tmp_path), pw_name="me", pw_shell="/bin/sh")
    monkeypatch.setattr(agent, "pwd", SimpleNamespace(getpwuid=lambda _: user))
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def later(monkeypatch):
    """Have the clock of leases go ahead, by so many seconds each time."""
    now, ahead = record._now, []
    monkeypatch.setattr(record, "_now", lambda where: now(where) + sum(ahead))
    return ahead.append


def opened(url):
    """Make the tables of a store."""
    with Store.open(url):
        return url


def test_a_job_and_a_machine_have_one_holder(url, later):
    """Until the lease is over; and what ended otherwise is queued or failed."""
    first, other = Record(opened(url), lease=1000), Record(url, lease=1000)
    name = first.add(jobs.planned(["a", "b"], ["s"], ["any"], 1))
    mine = Claim(name, 0, "box", "me")
    assert first.claim(mine)
    assert not other.claim(Claim(name, 0, "elsewhere", "you"))
    assert not other.claim(Claim(name, 1, "box", "you"))
    later(600)
    assert first.renew(mine, seconds=5)
    later(600)
    assert not other.claim(Claim(name, 0, "elsewhere", "you"))
    later(600)
    assert other.claim(Claim(name, 0, "elsewhere", "you"))
    assert not first.renew(mine, seconds=5)
    assert not first.end(mine, 0, "", fine=True)
    assert other.end(Claim(name, 0, "elsewhere", "you"), 7, "a\0log", fine=False)
    assert first.claim(mine)
    first.release(mine)
    assert [one.state for one in first.entries(name)] == [State.QUEUED] * 2
    assert first.claim(mine)
    assert first.end(mine, 7, "again", fine=False)
    failed = first.entries(name)[0]
    assert (failed.state, failed.failures, failed.losses) == (State.FAILED, 2, 0)
    assert (failed.code, failed.log) == (7, "again")
    assert not first.claim(mine)
    first.close()
    other.close()


def test_a_machine_and_its_parts_have_one_holder(url):
    """Two parts at once; never the whole beside one, nor one part twice."""
    book = Record(opened(url))
    name = book.add(jobs.planned(["a"] * 6, ["s"], ["any"], 1))
    box = [Claim(name, n, where, f"{n}") for n, where in enumerate(SLOTS)]
    assert [book.claim(one) for one in box] == [True, True, False, False, True, True]
    book.release(box[0])
    book.release(box[1])
    assert book.claim(box[2])
    assert not book.claim(box[0])
    book.close()


SLOTS = ["box/gpu0", "box/gpu1", "box", "box/gpu1", "box_gpu1", "box2/gpu1"]


def test_parts_of_a_machine_share_neither_gpus_nor_cores():
    """Threads of one core stay together; without enough cores all share them."""
    gpus = jobs.labels([("H200", "GPU-a"), ("A100", "GPU-b"), ("A100", "GPU-c")])
    facts = {"name": "box", "cpu": "EPYC", **gpus}
    assert jobs.resources(facts) == {"machine": 1, "gpu0": 1, "gpu1": 1, "gpu2": 1}
    parts = jobs.parts(facts)
    assert [(one["gpu"], share.uuid) for one, share in parts.values()] == [
        *(("H200", "GPU-a"), ("A100", "GPU-b"), ("A100", "GPU-c"))
    ]
    assert set(parts) == {"box/gpu0", "box/gpu1", "box/gpu2"}
    assert sum(one.resources()["machine"] for _, one in parts.values()) <= 1
    threads = [(n, n + 7) for n in range(7)]
    every = [jobs.cores(range(14), threads, one) for _, one in parts.values()]
    assert every == [{0, 7, 1, 8}, {2, 9, 3, 10}, {4, 11, 5, 12}]
    assert jobs.cores(range(2), (), parts["box/gpu2"][1]) == {0, 1}
    ((name, (own, whole)),) = jobs.parts(EPYC | {"name": "cpus"}).items()
    assert (name, own["cpu"], whole) == ("cpus", "AMD-EPYC-9654", None)


def test_of_many_that_claim_at_once_one_gets_it(url):
    """One each of jobs and of machines."""
    opened(url)
    start = Record(url)
    name = start.add(jobs.planned(["a"] * 4, ["s"], ["any"], 1))
    start.close()
    got = []

    def claim(job, machine):
        one = Record(url)
        if one.claim(Claim(name, job, machine, f"{job}{machine}")):
            got.append((job, machine))
        one.close()

    pairs = [(job, box) for job in range(4) for box in "xy"]
    threads = [threading.Thread(target=claim, args=one) for one in pairs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(got) == 2
    assert len({job for job, _ in got}) == len({box for _, box in got}) == 2


def test_leases_of_a_machine_and_of_its_parts_never_overlap(url):
    """Of two fleets whose holders claim at random."""
    opened(url)
    found = fleet_leases.done(url, 30)
    assert (found["done"], found["overlapping"]) == (30, [])


class Machines:
    """An engine whose work is a script: words by job, in turn."""

    def __init__(self, book, name, script, lost=lambda: None):
        self.book, self.name, self.script, self.lost = book, name, script, lost
        self.under_way = deque()
        self.stopped = False
        self.log = []

    def machines(self):
        """Return two."""
        return {"one": H200, "two": EPYC}

    def start(self, machine, job):
        """Claim it as an agent does."""
        handle = object()
        claim = Claim(self.name, job.id, machine, "holder")
        word = self.script[job.id].pop(0) if self.script.get(job.id) else "done"
        claimed = self.book.claim(claim)
        self.log.append((job.id, machine, claimed))
        self.under_way.append((handle, claim, word if claimed else "busy"))
        return handle

    def ended(self, seconds):
        """End the oldest."""
        if not self.under_way:
            time.sleep(min(seconds, 0.05))
            return []
        handle, claim, word = self.under_way.popleft()
        if word == "interrupt":
            self.under_way.appendleft((handle, claim, "done"))
            raise KeyboardInterrupt
        if word in {"lost", jobs.GONE}:
            self.lost()
        if word in {"done", "failed"}:
            self.book.end(claim, 0 if word == "done" else 2, word, fine=word == "done")
        return [(handle, word)]

    def stop(self):
        """Queue again what is under way."""
        self.stopped = True
        for _, claim, _ in self.under_way:
            self.book.release(claim)


def driven(url, script, later, count=4):
    """Drive a campaign with a script; return its engine and jobs.

    The lease of what is lost is over at once.
    """
    book = Record(opened(url), lease=600)
    name = book.add(jobs.planned([f"c{n}" for n in range(count)], ["s"], ["any"], 1))
    engine = Machines(book, name, script, lost=lambda: later(601))
    found = Campaign(name, book, engine, lambda _: None).run(0)
    book.close()
    return engine, found


def test_what_failed_is_tried_once_more_and_what_was_lost_after_its_lease(url, later):
    """Every job ends; the one that failed twice is reported with its log."""
    script = {0: ["failed"], 1: ["failed", "failed"], 2: [jobs.GONE, "lost"]}
    engine, found = driven(url, script, later)
    states = [one.state for one in found]
    assert states == [State.DONE, State.FAILED, State.DONE, State.DONE]
    assert found[2].losses == 1
    assert campaign.exit_code(found) == FAILED
    text = "\n".join(campaign.lines("x", found))
    assert "campaign x: 3 done, 1 failed" in text
    assert "run 1 ended with 2" in text
    done = [job for job, _, claimed in engine.log if claimed]
    assert sorted(done) == [0, 0, 1, 1, 2, 2, 2, 3]


def test_a_job_that_loses_every_machine_is_given_up(url, monkeypatch, later):
    """It may be the job's doing; that a driver or a database was away is not."""
    monkeypatch.setattr(record, "MOST_LOST", 2)
    script = {0: ["lost"] * 3 + [jobs.GONE] * 9}
    _, found = driven(url, script, later, count=1)
    assert found[0].state == State.FAILED
    assert "lost 2 times" in found[0].log


def test_a_job_is_not_given_up_where_others_came_through_as_much(url, monkeypatch):
    """Machines go away by themselves there."""
    monkeypatch.setattr(record, "MOST_LOST", 2)
    book = Record(opened(url), lease=0.2)
    name = book.add(jobs.planned(["a", "b", "c", "d"], ["s"], ["any"], 1))
    for number, losses in enumerate((1, 2, 3)):
        for _ in range(losses):
            assert book.again(name, number, gone=True)
        claim = Claim(name, number, "box", "me")
        assert book.claim(claim)
        assert book.end(claim, 0, "", fine=True)
    assert [book.again(name, 3, gone=True) for _ in range(5)] == [True] * 4 + [False]
    assert book.entries(name)[3].state == State.FAILED
    book.close()


def test_an_interrupted_campaign_is_resumed(tmp_path):
    """What was under way is queued; what is done is not done again."""
    book = Record(opened(str(tmp_path / "s.db")), lease=5)
    name = book.add(jobs.planned(["a", "b", "c"], ["s"], ["any"], 1))
    engine = Machines(book, name, {1: ["interrupt"]})
    with pytest.raises(KeyboardInterrupt):
        Campaign(name, book, engine, lambda _: None).run(5)
    assert engine.stopped
    assert State.RUNNING not in {one.state for one in book.entries(name)}
    again = Machines(book, name, {})
    found = Campaign(name, book, again, lambda _: None).run(5)
    assert {one.state for one in found} == {State.DONE}
    assert 0 not in {job for job, _, _ in again.log}


def test_the_gravest_of_all_jobs_is_the_exit_code():
    """A regression stands before a failed case; a job that is not done before both."""

    def entry(code, state=State.DONE):
        return record.Entry("c", Job(0, "a", (), "any"), state, 0, 0, "m", code, "")

    assert campaign.exit_code([entry(0), entry(0)]) == FINE
    assert campaign.exit_code([entry(2), entry(1), entry(3)]) == REGRESSION
    assert campaign.exit_code([entry(0), entry(3)]) == 3
    assert campaign.exit_code([entry(1), entry(None, State.FAILED)]) == FAILED


SUITE = """
import json
import os
import sys
from pathlib import Path

from work import ROUNDS

from steelyard import benchmark

if "SEEN" in os.environ and "worker" in sys.argv[0]:
    Path(os.environ["SEEN"]).write_text(json.dumps(dict(os.environ)))


def add(x, out):
    out[:] = x * ROUNDS


@benchmark
def summed(b):
    b.mode("kernel/warm")
    x = b.input(100)
    y = b.output(100)
    return b.launch(add, x, out=y)
"""


@pytest.fixture
def repository(home):
    """Make a repository of two commits, in the folder where the command runs."""
    root = home / "repository"
    texts = {"suites/bench_work.py": SUITE, ".gitignore": "__pycache__\n.steelyard\n"}
    for rounds in (1, 2):
        texts["work.py"] = f"ROUNDS = {rounds}\n"
        shell.commit(shell.files(root, texts), f"rounds {rounds}")
    return root


def commits(root):
    """Return a repository's commits, the oldest first."""
    return shell.git(root, "rev-list", "--reverse", "HEAD").split()


@pytest.fixture
def ordered(repository, tmp_path):
    """Return what orders a job of the first commit, and gives its record too."""
    first, last = commits(repository)

    def ordered(url=str(tmp_path / "store.db"), **changes):
        book = books.enter_context(
            closing(Record(opened(url), changes.get("lease", 20)))
        )
        options = ("--blocks", "1", "--budget", "1", "--no-check")
        name = book.add(jobs.planned([first], ["suites"], ["any"], 1, options=options))
        (entry,) = book.entries(name)
        book.close()
        order = Order(name, url, str(repository), last, 20, job=entry.job)
        return replace(order, machine="box", **changes), book

    with ExitStack() as books:
        yield ordered


def test_a_machine_does_a_job_in_the_commits_environment(
    ordered, tmp_path, monkeypatch
):
    """With a login's variables; the store's credentials stay out of what is measured."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_JOB_ID", "1")
    seen = tmp_path / "seen.json"
    (tmp_path / ".profile").write_text(f"export SEEN={seen}\n")
    order, book = ordered()
    assert agent.work(order, threading.Event()) == "done"
    (entry,) = book.entries(order.campaign)
    assert (entry.state, entry.code) == (State.DONE, 0), entry.log
    with Store.open(order.store) as store:
        (run,) = store.runs()
        assert len(store.trials(run.uid)) == 1
    assert (run.commit, run.dirty, run.state) == (order.job.commit, False, "finished")
    assert run.tags == (f"fleet/{order.campaign}", f"job/{order.campaign}-0")
    variables = json.loads(seen.read_text())
    assert not {"OMP_NUM_THREADS", "RAY_JOB_ID", "STEELYARD_STORE"} & variables.keys()
    assert order.store not in run.command
    assert agent.work(order, threading.Event()) == "busy"


def test_a_job_is_stopped_and_stays_queued(ordered):
    """As Ctrl-C does."""
    order, book = ordered()
    stop = threading.Event()
    stop.set()
    assert agent.work(order, stop) == "stopped"
    (entry,) = book.entries(order.campaign)
    assert (entry.state, entry.failures) == (State.QUEUED, 0)


def test_what_nobody_was_told_of_is_not_done(ordered, monkeypatch):
    """The database is away when the child ends; the lease is not renewed for ever."""
    order, book = ordered()
    order = replace(order, lease=1.0)
    done = agent.Record.end

    def away(*words, **named):
        raise StoreError("the server is away")

    monkeypatch.setattr(agent.Record, "end", away)
    monkeypatch.setattr(agent, "_child", lambda _order, _held: (0, ""))
    assert agent.work(order, threading.Event()) == "lost"
    monkeypatch.setattr(agent.Record, "end", done)
    (entry,) = book.entries(order.campaign)
    assert entry.state == State.RUNNING


def test_a_lease_is_renewed_while_an_environment_is_made(
    ordered, tmp_path, monkeypatch, later
):
    """A build that takes several leases; nobody else gets the job or the machine."""
    monkeypatch.setattr(agent, "BEATS", 3000)
    renew, renewed = agent.Record.renew, threading.Semaphore(0)

    def renewing(*words, **named):
        held = renew(*words, **named)
        renewed.release()
        return held

    monkeypatch.setattr(agent.Record, "renew", renewing)
    order, book = ordered(lease=300)
    ends = tmp_path / "ends"
    waits = f"while ! test -e {ends}; do sleep 0.05; done"
    order = replace(order, build=f"sh -c '{waits}'")
    word = []
    thread = threading.Thread(
        target=lambda: word.append(agent.work(order, threading.Event()))
    )
    thread.start()
    other = Claim(order.campaign, order.job.id, "other", "you")
    try:
        for _ in range(10):
            for _ in ("before", "since"):
                assert renewed.acquire(timeout=60), word
            assert not book.claim(other)
            later(200)
    finally:
        ends.touch()
        thread.join()
    assert word == ["done"]


def test_a_database_that_is_away_meanwhile_loses_nothing(ordered, monkeypatch, server):
    """A run that cannot begin without its store is tried once more."""
    url = server.url()
    order, book = ordered(url, lease=120)
    run, away = agent._run, []

    def interrupted(line, variables, folder, log, held):
        server.stop()
        thread = threading.Timer(2, server.start)
        thread.start()
        away.append(thread)
        return run(line, variables, folder, log, held)

    monkeypatch.setattr(agent, "_run", interrupted)
    word = agent.work(order, threading.Event())
    for thread in away:
        thread.join()
    assert word in {"done", "failed"}
    if word == "failed":
        monkeypatch.setattr(agent, "_run", run)
        assert agent.work(order, threading.Event()) == "done"
    (entry,) = book.entries(order.campaign)
    assert entry.state == State.DONE
    with Store.open(url) as store:
        assert [len(store.trials(one.uid)) for one in store.runs()] == [1]


def test_a_machine_that_slept_ends_its_work_when_somebody_has_it(
    ordered, tmp_path, monkeypatch
):
    """The clock went on meanwhile: nothing runs beside the new holder."""
    order, book = ordered(lease=6)
    order, slept, went_on = replace(order, lease=6), [0.0], tmp_path / "went on"
    now, run = agent._now, agent._run
    monkeypatch.setattr(agent, "_now", lambda: now() + slept[0])

    def sleeping(*words):
        slept[0] = 3600.0
        return run(["sh", "-c", f"sleep 60; touch '{went_on}'"], *words[1:])

    monkeypatch.setattr(agent, "_run", sleeping)
    monkeypatch.setattr(agent.Record, "renew", lambda *_, **__: None)
    assert agent.work(order, threading.Event()) == "lost"
    assert not went_on.exists()
    (entry,) = book.entries(order.campaign)
    assert entry.state == State.RUNNING


def test_a_machine_that_is_away_does_its_job_when_it_is_back(tmp_path):
    """Nobody else may: the job is for that kind alone, and waits without being lost."""
    book = Record(opened(str(tmp_path / "s.db")), lease=0.2)
    name = book.add(jobs.planned(["a", "b"], ["s"], ["gpu=h200"], 1))
    engine = Machines(book, name, {0: [jobs.GONE]})
    there, since = engine.machines, time.monotonic()

    def machines():
        away = 0.5 < time.monotonic() - since < 2.5
        return {"two": EPYC} if away else there()

    engine.machines = machines
    found = Campaign(name, book, engine, lambda _: None).run(1.0)
    assert {one.state for one in found} == {State.DONE}
    assert {machine for _, machine, _ in engine.log} == {"one"}
    book.close()


def test_a_commit_that_does_not_build_fails_with_what_the_build_said(
    repository, monkeypatch
):
    """And is made anew the next time; a finished environment is not."""
    first, second = commits(repository)
    with (
        pytest.raises(UnjudgedError, match="does not build"),
        environments.made(str(repository), first, "sh ../missing.sh"),
    ):
        pass
    with environments.made(str(repository), second) as made:
        assert (made.tree / "work.py").read_text() == "ROUNDS = 2\n"
        assert made.python == sys.executable
    with monkeypatch.context() as patch:
        patch.setattr(environments, "_make", None)
        with environments.made(str(repository), second) as again:
            assert again == made
    with (
        pytest.raises(UnjudgedError, match="no worktree"),
        environments.made(str(repository), "0" * 40),
    ):
        pass


def test_what_could_not_be_stored_is_imported_once_the_server_is_back(home, tmp_path):
    """The files of a run whose store was away are stored by the next agent."""
    import trials

    url = opened(str(tmp_path / "s.db"))
    run = trials.run()
    data = archive.write(run, [trials.trial(), trials.trial(block=1)])
    (agent.spooled() / f"{run.uid}.json").write_bytes(data)
    with pytest.raises(SteelyardError):
        agent.import_spooled(str(tmp_path / "nowhere" / "s.db"))
    agent.import_spooled(url)
    with Store.open(url) as store:
        assert len(store.trials(run.uid)) == 2
    assert not list(agent.spooled().glob("*.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "suites", "--commits", "HEAD..HEAD~1"], "is not before BAD"),
        (["run", "/etc"], "suites of a fleet are committed"),
        (["run", "--resume", "nothing"], "no such campaign"),
        (["status"], "no cluster was started here"),
    ],
)
def test_what_a_fleet_cannot_do_is_one_sentence(repository, monkeypatch, words, said):
    """Exit code 4."""
    pytest.importorskip("ray", reason="needs the extra fleet")
    monkeypatch.chdir(repository)
    monkeypatch.setattr("steelyard.fleet.cluster.connected", refuse_status(words))
    assert said in shell.command("fleet", *words, code=4).output


def test_only_an_address_of_this_machine_alone_is_local():
    """With a port and without."""
    assert cluster.is_local("127.0.0.1")
    assert cluster.is_local("127.0.0.1:6379")
    assert not cluster.is_local("192.0.2.7")
    assert not cluster.is_local("192.0.2.7:6379")


def refuse_status(words):
    """Return what connects, but for the command that needs no more."""

    def connected(_):
        if words == ["status"]:
            raise SteelyardError("no cluster was started here")

    return connected


def test_kills_lose_nothing_and_repeat_nothing(tmp_path):
    """An agent, a node, the driver and the database, once each."""
    pytest.importorskip("ray", reason="needs the extra fleet")
    if postgresql.programs() is None:
        pytest.skip("needs the programs of a PostgreSQL server (Debian: postgresql)")
    line = [sys.executable, __file__.replace("test_fleet", "fleet_chaos")]
    done = subprocess.run(
        [*line, "--kills", "4", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr

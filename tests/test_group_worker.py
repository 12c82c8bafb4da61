import pickle
import signal
import sys
import threading

import pytest
import shell

from steelyard_device.errors import DeviceError
from steelyard_kernels.building.build import Request, prepare
from steelyard_kernels.group import worker as workers
from steelyard_kernels.group.worker import Job, Process, Reply, command, compile_job
from steelyard_kernels.library import triad
from steelyard_kernels.targets import parse

CPU = parse("cpu")
ARRAY = ((64,), "float32")


def text():
    """Return a small program for this machine."""
    program = triad.program(ARRAY, ARRAY)
    return prepare(Request(program, None, CPU)).text


def job(seconds=None, *, timed=False):
    """Return a job of a good candidate and a bad one."""
    return Job((("good", text()), ("bad", "no program")), CPU, seconds, timed)


def fake(body):
    """Return a worker whose process runs `body` with its `connection`."""
    script = (
        "import os, sys, time; from multiprocessing.connection import Connection\n"
        f"connection = Connection(int(sys.argv[-1]))\n{body}"
    )
    return Process([sys.executable, "-c", script])


REPLY = pickle.dumps(Reply(stopped=True)).hex()
ANSWERS = f"""
connection.send(None)
while connection.recv_bytes():
    connection.send_bytes(bytes.fromhex("{REPLY}"))
"""


@pytest.fixture(scope="module")
def process():
    """Return a real worker, which starts slowly."""
    worker = Process(command("cpu"))
    yield worker
    worker.close()


def test_a_process_answers_as_this_one_does(process):
    """The same bytes, phases and errors."""
    here, there = compile_job(job()), process.compile(job())
    assert there.made["good"].image == here.made["good"].image
    assert [name for name, _ in there.made["good"].phases] == [
        "parse",
        "check",
        "codegen",
    ]
    assert str(there.refused["bad"]) == str(here.refused["bad"])
    assert there.refused.keys() == here.refused.keys() == {"bad"}
    assert there.spans == ()


def test_a_process_serves_many_jobs(process):
    """It is started once."""
    first, _ = process._running or process._start()
    assert all(process.compile(job()).made for _ in range(3))
    assert process._running[0] is first


def test_a_process_that_hangs_is_killed_at_its_limit_and_replaced(monkeypatch):
    """Who ignores a limit loses the process, not the batch."""
    monkeypatch.setattr(workers, "GRACE", 0.0)
    worker = fake("connection.send(None); time.sleep(20)")
    process, _ = worker._start()
    reply = worker.compile(job(seconds=0.0))
    assert reply.stopped
    assert "did not stop at its time limit of 0 s" in str(reply.error)
    assert process.returncode == -signal.SIGKILL
    worker.arguments = fake(ANSWERS).arguments
    assert worker.compile(job()) == Reply(stopped=True)
    worker.close()


def test_a_process_that_is_killed_half_way_says_so_and_is_replaced():
    """As by kill -9, or for its memory."""
    worker = fake(
        "connection.send(None); connection.recv_bytes(); os.kill(os.getpid(), 9)"
    )
    reply = worker.compile(job())
    assert reply.died
    assert not reply.made
    assert "ended with status -9" in str(reply.error)
    worker.arguments = fake(ANSWERS).arguments
    assert worker.compile(job()) == Reply(stopped=True)
    worker.close()


def test_a_process_that_dies_of_being_stopped_was_stopped():
    """NVRTC does at times: its group is split, as when it stops in order."""
    worker = fake(
        "connection.send(None); connection.recv_bytes(); os.kill(os.getpid(), 11)"
    )
    reply = worker.compile(job(seconds=0.0))
    assert (reply.stopped, reply.died) == (True, False)
    assert "ended with status -11 before it answered, after its time limit" in str(
        reply.error
    )


def test_a_process_that_does_not_start_fails_all_of_its_job():
    """Trying others would fail alike."""
    worker = fake("sys.exit(3)")
    reply = worker.compile(job())
    assert reply.refused.keys() == {"good", "bad"}
    assert "did not start (it ended with status 3)" in str(reply.refused["good"])


def test_closing_from_another_thread_ends_a_job_that_hangs():
    """As an interrupted batch does."""
    worker = fake("connection.send(None); connection.recv_bytes(); time.sleep(20)")
    worker._start()
    thread = threading.Timer(0.05, worker.close)
    thread.start()
    assert worker.compile(job()).died
    thread.join()


def test_closing_twice_or_before_the_start_is_nothing():
    """There is nobody to end."""
    worker = fake(ANSWERS)
    worker.close()
    assert worker.compile(job()) == Reply(stopped=True)
    worker.close()
    worker.close()


def test_a_library_that_is_no_nvrtc_fails_with_its_path(tmp_path):
    """The process starts and says why it cannot compile."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    worker = Process(command("cuda", str(tmp_path / "libnothing.so")))
    reply = worker.compile(job())
    assert isinstance(reply.refused["good"], DeviceError)
    assert "libnothing.so" in str(reply.refused["good"])


def test_the_quick_tiers_process_has_its_linker_before_its_first_job():
    """Loading it is no candidate's time."""
    pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")
    script = (
        "import sys; from steelyard_kernels.group import serve\n"
        "assert serve._problem('nvptx', '') is None\n"
        "assert 'cuda.bindings.nvjitlink' in sys.modules"
    )
    shell.python("-c", script, check=True)


def test_the_parents_end_is_the_workers_end(process):
    """Nobody is left behind: a worker ends when its connection does."""
    running, connection = process._running or process._start()
    connection.close()
    assert running.wait(timeout=60) == 0
    process._running = None

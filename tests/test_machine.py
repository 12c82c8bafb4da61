import json
import os
import pty
import subprocess
import sys

import psutil
import pytest
import shell

from steelyard.machine import facts as machine
from steelyard.machine import neighbours
from steelyard.machine.neighbours import Neighbours


def test_the_facts_are_json_and_complete():
    """Each group is there and each value is a value or the word unknown."""
    facts = machine.describe()
    assert json.loads(json.dumps(facts)) == facts
    assert list(facts) == ["identity", "settings", "versions", "moment"]
    assert all(v is not None for group in facts.values() for v in group.values())


def test_the_identity_stays_the_same():
    """Two descriptions of one machine never differ in what `compare` reads."""
    assert machine.describe()["identity"] == machine.describe()["identity"]


def test_the_machine_id_is_not_told(monkeypatch):
    """A stored run holds a hash, and none where the machine has no id."""
    machine.machine_id.cache_clear()
    own = machine.read("/etc/machine-id")
    assert own[:12] not in machine.machine_id()
    machine.machine_id.cache_clear()
    monkeypatch.setattr(machine, "read", lambda _: machine.UNKNOWN)
    assert machine.machine_id() == machine.UNKNOWN
    machine.machine_id.cache_clear()


def test_what_cannot_be_read_is_unknown(monkeypatch, tmp_path):
    """On a machine without /sys and /proc nothing is guessed."""
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(machine, "read", lambda _: machine.UNKNOWN)
    assert machine.boost() == machine.UNKNOWN
    assert machine.hypervisor() == machine.UNKNOWN
    assert machine.siblings([0]) == machine.UNKNOWN
    assert machine.cpu_quota(tmp_path) == machine.UNKNOWN
    assert machine.caches(tmp_path) == {machine.UNKNOWN: machine.UNKNOWN}


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("0", [0]), ("0-2,8", [0, 1, 2, 8]), ("3,5", [3, 5])]
)
def test_lists_of_cpus_are_read(text, cpus):
    """The kernel's ranges and commas."""
    assert machine.cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "option"),
    [("always [madvise] never", "madvise"), ("[none]", "none"), ("", "unknown")],
)
def test_the_option_in_brackets_is_the_chosen_one(text, option):
    """As in transparent_hugepage/enabled."""
    assert machine.chosen(text) == option


def test_caches_are_read_with_their_sharing(tmp_path):
    """Instruction caches are left out; a size that cannot be read is unknown."""
    for index, (kind, level, size) in enumerate(
        [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "3", "odd")]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "type").write_text(kind)
        (folder / "level").write_text(level)
        (folder / "size").write_text(size)
        (folder / "shared_cpu_list").write_text("0-3")
    assert machine.caches(tmp_path) == {
        "L1": {"bytes": 48 << 10, "shared_by": 4},
        "L3": {"bytes": machine.UNKNOWN, "shared_by": 4},
    }


@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [
        ("max 100000", "max 100000", "none"),
        ("150000 100000", "max 100000", 1.5),
        ("400000 100000", "200000 100000", 2.0),
        ("garbage", "max 100000", "none"),
    ],
)
def test_the_tightest_quota_of_all_control_groups_counts(
    tmp_path, monkeypatch, inner, outer, cores
):
    """A limit of a group above this process's own binds as well."""
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(inner)
    (group.parent / "cpu.max").write_text(outer)
    real = machine.read
    monkeypatch.setattr(
        machine,
        "read",
        lambda p: "0::/outer/inner" if p == "/proc/self/cgroup" else real(p),
    )
    assert machine.cpu_quota(tmp_path) == cores


def test_the_checkout_says_commit_and_changes(tmp_path):
    """Outside a checkout both are unknown; a changed tracked file is dirty."""
    versions = machine.describe(tmp_path)["versions"]
    assert (versions["commit"], versions["dirty"]) == ("unknown", "unknown")

    shell.git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    shell.git(tmp_path, "add", "a")
    shell.git(tmp_path, "commit", "-m", "first")
    versions = machine.describe(tmp_path)["versions"]
    assert (len(versions["commit"]), versions["dirty"]) == (40, False)
    (tmp_path / "a").write_text("2")
    assert machine.describe(tmp_path)["versions"]["dirty"] is True


SPIN = "import time\nprint('begun', flush=True)\nwhile True: {}"


@pytest.mark.parametrize(("does", "seen"), [("pass", 1), ("time.sleep(900)", 0)])
def test_a_terminal_at_work_is_seen_on_a_fleets_machine(monkeypatch, does, seen):
    """One that waits is not; elsewhere nobody looks."""
    main, side = pty.openpty()
    line = [
        *(
            sys.executable,
            "-c",
            "import os, sys; os.setsid(); os.open(sys.argv[1], 2); ",
        ),
        os.ttyname(side),
    ]
    line[2] += f"exec({SPIN.format(does)!r})"
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            child = psutil.Process(process.pid)
            while not seen and child.status() != psutil.STATUS_SLEEPING:
                pass
            nobody = Neighbours()
            monkeypatch.setenv(neighbours.JOB, "a job")
            others = Neighbours()
            before = child.cpu_times()
            while seen and child.cpu_times() == before:
                pass
            assert others.terminals() >= seen
            own = {
                one for one in neighbours._on_terminals() if one[0] == str(process.pid)
            }
            assert len(own - others._terminals) == seen
            monkeypatch.delenv(neighbours.JOB)
            assert nobody.terminals() == 0
        finally:
            process.kill()
    os.close(main)
    os.close(side)

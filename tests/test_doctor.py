import io
import math

import pytest
from rich.console import Console

from steelyard.machine import doctor, lock
from steelyard.machine import facts as machine
from steelyard.report import diagnosis

WRONG = {
    "identity": {"hypervisor": "yes", "cores": 2},
    "settings": {
        "governor": "powersave",
        "boost": "on",
        "cpu_quota": 1.5,
        "affinity": [1],
        "huge_pages": "never",
        "aslr": "on",
        "clocksource": "hpet",
    },
    "moment": {"load": 7.0},
}


def look(monkeypatch, tmp_path, facts):
    """Return the findings of a made-up machine by topic."""
    monkeypatch.setattr(machine, "describe", lambda: facts)
    monkeypatch.setattr(doctor, "WATCH_SECONDS", None)  # psutil: since the last call
    monkeypatch.setattr(lock, "default_path", lambda: tmp_path / "lock")
    return {finding.topic: finding for finding in doctor.findings(tmp_path)}


def test_everything_wrong_is_a_doubt_with_a_reason_and_advice(monkeypatch, tmp_path):
    """Each wrong setting says what it does to numbers and what to do."""
    found = look(monkeypatch, tmp_path, WRONG)
    for topic in (
        "frequency governor",
        "boost",
        "hypervisor",
        "load",
        "CPU quota",
        "affinity",
        "huge pages",
        "address randomisation",
        "clock source",
    ):
        assert found[topic].verdict == "doubt", topic
        assert found[topic].why
        assert found[topic].advice


def test_a_quiet_machine_is_ok(monkeypatch, tmp_path):
    """What is right has no advice."""
    right = {
        "identity": {"hypervisor": "no", "cores": 8},
        "settings": {
            "governor": "performance",
            "boost": "off",
            "cpu_quota": "none",
            "affinity": [0, 1],
            "huge_pages": "madvise",
            "aslr": "off",
            "clocksource": "tsc",
        },
        "moment": {"load": 0.05},
    }
    found = look(monkeypatch, tmp_path, right)
    assert found["frequency governor"] == doctor.Finding(
        "frequency governor", "performance", "ok"
    )
    assert found["load"].verdict == "ok"
    assert found["another run"].verdict == "ok"


def test_what_cannot_be_read_is_unknown_and_never_ok(monkeypatch, tmp_path):
    """A machine that tells nothing gets no good marks for it."""
    nothing = {
        group: dict.fromkeys(values, machine.UNKNOWN) for group, values in WRONG.items()
    }
    monkeypatch.setattr(machine, "swap_used", lambda: machine.UNKNOWN)
    monkeypatch.setattr(lock, "is_held", lambda: None)
    found = look(monkeypatch, tmp_path, nothing)
    measured = {"neighbours", "steal", "clock tick", "empty window", "disk"}
    measured.add("kept builds")  # of which the file system tells all
    unknown = {topic for topic, f in found.items() if f.verdict == "unknown"}
    assert unknown == set(found) - measured
    assert all(found[topic].seen == machine.UNKNOWN for topic in unknown)


def test_a_run_that_measures_now_is_a_doubt_that_names_it(monkeypatch, tmp_path):
    """The doctor sees the lock without waiting for it."""
    with lock.measuring(path=tmp_path / "lock"):
        found = look(monkeypatch, tmp_path, WRONG)
    assert found["another run"].verdict == "doubt"
    assert "process" in found["another run"].seen


@pytest.mark.parametrize(("free", "verdict"), [(10, "doubt"), (2 << 30, "ok")])
def test_a_nearly_full_disk_is_a_doubt(monkeypatch, tmp_path, free, verdict):
    """The folder of the store need not exist yet."""
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    (finding,) = [doctor._disk(tmp_path / "a" / "b")]
    assert finding.verdict == verdict
    assert str(tmp_path) in finding.seen


def test_a_clock_that_stands_still_is_a_doubt(monkeypatch):
    """No step between readings is the worst tick there is."""
    monkeypatch.setattr(doctor, "smallest_step", lambda _: math.inf)
    tick, empty = doctor._clock()
    assert (tick.verdict, tick.seen) == ("doubt", "it stands still")
    assert empty.topic == "empty window"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_every_word_is_readable_at_any_width(width):
    """The findings are below each other: no word is cut in two."""
    findings = [
        doctor.Finding("boost", "on", "doubt", "heat decides", "turn it off in sysfs"),
        doctor.Finding("GPU", "this machine has none", "none", "", "its driver"),
        doctor.Finding("swap", "0 B in use", "ok"),
    ]
    console = Console(width=width, file=io.StringIO())
    console.print(diagnosis.page(findings))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "doubt boost: on heat decides; turn it off in sysfs" in words
    assert "none GPU: this machine has none its driver ok swap: 0 B in use" in words


def test_a_cache_that_others_may_write_is_a_finding(tmp_path, monkeypatch):
    """Builds are not kept there, and what to do is said."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    for mode, verdict in ((0o777, "doubt"), (0o755, "ok")):
        tmp_path.chmod(mode)
        found = {finding.topic: finding for finding in doctor.findings(tmp_path)}
        assert found["kept builds"].verdict == verdict
        assert ("chmod" in found["kept builds"].advice) is (verdict == "doubt")
        assert tmp_path.stat().st_mode & 0o777 == mode

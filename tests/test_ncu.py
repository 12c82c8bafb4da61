"""What Nsight Compute's answer says: parsed from its own text, summed, and judged."""

import csv
import io

import pytest

from steelyard.process import profile
from steelyard.process.profile import Kernel

HEADER = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context"),
    *("Stream", "Block Size", "Grid Size", "Device", "CC", "Section Name"),
    *("Metric Name", "Metric Unit", "Metric Value"),
)

NOTES = [
    "==WARNING== Note: Running with uncontrolled GPU caches.",
    "==PROF== Connected to process 497 (/usr/bin/python3.12)",
    '==PROF== Profiling "copy16": Application replay pass 1',
    "==PROF== Disconnected from process 497",
]


def log(*rows):
    """Write a log as ncu does: its own lines, then CSV of (id, kernel, metric, value)."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(HEADER)
    for number, kernel, metric, value in rows:
        fixed = [number, 497, "python3.12", "127.0.0.1", kernel, 1, 7, "(256, 1, 1)"]
        writer.writerow(
            [*fixed, "(9, 1, 1)", 0, "9.0", "Command line", metric, "", value]
        )
    return "\n".join(NOTES) + "\n" + text.getvalue()


def test_each_metric_of_each_kernel_is_read_under_our_name():
    """Sectors become bytes, percents shares, and a thousands separator is no matter.

    What a user's own sections count is passed over.
    """
    name = "void add<float, (int)4>(T1 *, const T1 *)"
    text = log(
        (0, name, "gpu__time_duration.sum", "3,200"),
        (0, name, "lts__t_sectors_op_read.sum", "1,024"),
        (0, name, "sm__warps_active.avg.pct_of_peak_sustained_active", "87.5"),
        (0, name, "sm__cycles_active.avg", "12"),
    )
    (kernel,) = profile.parse(text)
    assert kernel.name == name
    assert kernel.counted == {"time_ns": 3200, "l2_read": 32768, "occupancy": 0.875}


@pytest.mark.parametrize("value", ["n/a", "nan", "", "inf", "(!) nan"])
def test_what_ncu_could_not_count_is_absent(value):
    """It never reads as zero."""
    (kernel,) = profile.parse(log((0, "k", "dram__bytes_read.sum", value)))
    assert kernel.counted == {}


@pytest.mark.parametrize("text", ["", "\n".join(NOTES), "==ERROR== x\nplain words\n"])
def test_a_log_without_a_table_has_no_kernel(text):
    """As when nothing was launched, or ncu was refused: nothing is made up for it."""
    assert profile.parse(text) == ()
    assert profile.total(()) == {"kernels": 0}


def test_a_log_cut_short_gives_what_it_has():
    """The disk was full, or ncu was killed."""
    text = log(
        (0, "k", "gpu__time_duration.sum", "10"), (1, "k", "dram__bytes_read.sum", "9")
    )
    kernels = profile.parse(text[: text.index("dram__bytes_read") + 4])
    assert kernels[0].counted == {"time_ns": 10}


def test_kernels_are_added_up_and_means_are_weighted_by_time():
    """A call of two kernels reads the bytes of both; occupancy is that of the time.

    A sum that lacks a kernel is left out: half of the bytes would read as all of them.
    """
    kernels = (
        Kernel("a", {"time_ns": 1000, "dram_read": 10, "occupancy": 1.0, "l2_read": 8}),
        Kernel("b", {"time_ns": 3000, "dram_read": 30, "occupancy": 0.5}),
    )
    assert profile.total(kernels) == {
        "kernels": 2,
        "time_ns": 4000,
        "dram_read": 40,
        "occupancy": 0.625,
    }


@pytest.mark.parametrize(
    ("text", "reason", "code", "word"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not...", "", 1, "administrator"),
        (
            "==ERROR== The application returned an error code (1).",
            "copy[n=9]: no memory.",
            1,
            "copy[n=9]: no memory.",
        ),
        ("==ERROR== Failed to find metric x.", "", 1, "Failed to find metric x."),
        ("==WARNING== No kernels were profiled.", "", 0, "no kernel in the launch"),
        ("", "Segmentation fault", 139, "exit code 139: Segmentation fault."),
        ("", "", 7, "it said nothing"),
    ],
)
def test_a_refusal_is_one_sentence_with_its_cause(text, reason, code, word):
    """What ncu or the program said is in it."""
    sentence = profile.refusal(text, reason, code)
    assert word in sentence
    assert "\n" not in sentence
    assert ".." not in sentence


def test_the_command_leaves_clocks_and_caches_alone():
    """Both are what the rest was measured with; a pass in one process would be warm."""
    line = profile.command(["python", "x.py"], log="f.csv")
    assert line[0] == "ncu"
    assert line[-2:] == ["python", "x.py"]
    for option, value in (
        ("--profile-from-start", "off"),
        ("--clock-control", "none"),
        ("--cache-control", "none"),
        ("--replay-mode", "application"),
        ("--log-file", "f.csv"),
    ):
        assert line[line.index(option) + 1] == value
    assert "--log-file" not in profile.command(["x"])


MIB = 1 << 20
L2 = 60 * MIB


@pytest.mark.parametrize(
    ("cache", "must", "read", "working_set", "verdict"),
    [
        ("cold", 6 * MIB, 6 * MIB, 12 * MIB, "proven"),
        ("cold", 6 * MIB, 9 * MIB, 12 * MIB, "proven"),
        ("cold", 6 * MIB, 3 * MIB, 12 * MIB, "contradicted"),
        ("cold", 6 * MIB, 0, 12 * MIB, "contradicted"),
        ("warm", 6 * MIB, 0, 12 * MIB, "proven"),
        ("warm", 6 * MIB, 6 * MIB, 12 * MIB, "contradicted"),
        ("warm", 60 * MIB, 60 * MIB, 120 * MIB, "unknown"),
        ("warm", 20 * MIB, 9 * MIB, 40 * MIB, "unknown"),
        ("warm", 20 * MIB, MIB, 40 * MIB, "proven"),
        ("cold", 256, 2_560, 512, "unknown"),
        ("cold", 0, 0, 0, "unknown"),
        ("warm", 256, 0, 512, "unknown"),
        ("cold", 65_536, 65_792, 131_072, "proven"),
        ("warm", 65_536, 256, 131_072, "proven"),
        ("warm", MIB, None, MIB, "unknown"),  # not counted is not none
    ],
)
def test_bytes_from_memory_say_whether_caches_were_as_told(
    cache, must, read, working_set, verdict
):
    """Few bytes tell nothing, and data that does not fit need not be there."""
    counted = {} if read is None else {"dram_read": read}
    found = profile.coldness(
        cache, must=must, working_set=working_set, l2_bytes=L2, counted=counted
    )
    assert found.verdict == verdict


def test_a_verdict_comes_with_its_figures():
    """Bytes read and bytes that must be, and the L2 cache's hits where counted."""
    counted = {"dram_read": 6 * MIB, "l2_read": 8 * MIB, "l2_hit": 2 * MIB}
    found = profile.coldness(
        "cold", must=6 * MIB, working_set=12 * MIB, l2_bytes=L2, counted=counted
    )
    assert "6.00 MiB of its 6.00 MiB" in found.why
    assert "25%" in found.why

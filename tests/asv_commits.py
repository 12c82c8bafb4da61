"""A repository of ten commits, one of which makes one of two kernels slower.

Both kernels copy an array and then do work of known length. They lie in the root, where
only what asv installed of a commit must be measured. The suite and asv's configuration are beside them; asv's environments find this checkout's steelyard.
"""

from __future__ import annotations

import json
import site
import subprocess
from pathlib import Path

import shell

ROOT = Path(__file__).parent.parent

COUNT = 10
PLANTED = 6
"""The first slower one of ten."""

STEPS = 60_000
"""Dependent multiply-adds, four cycles each: about 60 us."""

KERNELS = """
import numpy as np
from steelyard_device import cpu

RESULT = np.zeros(1, np.float32)
STEADY = cpu.delay({steady}, RESULT)
PLANTED = cpu.delay({planted}, RESULT)


def steady(x, y):
    np.copyto(y, x)
    STEADY.launch()


def planted(x, y):
    np.copyto(y, x)
    PLANTED.launch()
"""

SUITE = """
import measured
from steelyard import benchmark


@benchmark(which=["steady", "planted"])
def work(b, which):
    x = b.input(64)
    y = b.output(64)
    b.check(lambda x: x, x)
    b.mode("kernel/warm")
    return b.launch(getattr(measured, which), x, y)
"""

ADAPTER = """
from steelyard import asv
globals().update(asv.families(__file__, rounds={rounds}))
"""

INSTALL = """
import shutil, sys, sysconfig
from pathlib import Path
here = Path(sysconfig.get_path("purelib"))
shutil.copy(Path(sys.argv[1]) / "measured.py", here)
(here / "steelyard.pth").write_text({paths!r})
"""


def make(folder: Path, change: float, count: int = COUNT, rounds: int = 8) -> list[str]:
    """Make the repository; return its commits, the slower ones from `PLANTED` on."""
    paths = [ROOT / "harness", ROOT / "kernels", ROOT / "rim", *site.getsitepackages()]
    files = {
        "suites/__init__.py": "",
        "suites/work.py": SUITE,
        "suites/asv_suite.py": ADAPTER.format(rounds=rounds),
        "install.py": INSTALL.format(paths="\n".join(map(str, paths))),
        "asv.conf.json": json.dumps(configuration()),
        ".gitignore": ".asv/\n.steelyard/\n__pycache__/\n",
    }
    shell.git(shell.files(folder, files), "init")
    return [
        commit(folder, index, change if index >= PLANTED else 0.0)
        for index in range(count)
    ]


def configuration() -> dict[str, object]:
    """Return an ``asv.conf.json`` whose environments install with `INSTALL`."""
    return {
        "version": 1,
        "project": "planted",
        "repo": ".",
        "branches": ["main"],
        "benchmark_dir": "suites",
        "environment_type": "virtualenv",
        "build_command": [],
        "install_command": ["python {conf_dir}/install.py {build_dir}"],
        "uninstall_command": [],
        "env_dir": ".asv/env",
        "results_dir": ".asv/results",
        "html_dir": ".asv/html",
    }


def commit(folder: Path, index: int, change: float) -> str:
    """Commit both kernels, the second longer by ``change``."""
    text = KERNELS.format(steady=STEPS, planted=round(STEPS * (1 + change)))
    (folder / "measured.py").write_text(f"# {index}\n{text}")
    shell.git(folder, "add", ".")
    day = f"2026-01-{index + 1:02}T00:00:00+00:00"
    dates = {"GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day}
    shell.git(folder, "commit", "--quiet", f"--message=commit {index}", **dates)
    return shell.git(folder, "rev-parse", "HEAD")


def asv(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run asv with a home, and a machine's lock, of its own."""
    return _run(folder, "asv", *arguments)


def steelyard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run steelyard in the repository as it is checked out."""
    return _run(folder, "steelyard.cli", *arguments, PYTHONPATH=str(folder))


def _run(
    folder: Path, module: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    home = folder.parent
    own = {"HOME": str(home), "STEELYARD_LOCK": str(home / "lock"), **environment}
    return shell.python("-m", module, *arguments, folder=folder, **own)

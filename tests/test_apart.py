"""One case's changes of its process are not there for the next."""

import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import leaking
import numpy as np
import pytest
import shell

from steelyard.declare import discovery
from steelyard.declare.mode import parse
from steelyard.declare.plan import PlannedTrial, Settings, plan
from steelyard.process import origins, runner

WARM = parse("kernel/warm")
QUICK = Settings(precision=0.5, timeout=600, audit=False)
QUIET = {"nothing", "seed", "filters"}
"""Changes by ordinary use, which are put back and need no doubt."""


def turns():
    """Return a turn of the innocent case, and one more behind each that is not."""
    found = defaultdict(list)
    for one in discovery.discover([leaking.__file__]):
        found[one.name] += one.cases()
    (innocent,) = found["innocent"]
    order = [innocent]
    for case in found["leaks"]:
        order += [case, innocent]
    return [
        PlannedTrial(position, 0, case, WARM) for position, case in enumerate(order)
    ]


def test_what_a_case_changes_is_put_back_and_named():
    """In a worker, which is replaced where something cannot be put back."""
    told = []
    runner.run(turns(), QUICK, told.append, lambda _: None)
    assert {t.case: t.error for t in told if t.error} == {}
    leaks = {t.axes["how"]: t for t in told if t.axes}
    assert leaks.keys() == leaking.CHANGES.keys()
    doubted = {how for how, t in leaks.items() if "changes-process" in t.doubts}
    alone = {"processors"} if len(os.sched_getaffinity(0)) == 1 else set()
    alone |= {"user"} if os.getuid() else set()
    assert doubted == leaks.keys() - QUIET - alone
    assert {how for how, t in leaks.items() if t.extra.get("changed")} == doubted
    assert leaks["json"].extra["changed"] == ["json.dumps"]
    assert told[0].extra["process"]["turn"] == 0
    assert told[1].extra["process"]["turn"] == 1


SCRIPT = """
import sys, test_apart as t
from steelyard.process.worker import CaseCache
bench = CaseCache(0)
for turn in t.turns():
    how = turn.case.axes.get("how")
    if how not in {"niceness", "limit", "shut", "descriptor", "user"}:  # for good
        trial = bench.measure(turn, t.QUICK)
        assert trial.error is None, trial.error
"""


def test_a_process_that_is_not_replaced_is_put_back_too():
    """Tests of pytest are measured where pytest runs."""
    line = [sys.executable, "-c", SCRIPT]
    here = Path(__file__).parent
    done = subprocess.run(line, cwd=here, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_what_a_file_changes_when_imported_holds_for_its_own_cases(tmp_path):
    """They need it; others were measured with or without it, as the order had it."""
    head = "import os\nfrom steelyard import benchmark\n@benchmark\n"
    (tmp_path / "one.py").write_text(
        f"import os; os.environ['MINE'] = '1'\n{head}def one(b):\n"
        "    return b.launch(lambda: os.environ['MINE'])\n"
    )
    (tmp_path / "two.py").write_text(
        f"{head}def two(b):\n    assert 'MINE' not in os.environ\n"
        "    return b.launch(int)\n"
    )
    os.environ.pop("MINE", None)
    cases = [c for b in discovery.discover([str(tmp_path)]) for c in b.cases()]
    os.environ.pop("MINE", None)
    order = random.Random(0).choices(cases, k=8)
    told = []
    planned = [
        PlannedTrial(position, 0, case, WARM) for position, case in enumerate(order)
    ]
    runner.run(planned, QUICK, told.append, lambda _: None)
    assert [trial.error for trial in told] == [None] * 8
    assert not any("changes-process" in trial.doubts for trial in told)


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    """Have workers find the suite."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def test_code_that_is_edited_during_a_run_is_a_doubt(tmp_path):
    """From the edit on: blocks before are of other code."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "unedited.py").touch()
    helper = tmp_path / "edited_helper.py"
    helper.write_text("def work(x, out):\n    out[:] = x\n")
    (tmp_path / "suite.py").write_text(EDITED)
    (suite,) = discovery.discover([str(tmp_path / "suite.py")])
    told = []

    def keep(trial):
        told.append(trial)
        if len(told) == 2:
            helper.write_text("def work(x, out):\n    out[:] = 1 * x\n")

    runner.run(plan(suite.cases(), [WARM], 4, seed=0), QUICK, keep, lambda _: None)
    assert {t.error for t in told} == {None}
    assert [("edited" in t.doubts) for t in told] == [False, False, True, True]
    assert told[-1].extra["edited"] == ["edited_helper.py"]


EDITED = """
import edited_helper, unedited
from steelyard import benchmark

@benchmark
def moving(b):
    x = b.input(64)
    y = b.output(64)
    return b.launch(edited_helper.work, x, out=y)
"""


def test_an_installed_copy_that_is_unlike_the_checkout_is_a_doubt(
    tmp_path, monkeypatch
):
    """Until it is installed again, or lies in src no more."""
    written = "def work(x, out):\n    out[:] = x\n"
    shell.files(
        tmp_path,
        {
            "pyproject.toml": "",
            "src/copied/__init__.py": written.replace("= x", "= 1 * x"),
            "env/site-packages/copied/__init__.py": written,
            "suite.py": EDITED.replace("edited_helper, unedited", "copied").replace(
                "edited_helper", "copied"
            ),
        },
    )
    installed = tmp_path / "env" / "site-packages"
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    monkeypatch.syspath_prepend(installed)
    (suite,) = discovery.discover([str(tmp_path / "suite.py")])

    def doubted():
        told = []
        runner.run(
            plan(suite.cases(), [WARM], 1, seed=0), QUICK, told.append, lambda _: None
        )
        assert {t.error for t in told} == {None}
        return ["installed-copy" in t.doubts for t in told]

    assert doubted() == [True]
    with monkeypatch.context() as gate:  # whose base is unlike the checkout on purpose
        gate.setenv(origins.VARIABLE, "{}")
        assert doubted() == [False]
    (tmp_path / "src/copied/__init__.py").write_text(written)
    assert doubted() == [False]


def test_functions_that_an_import_replaced_are_put_back_and_named(
    tmp_path, monkeypatch
):
    """The case is timed without them, which nobody would know."""
    monkeypatch.setattr(np, "exp", np.exp)  # discovery replaces it here too
    suite = tmp_path / "suite.py"
    own = "import numpy as np\ndef work(x, out):\n    out[:] = x\n{}\n"
    body = EDITED.replace("import edited_helper, unedited\n", own).replace(
        "edited_helper.work", "work"
    )
    for patch, names in (("", None), ("np.exp = np.exp.at", ["numpy.exp"])):
        suite.write_text(body.format(patch))
        (found,) = discovery.discover([str(suite)])
        told = []
        runner.run(
            plan(found.cases(), [WARM], 1, seed=0), QUICK, told.append, lambda _: None
        )
        assert {t.error for t in told} == {None}
        assert told[0].extra.get("replaced") == names
        assert ("replaces-functions" in told[0].doubts) == bool(names)

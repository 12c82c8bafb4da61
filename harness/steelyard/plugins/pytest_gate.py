"""``pytest suites --steelyard-gate main``: each case's test fails where it is slower.

The first test measures all cases that were selected, beside the baseline and in turn;
each case's test then says what it came to. So JUnit, and whoever reads pytest's reports,
sees a regression as the failure of its test. What belongs to no test, such as a case
that vanished or a baseline that does not build, fails a test of its own.

Unresolved is a failure: it is no pass. What this machine cannot tell is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from steelyard.errors import BenchmarkError, SteelyardError

if TYPE_CHECKING:
    from steelyard.declare.benchmark import Case
    from steelyard.declare.mode import Mode
    from steelyard.gate.outcome import Finding, Outcome

NAME: Final = "steelyard-gate"
"""Of the plugin and of the test that holds what belongs to no case."""


class Gating:
    """The gate of one run of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self.baseline = str(config.getoption("steelyard_gate"))
        self._config = config
        self._cases: list[Case] = []
        self._narrowed = False
        self._require_alone()
        self._outcome: Outcome | None = None

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note that not every case was selected."""
        self._narrowed |= any(hasattr(item, "case") for item in items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Note which cases were selected, and add the test of what belongs to none.

        Raises:
            UsageError: there are none.
        """
        found = [getattr(item, "case", None) for item in items]
        self._cases = list({case.id: case for case in found if case}.values())
        if self._cases:
            name = f"{NAME}[{self.baseline}]"
            items.insert(0, Rest.from_parent(session, name=name))
        elif (
            not session.testsfailed
        ):  # else a suite that failed to import is the reason
            raise pytest.UsageError(
                f"--steelyard-gate {self.baseline}: no benchmark was collected, so there "
                "is nothing to judge. Name a folder or file of benchmarks that "
                "`steelyard_suites`, or `suites` in [tool.steelyard], has."
            )

    def _require_alone(self) -> None:
        if self._config.getoption("benchmark_only", default=False):
            raise pytest.UsageError(
                "--steelyard-gate and --benchmark-only exclude each other: the gate's "
                "tests judge and are no rows of pytest-benchmark. Give one."
            )
        if self._config.getoption("dist", default="no") != "no":
            raise pytest.UsageError(
                "--steelyard-gate measures, and processes side by side would measure "
                "each other: leave -n out."
            )

    def outcome(self) -> Outcome:
        """Return what all cases came to; measured when the first test asks."""
        from steelyard.plugins import pytest_suites

        if self._outcome is None:
            paths = {case.benchmark.path for case in self._cases}
            places = [] if self._narrowed else pytest_suites.whole(self._config, paths)
            self._outcome = _measured(self._config, self.baseline, self._cases, places)
        return self._outcome

    def finding(self, case: str, mode: str) -> Finding | None:
        """Return what one case came to in one mode."""
        every = self.outcome().findings
        return next((f for f in every if (f.case, f.mode) == (case, mode)), None)

    def rest(self) -> list[str]:
        """Return what is wrong and belongs to no case of this run, in sentences."""
        from steelyard.gate import policy, words

        outcome = self.outcome()
        if outcome.problem is not None:
            return [str(outcome.problem)]
        known = {case.id for case in self._cases}
        lost = [
            f
            for f in outcome.findings
            if f.failed and (f.case not in known or f.note.startswith(policy.VANISHED))
        ]
        forbidden = [one for one in outcome.static if one.forbidden]
        return [*map(words.sentence, lost), *map(words.of_static, forbidden)]


class Failing(pytest.Item):
    """A test that is shown by its sentence where it fails."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override] # its style is passed by collectors only
        """Show the sentence: the traceback would be ours."""
        if isinstance(excinfo.value, SteelyardError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class Rest(Failing):
    """What the gate says that belongs to no case."""

    def runtest(self) -> None:
        """Measure; fail with what stands against a verdict."""
        wrong = _gating(self.config).rest()
        if wrong:
            raise BenchmarkError("\n".join(wrong))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say where it is: nowhere but in the command line."""
        return self.config.rootpath, None, self.name


def judge(config: pytest.Config, case: Case, mode: Mode) -> None:
    """Pass, skip or fail as the gate says of one case in one mode.

    Raises:
        BenchmarkError: it is slower than the policy lets pass, failed, or is open.
    """
    from steelyard.analyse.verdict import Verdict
    from steelyard.declare import plan
    from steelyard.gate import words
    from steelyard.report import junit

    _, without = plan.able([case])
    if without:
        pytest.skip(without)
    gating = _gating(config)
    if gating.outcome().problem is not None:
        raise BenchmarkError(f"{case.id} {mode}: there is no verdict, see {NAME}")
    found = gating.finding(case.id, str(mode))
    if found is None:
        raise BenchmarkError(f"{case.id} {mode}: the gate did not measure it")
    if words.kind(found) in junit.FAILING:
        raise BenchmarkError("\n".join(words.explained(found)))
    if found.verdict is Verdict.NOT_GATEABLE:
        pytest.skip(words.sentence(found))


def _gating(config: pytest.Config) -> Gating:
    found = config.pluginmanager.get_plugin(NAME)
    assert isinstance(found, Gating)
    return found


def _measured(
    config: pytest.Config, baseline: str, cases: Sequence[Case], places: Sequence[str]
) -> Outcome:
    """Run the gate over these cases, and keep what it came to as the last.

    They are all of ``places``, whose cases that vanished are seen; or of none.
    """
    from steelyard.declare import config as settings
    from steelyard.gate import document, run
    from steelyard.store import session

    chosen = settings.load(folder=config.rootpath)
    files = sorted({str(case.benchmark.path) for case in cases})
    asked = session.Request(places or files, None if places else pattern(cases))
    how = session.settings(chosen, asked)
    home = document.home(chosen.store)
    with document.under_way(baseline, home):
        outcome = run.gate(baseline, asked, chosen, how, say=lambda _line: None)
    document.keep(outcome, home)
    return outcome


def pattern(cases: Sequence[Case]) -> str | None:
    """Return words of -k that accept these cases; None where ids are no words."""
    names = [case.id for case in cases]
    if any(set(name) & set(" \t()") for name in names):
        return None
    return " or ".join(names)

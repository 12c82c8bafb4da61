"""README.md says nothing that does not run, and no figure that is not in docs/results."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard import discovery
from steelyard.prepared import PreparedCase
from steelyard.settings import Settings

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_benchmark_of_the_readme_is_found_and_its_result_is_right(tmp_path):
    """As a file of its own, as the reader is told."""
    (tmp_path / "mine.py").write_text(BLOCKS[0])
    (benchmark,) = discovery.discover([str(tmp_path / "mine.py")])
    cases = benchmark.cases()
    assert [case.id for case in cases] == [
        "rows[columns=768,dtype=float32]",
        "rows[columns=5140,dtype=float32]",
    ]
    assert PreparedCase(cases[0], Settings()).checked


@pytest.mark.parametrize("block", BLOCKS[1:], ids=range(1, len(BLOCKS)))
def test_other_blocks_run(block, tmp_path):
    """In an interpreter of their own."""
    (tmp_path / "block.py").write_text(block)
    subprocess.run([sys.executable, str(tmp_path / "block.py")], check=True)


def test_the_tables_are_what_the_results_say():
    """They are written by ci/readme.py."""
    subprocess.run(
        [sys.executable, str(ROOT / "ci" / "readme.py"), "--check"], check=True
    )

"""Damaged and foreign files are refused in a sentence; none is read as something else.

`python tests/mutated.py --each 3000` tries many more.
"""

import mutated
import pytest


@pytest.mark.parametrize("kind", mutated.FORMATS)
def test_no_mutated_file_is_a_traceback_or_silently_another(
    kind, tmp_path, monkeypatch
):
    """Bytes and values of every kind of file that is read."""
    monkeypatch.chdir(tmp_path)
    found, wrong = mutated.tried(kind, tmp_path, 6, seed=7)
    assert not wrong, wrong[0][-4000:]
    assert found["refused"] > 0

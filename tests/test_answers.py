"""Rows of what references expect, kept for the blocks of a run."""

import tempfile

import numpy as np
import pytest
from fakes import case_of
from hypothesis import given
from hypothesis import strategies as st

from steelyard import BenchmarkError
from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.mode import parse
from steelyard.declare.plan import Settings, plan
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import checking
from steelyard.prepare.answers import Rows, keep, kept
from steelyard.process import runner


def rows(indices, wanted):
    """Return rows of a result."""
    return Rows(np.array(indices, np.intp), np.array(wanted))


@given(
    shape=st.lists(st.integers(1, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(["float64", "bool", "int64"]),
)
def test_what_is_kept_comes_back(tmp_path_factory, shape, dtype):
    """Of any shape, scalars among them, to the bit."""
    path = tmp_path_factory.mktemp("kept") / "folder" / "it.npz"
    count = shape[0] if shape else 0
    found = Rows(np.arange(count), np.zeros(shape, dtype) + np.array(1, dtype))
    keep(path, [found, found])
    back = kept(path, [shape, shape])
    for each in back:
        assert each.indices.tolist() == found.indices.tolist()
        assert each.wanted.dtype == dtype
        assert each.wanted.tobytes() == found.wanted.tobytes()
    assert [entry.name for entry in path.parent.iterdir()] == ["it.npz"]


@pytest.mark.parametrize("shape", [(), (5,), (3, 2), (2, 3), (6, 3)], ids=str)
def test_rows_of_another_shape_are_none(tmp_path, shape):
    """Rows 0 and 5 of three elements each are of six rows at least."""
    path = tmp_path / "it.npz"
    keep(path, [rows([0, 5], [[1.0] * 3] * 2)])
    assert (kept(path, [shape]) is not None) is (shape == (6, 3))
    assert kept(path, [(6, 3), (6, 3)]) is None


def test_what_is_damaged_or_absent_is_none(tmp_path):
    """Cut anywhere, other bytes, no file, a folder."""
    path = tmp_path / "it.npz"
    assert kept(path, [(2,)]) is None
    keep(path, [rows([0, 1], [1.0, 2.0])])
    whole = path.read_bytes()
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert kept(path, [(2,)]) is None
    path.write_bytes(b"\0" * len(whole))
    assert kept(path, [(2,)]) is None
    path.write_bytes(whole.replace(np.array([1.0, 2.0]).tobytes(), bytes(16)))
    assert kept(path, [(2,)]) is None
    assert kept(tmp_path, [(2,)]) is None


def test_a_place_that_cannot_be_written_keeps_none(tmp_path):
    """The run goes on."""
    (tmp_path / "file").write_bytes(b"")
    keep(tmp_path / "file" / "it.npz", [rows([0], [1.0])])
    assert kept(tmp_path / "file" / "it.npz", [(1,)]) is None


@pytest.fixture
def block():
    """Prepare a case as a process of its own does: it remembers no answer."""

    def prepare(case, settings):
        checking._reference.cache_clear()
        return PreparedCase(case, settings)

    return prepare


def case_asking(asked, target=np.negative, shape=(3000, 5)):
    """Return a case that negates and writes down when its reference is asked."""

    def reference(x):
        asked.append(1)
        return -x

    def body(b):
        x = b.input(shape)
        y = b.output(shape)
        b.check(reference, x)
        return b.launch(target, x, out=y)

    return case_of(body)


def test_only_the_first_block_asks_the_reference(tmp_path, block):
    """Later ones compare rows; another seed is another question, as is no folder."""
    asked = []
    case = case_asking(asked)
    for seed, questions in ((0, 1), (0, 1), (7, 2), (7, 2)):
        block(case, Settings(seed=seed, scratch=str(tmp_path)))
        assert len(asked) == questions
    block(case, Settings())
    assert len(asked) == 3


def test_a_wrong_result_keeps_nothing(tmp_path, block):
    """Every block says that it is wrong, of all elements."""
    asked = []
    case = case_asking(asked, lambda x, out: np.negative(x + (x == x[7, 3]), out=out))
    for _ in range(2):
        with pytest.raises(BenchmarkError, match=r"wrong in 1 of 15000 .* \[7, 3\]"):
            block(case, Settings(scratch=str(tmp_path)))
    assert list(tmp_path.glob("*.npz")) == []


def test_a_wrong_row_of_a_later_block_is_named_by_its_place(tmp_path, block):
    """In the result, not among the rows."""
    asked = []
    settings = Settings(scratch=str(tmp_path))
    case = case_asking(asked, shape=(5000,))
    block(case, settings)
    prepared = block(case, settings)
    prepared.work.launch(1)
    prepared.buffers.arrays["y"][4000:] = 7
    with pytest.raises(BenchmarkError, match=r"at \[4\d\d\d\] it holds 7"):
        prepared.check(1)


SUITE = """
import os
from pathlib import Path
import numpy as np
from steelyard import benchmark

def reference(x):
    with (Path(__file__).parent / "asked").open("a") as file:
        file.write(f"{os.getpid()} ")
    return -x

@benchmark
def negates(b):
    x = b.input(3000)
    y = b.output(3000)
    b.check(reference, x)
    return b.launch(np.negative, x, out=y)
"""


def test_the_blocks_of_a_run_share_their_answers(tmp_path, monkeypatch):
    """Though each has a process of its own; nothing is left behind."""
    (tmp_path / "suite.py").write_text(SUITE)
    cases = select(discovery.discover([str(tmp_path / "suite.py")]))
    modes = [parse("latency/warm")]
    found, shared = [], tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    turns = plan(cases, modes, blocks=3, seed=0)
    runner.run(turns, Settings(precision=0.5), found.append, lambda _: None)
    assert [trial.error for trial in found] == [None] * 3
    assert len({trial.worker for trial in found}) == 3
    assert all(trial.extra["checked"] for trial in found)
    asked = (tmp_path / "asked").read_text().split()
    workers = [str(trial.worker) for trial in found]
    # The first block's asks for its rows and for its audit's new data; who poses
    # problems never launches.
    assert [asked.count(worker) for worker in workers] == [2, 0, 0]
    assert len(set(asked)) == 2
    assert list(shared.iterdir()) == []

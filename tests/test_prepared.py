"""What is found out of a case's work before it is measured."""

from types import SimpleNamespace

import numpy as np
import pytest
from fakes import case_of

from steelyard.declare.plan import Settings
from steelyard.errors import BenchmarkError
from steelyard.measure import stream_check
from steelyard.measure.prepared import PreparedCase, static_facts
from steelyard.prepare.work import launch_hash
from steelyard_kernels import library


class Program:
    """Somebody's own work, which passes for one on a GPU; it declares this."""

    def __init__(self, call, facts):
        self.call, self.declared = call, facts
        self.context, self.stream = SimpleNamespace(), 7

    def launch(self, count=1):
        """Call."""
        for _ in range(count):
            self.call()

    def wait(self):
        """Nothing is under way."""

    def ready(self):
        """Nothing sleeps."""

    def facts(self):
        """Return what it declares."""
        return self.declared


def body_of(facts, **methods):
    """Return a benchmark whose work declares these facts and has these methods too."""

    class Negate:
        def bind(self, x, out):
            program = Program(lambda: np.negative(x, out=out), facts)
            vars(program).update(methods)
            return program

        def __call__(self, x, out):
            return np.negative(x, out=out)

    def negate(b):
        """Negate an array."""
        x = b.input(10)
        y = b.output(10)
        b.check(np.negative, x)
        return b.launch(Negate(), x, out=y)

    return negate


@pytest.mark.parametrize("facts", [{}, {"synchronises": True}])
def test_work_of_others_is_examined_whatever_it_declares(monkeypatch, facts):
    """That it waits by itself is no proof that it stays on its stream."""

    def escaped(measured, buffers):
        raise BenchmarkError("the work wrote y while its stream was held back")

    monkeypatch.setattr(stream_check, "check_stream", escaped)
    with pytest.raises(BenchmarkError, match="wrote y"):
        PreparedCase(case_of(body_of(facts)), Settings())


@pytest.mark.parametrize(
    ("facts", "found", "known"),
    [
        ({}, False, {}),
        ({}, True, {"synchronises": True}),
        ({"synchronises": True}, False, {"synchronises": True}),
    ],
)
def test_work_waits_by_itself_if_it_says_so_or_is_seen_to(
    monkeypatch, facts, found, known
):
    """Either is a fact of the case."""
    monkeypatch.setattr(stream_check, "check_stream", lambda *_: found)
    prepared = PreparedCase(case_of(body_of(facts)), Settings())
    told = prepared.facts()
    assert {k: v for k, v in told.items() if k == "synchronises"} == known


def test_native_work_is_known_by_its_making(monkeypatch):
    """Its launches are ours and go to one stream."""

    def asked(*_):
        raise AssertionError

    monkeypatch.setattr(stream_check, "check_stream", asked)
    methods = {"window": lambda *_: (0, 1), "null": lambda: None}
    PreparedCase(case_of(body_of({}, **methods)), Settings())


def test_a_kernel_s_code_is_known_without_its_data_and_its_reference():
    """The same facts and hashes as of one that is prepared; nothing was launched."""
    asked = []

    def copying(b):
        x = b.input(1000)
        y = b.output(1000)
        b.check(lambda x: asked.append(1) or x, x)
        return b.launch(library.copy, x, out=y)

    case, settings = case_of(copying), Settings()
    told = static_facts(case, settings)
    assert not asked
    prepared = PreparedCase(case, settings)
    assert asked
    assert told == {
        "facts": prepared.facts(),
        "hashes": prepared.hashes,
        "launch": launch_hash(prepared.work),
    }
    assert told["facts"]["code_hash"]


def test_what_only_launches_tell_is_not_glanced_at():
    """Of callables, of others' work, and of data that somebody gives."""

    def copying(b):
        x = b.input(10)
        y = b.output(10)
        return b.launch(np.copyto, y, x)

    assert static_facts(case_of(copying), Settings()) is None
    assert static_facts(case_of(body_of({"code_hash": "mine"})), Settings()) is None


def test_what_is_only_built_is_known_without_a_build():
    """Where the kernel tells what its builds depend on; else it has to be built."""

    class Kernel:
        def for_target(self, target, *specs):
            raise AssertionError

    class Foreseen(Kernel):
        def made_of(self, target, *specs):
            return {"compiler_hash": "c", "asked": (target, *specs)}

    def building(kernel):
        return lambda b: b.build(
            kernel, b.input(4, "float16", name="x"), target="cuda:sm_80"
        )

    told = static_facts(case_of(building(Foreseen())), Settings())
    assert told["facts"]["asked"] == ("cuda:sm_80", ((4,), "float16"))
    assert told["hashes"]["inputs"]
    assert static_facts(case_of(building(Kernel())), Settings()) is None

"""The shipped suites: every case runs and is right, and asv finds nothing to choke on.

What needs a GPU is described here and launched by `test_suites_gpu`.
"""

import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import shell

from steelyard.declare import discovery
from steelyard.declare.benchmark import select
from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase, static_facts
from steelyard.prepare import work
from steelyard_kernels import KernelFunction, library

ROOT = Path(__file__).parent.parent
SUITES = ROOT / "suites"
BENCHMARKS = discovery.discover([str(SUITES)])
SMALL = dict.fromkeys(("n", "hidden", "cols"), 37)
SMALL |= {"tokens": (1, 5), "width": 24, "shape": (2, 3, 37, 24)}
"""In place of the sizes that are measured: ragged, and quick to check."""


def launched(where=r"(?!gpu|.*cuda)"):
    """Return cases of small sizes, with the dtypes of each taken in turn.

    What is only built or needs a GPU is left out, for machines that are not here.
    """
    found = {
        case.id: case
        for one in BENCHMARKS
        for case in one.cases(
            {
                name: [value]
                for name, value in SMALL.items()
                if name in one.axes
                and np.shape(one.axes[name].values[0]) == np.shape(value)
            }
        )
        if re.match(where, case.id)
    }
    alike = {}
    for name in found:
        alike.setdefault(re.sub(r"dtype=\w+", "", name), []).append(name)
    names = [each[turn % len(each)] for turn, each in enumerate(alike.values())]
    return [pytest.param(found[name], id=name) for name in names]


@pytest.mark.parametrize("case", launched())
def test_each_impl_of_each_benchmark_is_right_at_a_ragged_size(case):
    """A launch agrees with the case's float64 reference, whatever implements it."""
    prepared = PreparedCase(case, Settings())
    assert prepared.checked or not prepared.description.results


@pytest.mark.parametrize("one", BENCHMARKS, ids=lambda one: one.name)
def test_each_case_can_be_described_and_says_how_it_is_measured(one):
    """Listing needs no buffers; the modes fit what the case launches."""
    for case in one.cases():
        description = case.describe()
        builds = [mode for mode in case.modes() if mode.quantity == "build"]
        only = description.call.built_for
        assert not builds or only or hasattr(description.call.target, "for_target")
        assert not only or len(builds) == len(case.modes())
        assert (description.device == "cuda") is case.id.startswith("gpu_")


def test_every_kernel_of_the_library_has_its_builds_measured():
    """A kernel that is added to the library is added to the suite."""
    shipped = {
        name
        for name, value in vars(library).items()
        if isinstance(value, KernelFunction)
    }
    (build,) = (one for one in BENCHMARKS if one.name == "build")
    assert set(build.axes["kernel"].values) == shipped


def measured(target):
    """Return the cases and modes that a target of the Makefile measures."""
    rule = rf"^{target}:.*\n(?:\t@.*\n)*\t\$\(BIN\)/steelyard run (.*) -k (.*)$"
    paths, words = re.search(
        rule, (ROOT / "Makefile").read_text(), re.MULTILINE
    ).groups()
    found = discovery.discover([str(ROOT / path) for path in paths.split()])
    chosen = select(found, words.strip('"'))
    return [(case.id, mode) for case in chosen for mode in case.modes()]


def test_make_bench_is_short_enough_for_a_minute():
    """Points times four blocks times 0.2 s: a tenth of sampling, as much around it."""
    peers = re.compile("impl=(numba|inductor)")
    points = [point for point in measured("bench") if not peers.search(point[0])]
    assert 40 <= len(points) == len(set(points)) <= 75


def test_make_gpu_is_a_matter_of_minutes():
    """Points times four blocks times 0.3 s: less than three minutes."""
    points = measured("gpu")
    assert 100 <= len(points) == len(set(points)) <= 150


def test_several_kernels_are_one_work_where_they_run():
    """On a GPU it is of their stream; launched in order, each as often as it says."""
    loops = importlib.import_module("suites.loops")
    seen = []
    first, second = (
        SimpleNamespace(
            launch=functools.partial(lambda name, n: seen.append((name, n)), name),
            wait=lambda: None,
            ready=lambda: None,
            facts=dict,
            stream=7,
            context=object(),
        )
        for name in "ab"
    )
    found = loops.in_order((first, 1), (second, 80))
    assert isinstance(found, work.DeviceWork)
    assert (found.stream, found.context) == (7, second.context)
    found.launch(2)
    assert seen == [("a", 1), ("b", 80)] * 2
    del first.stream, second.stream
    assert not isinstance(loops.in_order((first, 1), (second, 1)), work.DeviceWork)


def test_suites_import_no_peer_and_no_pytest():
    """They are read where neither is installed, and by asv, which dies of pytest."""
    script = (
        "import sys; PEERS = ['torch', 'numba', 'triton', 'cupy', 'pytest']\n"
        "sys.modules.update(dict.fromkeys(PEERS))\n"
        "from steelyard.declare import discovery\n"
        f"found = discovery.discover([{str(SUITES)!r}])\n"
        "print(*(case.id for one in found for case in one.cases()), sep='\\n')"
    )
    done = shell.python("-W", "error", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "bias_layernorm[hidden=5140,dtype=float16,impl=ours]" in done.stdout
    assert "numba" not in done.stdout
    assert "inductor" not in done.stdout


def test_asv_takes_no_function_of_a_suite_for_a_benchmark():
    """It goes by names, in every module of the folder."""
    taken = re.compile(r"(time|timeraw|track|mem|peakmem)_", re.IGNORECASE)
    for one in BENCHMARKS:
        module = sys.modules[one.function.__module__]
        names = [n for n, v in vars(module).items() if inspect.isroutine(v)]
        assert not [name for name in names if taken.match(name)]


@pytest.mark.parametrize("name", ["space", "group", "build", "fusion", "cubin"])
def test_what_is_only_built_says_what_came_of_it(name, monkeypatch):
    """Sizes and times of many builds, resources of one; nothing is launched."""
    if name not in {one.name for one in BENCHMARKS}:
        pytest.skip("needs the cuda extra")
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    (one,) = (each for each in BENCHMARKS if each.name == name)
    module = sys.modules[one.function.__module__]
    if name in {"space", "group"}:  # a few of them
        monkeypatch.setattr(module, "GROUP", 3)
        monkeypatch.setattr(module, "build_space", few_of(module.build_space))
    for case in one.cases({"target": ["cuda:sm_90a"]})[-2:]:
        prepared = PreparedCase(case, Settings())
        prepared.work.build("cold")
        facts = prepared.facts()
        assert facts["target"] == "cuda:sm_90a"
        if name == "space":
            assert facts["distinct"] <= facts["candidates"] == 3
            assert facts["compile_ns"] > 0
        elif name == "group":
            assert facts["candidates"] == 3
        else:
            assert facts["registers"] > 0


def few_of(build_space):
    """Return `build_space` of the first three candidates."""
    from steelyard_lock import spaces

    def few(point, **settings):
        every = spaces.candidates
        try:
            spaces.candidates = lambda *of: every(*of)[:3]
            return build_space(point, **settings)
        finally:
            spaces.candidates = every

    return few


def test_peers_are_measured_where_they_are_installed(tmp_path):
    """By name: nothing of theirs is imported to list or to describe a case."""
    for name in ("torch", "triton", "cupy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from steelyard.declare import discovery\n"
        f"for one in discovery.discover([{str(SUITES)!r}]):\n"
        "    for case in one.cases():\n"
        "        print(case.id, case.describe().call.form)"
    )
    done = shell.python("-c", script)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.splitlines()
    for case in (
        "gpu_peers_matmul[shape=64x768x768,impl=torch] torch",
        "gpu_peers_matmul[shape=64x768x768,impl=cupy] cupy",
        "gpu_peers_adam[n=100,impl=ours] numpy",
        "gpu_peers_adam[n=100,impl=cupy] cupy",
        "gpu_peers_layernorm[hidden=768,impl=torch_eager] torch",
        "gpu_peers_layernorm[hidden=768,impl=triton] torch",
        "gpu_inputs_matmul[inputs=pattern,n=8192] torch",
        "gpu_dispatch[kernel=matmul,result=pooled,wait=each] torch",
    ):
        assert case in listed


@pytest.mark.parametrize("waits", [True, False])
def test_a_program_waits_after_each_call_or_leaves_it_to_its_caller(waits):
    """Its calls and waits in their order are what is timed."""
    calls = importlib.import_module("suites.calls")
    seen = []
    context = SimpleNamespace(stream=7, wait=seen.append)
    program = calls.Program(lambda: seen.append("call"), context, {}, waits=waits)
    program.launch(2)
    assert seen == (["call", 7] * 2 if waits else ["call"] * 2)
    program.wait()
    assert seen[-1] == 7


def test_a_sweep_takes_the_models_best_schedules_whatever_their_limits():
    """Ranks differ in more than registers, and the limit is the one that is asked for."""
    registers = importlib.import_module("suites.registers")
    specs = [((8192, 5140), "float16"), *[((5140,), "float16")] * 4]
    found = [
        registers.Candidate(library.bias_layernorm, rank, 40).schedule(
            "cuda:sm_90a", *specs
        )
        for rank in (1, 2, 3, 4)
    ]
    assert len(set(found)) == 4
    assert {one.registers for one in found} == {40}


@pytest.mark.parametrize("name", ["space", "group", "build", "fusion"])
def test_what_is_only_built_is_told_apart_without_a_build(name, monkeypatch):
    """So that a gate builds nothing of a compiler that is the same."""
    if name not in {one.name for one in BENCHMARKS}:
        pytest.skip("needs the cuda extra")
    monkeypatch.setattr(KernelFunction, "build", None)
    (one,) = (each for each in BENCHMARKS if each.name == name)
    for case in one.cases({"target": ["cuda:sm_90a"]}):
        told = static_facts(case, Settings())
        assert told["facts"]["compiler_hash"]
        assert told == static_facts(case, Settings())


def test_kernels_in_turn_are_the_same_code_only_if_each_is():
    """Told one after the other, with how each is launched."""
    common = importlib.import_module("suites.common")
    arrays = [np.zeros(1000, np.float32) for _ in range(2)]
    pairs = {
        "both": ((library.copy, (0,)), (library.triad, (0, 1))),
        "other": ((library.copy, (0,)), (library.copy, (1,))),
    }
    told = {
        name: common.InTurn(pair).bind(*arrays).facts() for name, pair in pairs.items()
    }
    alone = [one.bind(*(arrays[at] for at in of)).facts() for one, of in pairs["both"]]
    for name in ("code_hash", "schedule", "threads"):
        assert told["both"][name] == "+".join(str(one[name]) for one in alone)
    assert told["both"]["code_hash"] != told["other"]["code_hash"]
    assert told["both"]["compiler_hash"] == alone[0]["compiler_hash"]

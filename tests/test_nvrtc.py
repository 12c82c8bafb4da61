import os
import pickle
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter_ns

import pytest
import shell
from cuda_programs import ADAM, CALLS, EMPTY, SCALE, SPILL

from steelyard_device import nvrtc, nvrtc_log
from steelyard_device.errors import Cancelled, CompileError, DeviceError

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

ARCH = "sm_90a"

GREEDY = """
extern "C" __global__ void {name}(float* x) {{
  __shared__ float s[100000];
  s[threadIdx.x] = 1; __syncthreads(); x[0] = s[5];
}}
"""


def refusal(text, **options):
    """Compile what is refused, and return the error."""
    with pytest.raises(nvrtc.NVRTCError) as caught:
        nvrtc.compile(text, ARCH, **options)
    return caught.value


def python(script, *arguments):
    """Run a script in a process that has loaded nothing yet, and return its output."""
    return shell.python("-c", script, *map(str, arguments), check=True).stdout


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_a_program_becomes_a_cubin_without_a_gpu(arch):
    """The log of ptxas comes with it, kernel by kernel."""
    compiled = nvrtc.compile(SCALE + EMPTY, arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    kernels = {kernel.entry: kernel for kernel in compiled.kernels}
    assert set(kernels) == {"scale", "empty"}
    assert kernels["scale"].registers >= kernels["empty"].registers > 0
    assert 0 < kernels["scale"].nanoseconds < compiled.nanoseconds
    assert compiled.phases == ()


@pytest.mark.parametrize("text", ["", " \n", "// nothing: \u00e9 \U0001f40d"])
def test_a_program_without_kernels_is_a_cubin_too(text):
    """Nothing in, nothing out."""
    compiled = nvrtc.compile(text, ARCH)
    assert compiled.cubin
    assert compiled.kernels == ()


def test_the_way_to_the_cubin_can_be_read():
    """PTX for the architecture, as text."""
    text = nvrtc.ptx(SCALE, ARCH)
    assert ".target sm_90a" in text
    assert ".entry scale(" in text
    with pytest.raises(nvrtc.NVRTCError):
        nvrtc.ptx("nonsense", ARCH)


def test_the_same_text_gives_the_same_cubin():
    """Bytes depend on text, options and compiler, so that they can be kept."""
    assert nvrtc.compile(SCALE, ARCH).cubin == nvrtc.compile(SCALE, ARCH).cubin


def test_spills_and_limits_are_in_the_log():
    """Callees are told of after a kernel, and are not taken for it."""
    (spill,) = nvrtc.compile(SPILL, ARCH).kernels
    assert spill.spill_stores > 0
    assert spill.spill_loads > 0
    assert spill.stack >= spill.spill_stores // 4
    caller = next(k for k in nvrtc.compile(CALLS, ARCH).kernels if k.entry == "caller")
    assert (caller.spill_stores, caller.stack) == (0, 160)
    (free,) = nvrtc.compile(ADAM, ARCH).kernels
    (few,) = nvrtc.compile(ADAM, ARCH, options=["--maxrregcount=24"]).kernels
    assert few.registers <= 24 < free.registers


def test_multiplication_and_addition_stay_apart():
    """What the program says is what is computed: nothing is contracted."""
    text = 'extern "C" __global__ void f(float* x) { x[0] = x[1] * x[2] + x[3]; }'
    fused = nvrtc.compile(text, ARCH, options=["-fmad=true"]).cubin
    assert nvrtc.compile(text, ARCH).cubin != fused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__device__ void f() {", 'expected a "}"'),
        ('extern "C" __global__ void f() { undeclared(); }', "undeclared"),
        ("#error stop here", "stop here"),
        ("#include <cuda_fp16.h>", "could not open source file"),
        ('extern "C" __global__ void f(){}\n' * 2, "already been defined"),
        ('extern "C" __global__ void f(){ float h(float); h(1); }', "h"),
        ("template<int n> struct A { static_assert(n); }; A<0> a;", "assertion failed"),
    ],
)
def test_what_is_no_program_is_refused_in_the_compilers_words(text, said):
    """The sentence carries the first error."""
    error = refusal(text)
    assert said in error.diagnostics[0].message
    assert error.diagnostics[0].message in str(error)
    assert isinstance(error, DeviceError)
    assert error.log


def test_errors_name_the_candidate_and_its_line():
    """All bad candidates of a group in one pass; warnings are no errors."""
    bad = 'extern "C" __global__ void {0}() {{\n  int unused;\n  {0}x(); }}\n'
    text = "".join(
        f'#line 1 "{name}"\n{body}'
        for name, body in [
            ("good", SCALE),
            ("b\u00e4d (1)(2)", bad.format("f")),
            ("bad b", bad.format("g")),
        ]
    )
    found = refusal(text).diagnostics
    assert [(d.source, d.line) for d in found] == [
        ("b\u00e4d (1)(2)", 3),
        ("bad b", 3),
    ]


BOGUS = 'extern "C" __global__ void {name}() {{ asm volatile("bogus;"); }}\n'


@pytest.mark.parametrize(
    ("bad", "said"), [(GREEDY, "too much shared data"), (BOGUS, "bogus")]
)
def test_what_ptxas_refuses_names_the_kernel(bad, said):
    """Of a line of PTX too; its errors stand behind a NUL in the log."""
    text = EMPTY + bad.format(name="one") + SCALE + bad.format(name="two")
    found = refusal(text).diagnostics
    assert {d.source for d in found} == {"one", "two"}
    assert all(said in d.message for d in found)
    assert bad is BOGUS or not any(d.line for d in found)


def test_a_bad_option_is_refused():
    """NVRTC's sentence names it."""
    error = refusal(SCALE, options=["--nonsense"])
    assert "unrecognized option --nonsense" in str(error)


def test_an_error_survives_the_way_to_another_process():
    """Builders send it home."""
    error = refusal("#error no")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.log) == (str(error), error.log)
    assert again.diagnostics == error.diagnostics


def test_a_nul_is_not_taken_for_the_end():
    """NVRTC would compile what stands before it."""
    with pytest.raises(DeviceError, match=f"NUL character at {len(SCALE)}"):
        nvrtc.compile(f"{SCALE}\0nonsense", ARCH)


@pytest.mark.parametrize("arch", ["sm_20", "sm_90b", "90a", "compute_90", "", "sm_090"])
def test_an_unknown_architecture_is_refused_with_those_known(arch):
    """Before anything is compiled."""
    with pytest.raises(DeviceError, match=r"it knows .*sm_80, .*sm_90, .*sm_120"):
        nvrtc.compile(SCALE, arch)


def test_options_say_all_that_code_depends_on():
    """They are part of cache keys, need no compiler, and are always cold."""
    for arch in nvrtc.ARCHITECTURES:
        nvrtc.check_arch(arch)
        assert {f"-arch={arch}", "--no-cache"} < set(nvrtc.options_for(arch))


def test_a_deadline_stops_the_compiler():
    """And nothing else: the next program compiles."""
    with pytest.raises(Cancelled, match="stopped after"):
        nvrtc.compile(SPILL, ARCH, seconds=0)
    for seconds in (3600, float("inf")):
        assert nvrtc.compile(SCALE, ARCH, seconds=seconds).kernels


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_deadline_is_a_time(seconds):
    """NaN compares with nothing, and would never come."""
    with pytest.raises(DeviceError, match="is no time"):
        nvrtc.compile(SCALE, ARCH, seconds=seconds)


def test_other_threads_run_while_it_compiles():
    """With the interpreter held, this thread would get a word in every 5 ms at best."""
    span = []

    def build():
        began = perf_counter_ns()
        nvrtc.compile(SPILL, ARCH, seconds=3600)
        span.extend([began, perf_counter_ns()])

    thread = threading.Thread(target=build)
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(perf_counter_ns())
    thread.join()
    began, ended = span
    assert sum(began < moment < ended for moment in seen) > 1000


class Counting:
    """The bindings, counting programs made and destroyed."""

    def __init__(self, bindings):
        self.bindings, self.made, self.destroyed = bindings, 0, 0

    def __getattr__(self, name):
        self.made += name == "nvrtcCreateProgram"
        self.destroyed += name == "nvrtcDestroyProgram"
        return getattr(self.bindings, name)


def test_programs_are_destroyed_on_every_path(monkeypatch):
    """Success, refusal by either half, a deadline, a bad deadline."""
    counting = Counting(nvrtc.bindings())
    monkeypatch.setattr(nvrtc, "bindings", lambda: counting)
    nvrtc.compile(SCALE, ARCH, phases=True)
    for text, seconds in [
        ("nonsense", None),
        (GREEDY.format(name="f"), None),
        (SPILL, 0),
        (SCALE, -1),
    ]:
        with pytest.raises(DeviceError):
            nvrtc.compile(text, ARCH, seconds=seconds)
    assert counting.made == counting.destroyed == 5


class Lacking(Counting):
    """The bindings, of a compiler that ends in an error that is not the program's."""

    def __getattr__(self, name):
        if name == "nvrtcCompileProgram":
            return lambda *_: (self.bindings.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY,)
        return super().__getattr__(name)


def test_what_the_compiler_lacked_is_no_refusal(monkeypatch):
    """Out of memory is said of the machine: another time it may go through."""
    lacking = Lacking(nvrtc.bindings())
    monkeypatch.setattr(nvrtc, "bindings", lambda: lacking)
    with pytest.raises(DeviceError, match="NVRTC_ERROR_OUT_OF_MEMORY") as caught:
        nvrtc.compile(SCALE, ARCH)
    assert not isinstance(caught.value, CompileError)
    assert lacking.made == lacking.destroyed == 1


def test_an_empty_buffer_leaves_the_process_its_space_character():
    """NVIDIA's way of fetching wrote a NUL into the one `b" "` all programs share."""
    refusal("nonsense")  # its PTX is one byte, a NUL
    assert bytes([32])[0] == 32


def test_phases_explain_the_call(tmp_path, monkeypatch):
    """In order, ptxas by kernel in the last, and no file stays anywhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiled = nvrtc.compile(SPILL + SCALE, ARCH, phases=True)
    refusal("nonsense", phases=True)
    assert list(tmp_path.iterdir()) == []
    top = [phase for phase in compiled.phases if phase.depth == 0]
    assert [phase.name for phase in top] == [
        "CUDA C++ Frontend",
        "NVVM Optimizer",
        "PTX Translation",
    ]
    assert sum(phase.nanoseconds for phase in top) <= compiled.nanoseconds
    inner = [phase for phase in compiled.phases if phase.depth == 1]
    assert {phase.name for phase in inner} == {"ptxas scale", "ptxas spill"}
    assert inner[0].start == top[-1].start
    assert sum(phase.nanoseconds for phase in inner) <= top[-1].nanoseconds


def test_a_phase_ends_with_the_call():
    """Whole milliseconds may add up to more than the call took."""
    table = "File name, phase name, metric, unit\nk.cu, A, 3, ms\nk.cu, B, 4, ms\n"
    log = nvrtc.KernelLog("k", 8, 0, 0, 0, 0, nanoseconds=9_000_000)
    found = nvrtc_log.phases(table, [log], 5_500_000)
    assert [(p.name, p.start, p.nanoseconds, p.depth) for p in found] == [
        ("A", 0, 3_000_000, 0),
        ("B", 3_000_000, 2_500_000, 0),
        ("ptxas k", 3_000_000, 2_500_000, 1),
    ]
    assert nvrtc_log.phases("", [log], 5_500_000) == ()


MANY = """
from steelyard_device import nvrtc

text = 'extern "C" __global__ void k%d(float *x) { x[threadIdx.x] *= %d.f; }'
for count in (1, 40, 20, 41):
    program = " ".join(text % (n, n) for n in range(count))
    assert len(nvrtc.compile(program, "sm_90a", phases=True).phases) == 3 + count
"""


def test_phases_can_be_asked_for_again_and_again():
    """NVRTC's nested trace ends the process at the second program of many kernels."""
    shell.python("-c", MANY, check=True)


def test_ptxas_of_an_older_architecture_is_read_alike():
    """sm_80 tells of constant banks, which later ones do not."""
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'kc' for 'sm_80'\n"
        "ptxas info    : Function properties for kc\n"
        "ptxas         .     184 bytes stack frame, 80 bytes spill stores, "
        "96 bytes spill loads\n"
        "ptxas info    : Used 10 registers, used 1 barriers, 184 bytes cumulative "
        "stack size, 4000 bytes smem, 360 bytes cmem[0]\n"
        "ptxas info    : Compile time = 1.511 ms\n"
    )
    expected = nvrtc.KernelLog("kc", 10, 184, 80, 96, 4000, 1_511_000)
    assert nvrtc_log.kernels(log) == (expected,)
    assert nvrtc_log.kernels("") == ()


def test_an_abortion_without_a_reason_is_still_an_error():
    """Beside reasons it says nothing; alone it is all there is."""
    line = "ptxas fatal   : Ptx assembly aborted due to errors\n"
    (alone,) = nvrtc_log.diagnostics(line)
    assert (alone.source, alone.line) == ("ptxas", 0)
    unknown = "ptxas application ptx input, line 7; error   : Unknown symbol\n"
    (reason,) = nvrtc_log.diagnostics(unknown + line)
    assert (reason.source, reason.message) == ("ptxas", "Unknown symbol")
    assert nvrtc_log.diagnostics("a(1): warning #177-D: error: unused") == ()


def test_the_compiler_is_named_by_what_is_loaded():
    """Its package's version, a digest, and the path the loader took."""
    found = nvrtc.compiler()
    maps = Path("/proc/self/maps").read_text()
    assert str(Path(found.path).resolve()) in maps
    assert found.version.startswith("13.")
    assert len(found.build) == 12
    assert os.environ["CUDA_CACHE_DISABLE"] == "1"


def test_one_process_has_one_nvrtc():
    """The same one again is no other; any other is refused."""
    path = nvrtc.compiler().path
    nvrtc.load(path)
    nvrtc.load(None)
    for other in ("/nowhere/libnvrtc.so.13", sys.executable):
        with pytest.raises(DeviceError, match="one NVRTC a process"):
            nvrtc.load(other)


def test_the_library_can_be_chosen(tmp_path):
    """By any path to it, before its first use; the builtins beside it are found."""
    link = tmp_path / "libnvrtc.so.13"
    link.symlink_to(nvrtc.compiler().path)
    script = (
        "import sys; from steelyard_device import nvrtc; nvrtc.load(sys.argv[1]);"
        f"nvrtc.compile({SCALE!r}, 'sm_90a'); print(nvrtc.compiler().build)"
    )
    assert python(script, link).strip() == nvrtc.compiler().build


def test_what_is_no_nvrtc_is_not_chosen(tmp_path):
    """A missing file, a text, another library: one sentence each."""
    text = tmp_path / "libnvrtc.so.13"
    text.write_text("no library")
    folder = Path(nvrtc.compiler().path).parent
    other = next(folder.glob("libnvrtc-builtins.so.*"))
    script = """
import sys
from steelyard_device import nvrtc
for path in sys.argv[1:]:
    try:
        nvrtc.load(path)
    except nvrtc.DeviceError as error:
        print(error)
"""
    said = python(script, tmp_path / "missing.so", text, other).splitlines()
    assert ["cannot be loaded" in line for line in said] == [True, True, False]
    assert "is not libnvrtc.so.13" in said[2]


def test_without_the_extra_it_says_how_to_get_it(monkeypatch):
    """No bindings, or no library: one sentence."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(DeviceError, match=r"pip install .*\[cuda\]"):
        nvrtc.bindings.__wrapped__()


def test_importing_it_loads_nothing():
    """Neither CUDA nor LLVM, before they are used."""
    loaded = python("import sys, steelyard_device.nvrtc; print(*sys.modules)").split()
    assert not {"cuda", "llvmlite", "numpy"} & set(loaded)

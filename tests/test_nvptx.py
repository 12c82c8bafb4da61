"""LLVM IR to cubins without a GPU, through LLVM's PTX and nvJitLink."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import shell

from steelyard_device import cubin, install, nvptx, nvrtc
from steelyard_device.errors import CompileError, DeviceError, LLVMError

pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")

ARCH = "sm_90a"
EMPTY = "define ptx_kernel void @empty() { ret void }\n"
AXPY = """
define ptx_kernel void @axpy(ptr addrspace(1) %y, float %a) {
  %x = load <4 x float>, ptr addrspace(1) %y, align 16
  %one = insertelement <4 x float> poison, float %a, i64 0
  %all = shufflevector <4 x float> %one, <4 x float> poison, <4 x i32> zeroinitializer
  %scaled = fmul <4 x float> %x, %all
  %sum = fadd <4 x float> %scaled, %all
  store <4 x float> %sum, ptr addrspace(1) %y, align 16
  ret void
}
"""
GREEDY = """
@room = internal addrspace(3) global [100000 x float] poison
define ptx_kernel void @greedy(i32 %i) {
  %at = getelementptr float, ptr addrspace(3) @room, i32 %i
  store volatile float 0.0, ptr addrspace(3) %at
  ret void
}
"""
GIBBERISH = """
define ptx_kernel void @f() { call void asm sideeffect "gibberish;", ""() ret void }
"""
PHASES = ("parse", "verify", "codegen", "link")


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_a_program_becomes_a_cubin_without_a_gpu(arch):
    """What comes back is as NVRTC's: log, kernels, phases that add up."""
    made = nvptx.compile(AXPY + EMPTY, arch)
    found = cubin.read(made.cubin)
    assert {kernel.entry for kernel in made.kernels} == set(found) == {"axpy", "empty"}
    for kernel in made.kernels:
        assert kernel.registers == found[kernel.entry].registers
        assert 0 < kernel.nanoseconds < made.nanoseconds
    assert tuple(phase.name for phase in made.phases) == PHASES
    assert sum(phase.nanoseconds for phase in made.phases) == made.nanoseconds
    assert arch.startswith(found["axpy"].arch)


def test_vectors_are_one_access_and_nothing_is_contracted():
    """What the program says is what is computed, by ptxas too."""
    axpy = cubin.read(nvptx.compile(AXPY, ARCH).cubin)["axpy"]
    assert (axpy.loads_128, axpy.stores_128) == (1, 1)
    assert (axpy.count("FMUL"), axpy.count("FADD"), axpy.count("FFMA")) == (4, 4, 0)


def test_the_same_text_gives_the_same_cubin():
    """Bytes depend on text, architecture and compilers, so that they can be kept."""
    assert nvptx.compile(AXPY, ARCH).cubin == nvptx.compile(AXPY, ARCH).cubin
    assert nvptx.compiler().startswith("LLVM ")


def test_threads_compile_side_by_side():
    """Each gets its own program's code, whichever architecture the others build for."""
    jobs = [(text, arch) for text in (EMPTY, AXPY) for arch in nvrtc.ARCHITECTURES]
    alone = [nvptx.compile(*job).cubin for job in jobs]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda job: nvptx.compile(*job).cubin, jobs * 2))
    assert together == alone * 2


@pytest.mark.parametrize("text", ["define", "define void @f() { ret i32 }", AXPY * 2])
def test_what_is_no_program_is_refused_in_llvms_words(text):
    """And the next one is compiled."""
    for refuse in (nvptx.compile, nvptx.assembly):
        with pytest.raises(LLVMError, match="LLVM rejected the program: "):
            refuse(text, ARCH)
    assert nvptx.compile(EMPTY, ARCH).cubin


@pytest.mark.parametrize(
    ("text", "said"), [(GREEDY, "too much shared data"), (GIBBERISH, "'gibberish'")]
)
def test_what_ptxas_refuses_says_why_in_one_line(text, said):
    """And who else could build it; the next one is compiled."""
    with pytest.raises(CompileError) as caught:
        nvptx.compile(text, ARCH)
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"ptxas refused the program for {ARCH}: ")
    assert message.endswith("Compile it with NVRTC.")
    assert "\n" not in message
    assert nvptx.compile(EMPTY, ARCH).cubin


def test_what_nvjitlink_lacks_is_no_refusal(monkeypatch):
    """Only what ptxas says of a program is said of it for ever."""
    linker = nvptx._linker()

    def lack(*_):
        raise linker.nvJitLinkError(linker.Result.ERROR_THREADPOOL)

    monkeypatch.setattr(linker, "complete", lack)
    with pytest.raises(DeviceError, match="ERROR_THREADPOOL") as caught:
        nvptx.compile(EMPTY, ARCH)
    assert not isinstance(caught.value, CompileError)
    monkeypatch.undo()
    assert nvptx.compile(EMPTY, ARCH).cubin


@pytest.mark.parametrize("arch", ["sm_75", "sm_999", "compute_90", "", "sm_90a "])
def test_other_architectures_are_refused_before_llvm_sees_them(arch):
    """It would end the process, or make code for another."""
    with pytest.raises(DeviceError, match=r"made for sm_80, .* not for"):
        nvptx.compile(EMPTY, arch)


def test_without_nvjitlink_the_error_says_what_to_install():
    """As where the cuda extra is missing."""
    script = (
        "import sys; sys.modules['cuda.bindings.nvjitlink'] = None\n"
        "from steelyard_device import nvptx\n"
        f"nvptx.compile({EMPTY!r}, {ARCH!r})"
    )
    done = shell.python("-c", script)
    assert "DeviceError: there is no nvJitLink here" in done.stderr
    assert install.command("cuda") in done.stderr

import sys
from pathlib import Path

import pytest
from cuda_programs import ADAM, EMPTY, SCALE, built
from hypothesis import given
from hypothesis import strategies as st

from steelyard_device import cubin, llvm, nvrtc, sass
from steelyard_device.errors import DeviceError

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

ARCH = "sm_90a"


@pytest.fixture(scope="module", params=nvrtc.ARCHITECTURES)
def kernels(request):
    """Every program's kernels, for one architecture after the other."""
    return cubin.read(built(request.param).cubin)


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_the_cubin_says_what_the_assembler_said(arch):
    """Registers, frame and shared memory of each kernel; its mangled name too."""
    found = cubin.read(built(arch).cubin)
    assert {
        (entry, it.registers, it.stack, it.shared) for entry, it in found.items()
    } == {(k.entry, k.registers, k.stack, k.shared) for k in built(arch).kernels}
    assert "_Z7mangledPi" in found
    assert {it.arch for it in found.values()} == {arch.rstrip("a")}


def test_wide_loads_and_stores_are_told_from_narrow_ones(kernels):
    """One of each a kernel, of 1 to 16 bytes; through shared memory too."""
    for bits in (8, 16, 32, 64, 128):
        copy, back = kernels[f"copy_{bits}"], kernels[f"reverse_{bits}"]
        for it in (copy, back):
            assert (it.count("LDG"), it.count("STG")) == (1, 1)
            assert (it.loads_128, it.stores_128) == (bits == 128, bits == 128)
        assert (copy.count("LDS"), copy.count("STS")) == (0, 0)
        assert (back.count("LDS"), back.count("STS")) == (1, 1)
        assert (copy.shared, back.shared) == (0, 8 * bits)
    assert (kernels["adam"].loads_128, kernels["adam"].stores_128) == (4, 3)


def test_asynchronous_copies_are_loads(kernels):
    """Of 4, 8, 16 and 16 bytes, in the copying kernel."""
    assert kernels["copies"].count("LDG", "LDGSTS") == 4
    assert kernels["copies"].loads_128 == 2
    assert kernels["copies"].count("LDS", "LDSM") >= 2


def test_local_memory_is_seen(kernels):
    """Where registers were too few, or a callee keeps an array, and nowhere else."""
    local = {entry for entry, it in kernels.items() if it.local_loads}
    assert local == {entry for entry, it in kernels.items() if it.local_stores}
    assert local == {entry for entry, it in kernels.items() if it.stack}
    assert local == {"spill", "caller"}


def test_matrices_shuffles_and_barriers_are_counted(kernels):
    """Each where the program has it."""
    assert kernels["mma"].tensor_core > 0
    assert kernels["scale"].tensor_core == kernels["math"].tensor_core == 0
    assert (kernels["sum"].count("SHFL"), kernels["scale"].count("SHFL")) == (5, 0)
    assert kernels["one"].count("BAR") == 1
    assert kernels["sum"].count("BAR") == 0


def test_barriers_are_counted_up_to_the_highest_number(kernels):
    """All sixteen, when the kernel computes which."""
    found = {entry: it.barriers for entry, it in kernels.items()}
    assert found["scale"] == 0
    assert (found["one"], found["third"], found["any"]) == (1, 3, 16)


def test_a_bound_on_threads_is_read(kernels):
    """From __launch_bounds__; most kernels have none."""
    assert kernels["spill"].max_threads == 1024
    assert kernels["scale"].max_threads is None


def test_required_threads_are_a_bound_too():
    """The product of the extents of a block."""
    text = (
        'extern "C" __global__ void __block_size__((32, 2, 3)) f(float* x) { *x = 1; }'
    )
    assert cubin.read(nvrtc.compile(text, ARCH).cubin)["f"].max_threads == 192


def test_code_is_the_same_under_any_name_and_in_any_group(kernels):
    """So that candidates can be compared by it, and groups built freely."""
    arch = next(a for a in nvrtc.ARCHITECTURES if a.rstrip("a") == kernels["adam"].arch)
    renamed = SCALE.replace("scale", "another") + SCALE.replace("2.f", "3.f")
    found = cubin.read(nvrtc.compile(renamed, arch).cubin)
    assert found["another"].code_hash == kernels["scale"].code_hash
    assert found["scale"].code_hash != kernels["scale"].code_hash
    assert found["another"].opcodes == kernels["scale"].opcodes
    (alone,) = cubin.read(nvrtc.compile(ADAM, arch).cubin).values()
    assert alone == kernels["adam"]


def test_every_instruction_is_counted_once(kernels):
    """Sixteen bytes each; the most frequent first."""
    for it in kernels.values():
        counts = [count for _, count in it.opcodes]
        assert sum(counts) * 16 == it.code_bytes
        assert counts == sorted(counts, reverse=True)
        assert len(it.code_hash) == 32


def test_an_unknown_instruction_is_counted_by_its_number():
    """A later architecture's, say."""
    code = (0x1FF).to_bytes(16, "little") * 3
    assert sass.mix(code, 90) == sass.Mix((("0x1ff", 3),), 0, 0)
    assert sass.mix(b"", 90) == sass.Mix((), 0, 0)


def test_a_program_without_kernels_has_none():
    """It is a whole cubin all the same; an empty kernel is a kernel."""
    assert cubin.read(nvrtc.compile("", ARCH).cubin) == {}
    (empty,) = cubin.read(nvrtc.compile(EMPTY, ARCH).cubin).values()
    assert (empty.count("LDG"), empty.stack, empty.count("EXIT")) == (0, 0, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b"\x7fELF\x02\x01" + bytes(100),
        b"x" * 1000,
        pytest.param(Path(sys.executable).resolve().read_bytes(), id="python"),
        pytest.param(llvm.assemble("define void @f() { ret void }"), id="object"),
    ],
)
def test_what_is_no_cubin_is_refused_in_one_sentence(data):
    """Nothing, a beginning, zeros, a text, programs of other machines."""
    with pytest.raises(DeviceError, match=f"these {len(data)} bytes are not a whole"):
        cubin.read(data)


WHOLE = nvrtc.compile(SCALE + EMPTY, ARCH).cubin


@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_cubin_is_never_read(size):
    """Wherever it ends."""
    with pytest.raises(DeviceError, match="not a whole cubin"):
        cubin.read(WHOLE[:size])


@pytest.mark.parametrize("value", [0, 1, 255])
def test_any_byte_of_the_tables_may_be_wrong(value):
    """Headers and attributes too are read or refused, whatever they point to."""
    whole = nvrtc.compile(EMPTY, ARCH).cubin
    for position in range(len(whole)):
        damaged = whole[:position] + bytes([value]) + whole[position + 1 :]
        try:
            found = cubin.read(damaged)
        except DeviceError:
            continue
        assert len(found) <= 1


@given(st.binary(max_size=400))
def test_any_bytes_after_the_header_are_read_or_refused(tail):
    """A header that points anywhere."""
    with pytest.raises(DeviceError):
        cubin.read(WHOLE[:20] + tail)

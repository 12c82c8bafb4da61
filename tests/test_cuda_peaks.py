"""The kernels that do as much as a GPU can, as their cubins say; nothing is launched."""

import pytest

from steelyard_device import cubin, nvrtc
from steelyard_device.cuda import peaks_text as peaks

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

INSTRUCTIONS = {
    "float32": "FFMA",
    "float64": "DFMA",
    "float16": "HFMA2",
    "bfloat16": "HFMA2",
}


def kernels(text, arch):
    """Return how often each kernel of a program has which instruction."""
    found = cubin.read(nvrtc.compile(text, arch).cubin)
    return {entry: dict(kernel.opcodes) for entry, kernel in found.items()}


@pytest.mark.parametrize(("dtype", "register", "lanes", "gpus"), peaks.CHAINED)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_chains_are_multiply_adds_of_their_dtype_and_little_else(
    dtype, register, lanes, gpus, arch
):
    """So many in a turn of the loop that the rest of it is 2 % at most."""
    del lanes, gpus
    (mix,) = kernels(peaks.fma(dtype, register), arch).values()
    asked = peaks.CHAINS * peaks.UNROLLED
    assert asked <= mix[INSTRUCTIONS[dtype]] <= asked + 8
    assert "STL" not in mix


@pytest.mark.parametrize("what", peaks.MATRICES, ids=lambda what: what[0])
def test_warp_groups_have_a_batch_of_the_largest_instruction(what):
    """Nothing spills, though each thread keeps 128 sums."""
    (mix,) = kernels(peaks.matrix(*what[:2]), "sm_90a").values()
    names = ("HGMMA", "IGMMA", "QGMMA")
    assert sum(mix.get(name, 0) for name in names) == peaks.BATCH
    assert "STL" not in mix


@pytest.mark.parametrize("what", peaks.WARP_MATRICES, ids=lambda w: w[0] + w[1][:7])
def test_warps_have_a_batch_of_products_in_each_chain(what):
    """On the first of the GPUs that have no faster one."""
    dtype, kind, a, b, c, letters, gpus = what
    arch = "sm_90a" if 90 in gpus else "sm_80"
    (mix,) = kernels(peaks.warp_matrix(dtype, kind, (a, b, c), letters), arch).values()
    made = sum(mix.get(name, 0) for name in ("HMMA", "DMMA", "IMMA"))
    assert made % (peaks.BATCH * peaks.WARP_CHAINS) == 0
    assert made > 0
    assert "STL" not in mix


def test_copies_load_all_their_words_before_they_store_any():
    """16 bytes each, as many in flight as the name says."""
    for entry, mix in kernels(peaks.COPY, "sm_90a").items():
        unroll = int(entry[-1])
        assert mix["LDG"] == mix["STG"] == unroll


def test_each_dtype_has_its_fastest_units_or_none():
    """Where halves have matrix units that nothing here uses they are not known."""
    for generation in (80, 86, 89, 90, 100, 120):
        warps = [k[0] for k in peaks.WARP_MATRICES if generation in k[-1]]
        chains = [k[0] for k in peaks.CHAINED if generation in k[-1]]
        groups = [k[0] for k in peaks.MATRICES] if generation == 90 else []
        assert len(set(warps)) == len(warps)
        assert {"float32", "float64"} <= set(chains)
        for half in ("float16", "bfloat16"):
            assert (half in chains) == (half in warps + groups)

"""Schedules of rows on a GPU: texts, what is offered, chosen and refused."""

import pytest

from steelyard_kernels import library
from steelyard_kernels.errors import KernelError
from steelyard_kernels.ir import printing as loops_print
from steelyard_kernels.ir.loops import INDEX
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.normalization import cuda_lowering, cuda_model
from steelyard_kernels.schedule.normalization.cuda import (
    CudaNormalization,
    batches,
)

H200 = GPUS["sm_90a"]
SIZES = (768, 1024, 4096, 5140, 20480)


def knobs(extent, *, lanes=1, threads=32, rows=1, unroll=1, **others):
    """Return a schedule for rows of an extent."""
    given = {"statistics": "two_pass", "keep": "packed", **others}
    count = batches(extent, lanes, threads)
    return CudaNormalization(lanes, threads, count, rows, unroll, **given)


def layernorm(rows, width, dtype="float16"):
    """Return the program of bias_layernorm."""
    specs = (((rows, width), dtype), *((((width,), dtype),) * 4))
    return library.bias_layernorm.program(*specs)


def test_more_elements_than_an_int32_counts_are_reached_by_int64_indices():
    """The index type follows from the largest array."""
    small = cuda_lowering.lower(layernorm(8, 768), knobs(768, lanes=8))
    large = cuda_lowering.lower(layernorm(2_796_000, 768), knobs(768, lanes=8))
    assert small.slots[-1].code == "i"
    assert large.slots[-1].code == "q"
    assert large.kernel.parameters[-1].type is INDEX


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": 48}, "a multiple of 32 up to 1024"),
        ({"threads": 64, "rows": 2}, "up to 32 with 32 threads a row"),
        ({"unroll": 9}, "choose 1 to 8"),
        ({"statistics": "welford"}, "one of plain, shifted, two_pass"),
        ({"keep": "scratch"}, "one of packed, wide, reload"),
        ({"registers": 8}, "16 to 255"),
        ({"lanes": 16}, "a power of two up to 16 that divides the row"),
        ({"unroll": 8}, "more threads a row, reload"),
    ],
)
def test_a_schedule_that_fits_no_gpu_is_refused(change, message):
    """The error names the knob, what was seen, and what to choose."""
    schedule = knobs(1000, **{"lanes": 8, **change})
    with pytest.raises(KernelError, match=message):
        cuda_lowering.lower(layernorm(8, 1000), schedule)


def test_vectors_need_aligned_arrays_and_batches_follow_from_the_rest():
    """What does not fit the rows is said before anything is compiled."""
    program = layernorm(8, 1024)
    with pytest.raises(KernelError, match="multiples of 16 bytes"):
        cuda_lowering.lower(program, knobs(1024, lanes=8), aligned=False)
    wrong = CudaNormalization(8, 32, 3, 1, 1, "two_pass", "packed")
    with pytest.raises(KernelError, match="choose 4"):
        cuda_lowering.lower(program, wrong)


@pytest.mark.parametrize("width", SIZES)
def test_candidates_are_many_and_legal(width):
    """At least 96 of bias_layernorm in float16, all of which can be lowered."""
    program = layernorm(8192, width)
    every = cuda_model.candidates(program, H200)
    assert len(set(every)) == len(every)
    assert 96 <= len(every) <= 128
    assert sorted(every) == list(every)
    assert len({each.label for each in every}) == len(every)
    for schedule in every[::9]:
        verify(cuda_lowering.lower(program, schedule).kernel, "cuda")


@pytest.mark.parametrize("arch", GPUS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_threads_of_a_row_grow_with_the_row(arch, dtype):
    """A warp or two a row where rows are short; more where they are long."""
    sizes = (768, 1024, 4096, 16384, 20480)
    chosen = [
        cuda_model.heuristic(layernorm(8192, width, dtype), GPUS[arch])
        for width in sizes
    ]
    threads = [each.threads for each in chosen]
    assert threads[0] in {32, 64}
    assert threads[:3] == sorted(threads[:3])
    assert min(threads[3:]) >= 128
    held = [each.threads for each in chosen[3:] if each.keep != "reload"]
    assert min(held, default=threads[2]) >= threads[2]
    assert all(each.keep != "reload" for each in chosen[:3])
    huge = cuda_model.heuristic(layernorm(64, 400_000, dtype), GPUS[arch])
    assert huge.keep == "reload"


@pytest.mark.parametrize("width", [1, 257, 768, 4096, 5140, 20480])
def test_the_heuristic_finds_nearly_the_least_prediction(width):
    """Looking at fewer candidates loses at most a tenth."""
    program = layernorm(8192, width)
    ranked = cuda_model.rank(program, H200)
    free = [row[1].total for row in ranked if not row[0].registers]
    chosen = cuda_model.heuristic(program, H200)
    assert cuda_model.model(program, chosen, H200).total <= 1.1 * free[0]
    assert all(value >= 0 for _, value in ranked[0][1].terms)


def test_generated_text_of_a_warp_and_of_a_block(golden):
    """Loads first, what is kept in registers, one barrier a reduction or none."""
    program = layernorm(10, 1288)
    warp = knobs(1288, lanes=8, rows=4)
    golden(loops_print.text(cuda_lowering.lower(program, warp).kernel), "warp")
    block = knobs(1288, lanes=8, threads=64, keep="wide", statistics="shifted")
    text = loops_print.text(cuda_lowering.lower(program, block).kernel)
    golden(text, "block")
    assert text.count("barrier") == 2  # the second where a row cancelled


def test_registers_and_local_memory_are_as_planned():
    """No stack, and about as many registers as estimated, of every thirtieth."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    assert nvrtc
    from steelyard_device import cubin
    from steelyard_device.nvrtc import compile as compile_cuda
    from steelyard_kernels.emit.cuda import emit

    for width in (768, 5140):
        program = layernorm(8192, width)
        hashes = set()
        every = [s for s in cuda_model.candidates(program, H200) if not s.registers]
        for schedule in every[::30]:
            lowered = cuda_lowering.lower(program, schedule)
            made = compile_cuda(emit(lowered.kernel), "sm_90a")
            (found,) = cubin.read(made.cubin).values()
            assert found.stack == 0, schedule.label
            assert found.registers <= lowered.kernel.registers
            hashes.add(found.code_hash)
        assert len(hashes) == len(every[::30])

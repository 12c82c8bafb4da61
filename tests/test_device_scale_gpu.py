"""What the driver and NVML say of a GPU round a trial."""

from types import SimpleNamespace

import gpu
import pytest

from steelyard.measure.gpu_instruments import GpuInstruments
from steelyard_device import cuda
from steelyard_device.cuda import driver

LIMIT = "CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE"


@pytest.fixture(scope="module")
def scale():
    """Give the scale of the first GPU."""
    return GpuInstruments(gpu.context())


def work(scale, launch):
    """Return work that does this in each launch."""
    context = scale.context
    return SimpleNamespace(
        context=context, stream=context.stream, launch=lambda _: launch()
    )


@pytest.mark.parametrize("kernels", [1, 3])
def test_kernels_of_a_launch_are_counted(scale, kernels):
    """Nothing of it runs, and the stream takes launches afterwards."""
    nothing = cuda.null(scale.context)
    assert scale.kernels(work(scale, lambda: nothing.launch(kernels))) == kernels
    nothing.launch(1)
    scale.context.wait()


def test_kernels_of_work_that_waits_are_not_known(scale):
    """It cannot be recorded, and harms nothing."""
    assert scale.kernels(work(scale, scale.context.wait)) == 0
    cuda.null(scale.context).launch(1)
    scale.context.wait()


def test_cache_that_is_set_aside_is_seen(scale):
    """What is set aside from the start does not count."""
    limit = driver.attribute(LIMIT)
    assert scale.persisting() == 0
    with driver.current(scale.context.handle):
        usual = int(driver.call("asking", "cuCtxGetLimit", limit))
        driver.call("setting aside", "cuCtxSetLimit", limit, usual + (1 << 20))
        try:
            assert scale.persisting() > 0
        finally:
            driver.call("giving back", "cuCtxSetLimit", limit, usual)
    assert scale.persisting() == 0


def test_how_long_the_clock_was_held_back_is_counted_or_unknown(scale):
    """Nanoseconds never fall."""
    with scale.capped() as capped:
        scale.flush()
        scale.context.wait()
    assert capped.keys() == {"power", "thermal", "sync", "board"}
    assert all(each == "unknown" or each >= 0 for each in capped.values())

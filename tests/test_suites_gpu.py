"""The suites on a GPU: every kernel there, ours and others', gives the right result."""

import gpu
import pytest
from test_suites import cases

from steelyard.declare.settings import Settings
from steelyard.measure.prepared import PreparedCase

# PyTorch's compiler calls what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def on_gpu(params):
    """Return the cases that are launched on a GPU."""
    return [one for one in params if one.id.startswith("gpu_")]


@pytest.mark.parametrize("case", on_gpu(cases(small=True)))
def test_each_impl_of_each_benchmark_is_right_at_a_ragged_size(case):
    """A launch agrees with the case's float64 reference, whatever implements it."""
    gpu.context()
    prepared = PreparedCase(case, Settings())
    prepared.work.launch(2)
    prepared.work.wait()
    prepared.check(2)

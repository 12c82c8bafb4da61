"""The suites on a GPU: every kernel there, ours and others', gives the right result."""

import gpu
import pytest
from test_suites import launched

from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase

# PyTorch's compiler calls what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.mark.parametrize("case", launched("gpu_"))
def test_each_impl_of_each_benchmark_is_right_at_a_ragged_size(case):
    """A launch agrees with the case's float64 reference, whatever implements it."""
    gpu.context()
    prepared = PreparedCase(case, Settings())
    prepared.work.launch(2)
    prepared.work.wait()
    prepared.check(2)

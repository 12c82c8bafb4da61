"""Functions on a GPU: a million arguments each against a wider type, and noise."""

import ctypes

import gpu
import gpu_cases
import numpy as np
import pytest
from gpu_cases import FUNCTIONS, THREADS
from programs import blocks
from test_functions import arguments, ulps
from test_random import block, box_muller, drawn

from steelyard_device import nvrtc
from steelyard_kernels.dtypes import of
from steelyard_kernels.emit.cuda import emit, joined
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.strategies import lower

WIDER = {"float32": np.float64, "float64": np.longdouble}
TRUE_TO = {
    "erf",
    "erf_inv",
    "erfc",
}  # their reference is SciPy's float64, good for float32 only
CASES = [
    (op, dtype)
    for op in FUNCTIONS
    for dtype in WIDER
    if op not in TRUE_TO or dtype == "float32"
]
COUNT = 1 << 16
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in")


@pytest.fixture(scope="module")
def arch():
    """Say what the GPU's cubins are compiled for; skip without one."""
    return gpu.context().device.arch


@pytest.fixture(scope="module")
def cubin(arch):
    """Compile every function, a scalar a thread."""
    texts = []
    for op, dtype in CASES:
        kernel = gpu_cases.elementwise(
            lambda b, x, op=op: b.let(op, x), [of(dtype)], of(dtype), 1
        )
        texts.append((f"{op}_{dtype}", emit(kernel)))
    return nvrtc.compile(joined(texts), arch).cubin


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_function_stays_within_its_stated_error(cubin, op, dtype):
    """Of the library and ours: the bounds that `gpu_cases` holds special values to."""
    reference, single, double = FUNCTIONS[op]
    values = arguments(dtype)
    seen = np.full_like(values, 7)
    args = [values, seen, ctypes.c_int(values.size)]
    gpu.launch(cubin, f"{op}_{dtype}", -(-values.size // THREADS), THREADS, args)
    error = ulps(seen, reference(values.astype(WIDER[dtype])))
    print(f"{op} {dtype} {error:.3f} ulp")  # noqa: T201 - the figure to be stated
    bound = single if dtype == "float32" else double
    assert error <= bound + (0.5 if bound else 0)  # the library's is of rounded values


def test_noise_has_the_same_bits_and_normals_within_two_ulp(arch):
    """Bits and uniform numbers equal the CPU's; normals are true to their words."""
    counter = np.arange(COUNT)
    schedule = blocks(1, 1, 128)
    lowered = lower(drawn.program(counter), schedule, GPUS["sm_90a"]).kernel
    mine = drawn(counter, key=77)
    seen = [np.zeros_like(result) for result in mine]
    given = {
        "counter": counter,
        "key": ctypes.c_longlong(77),
        "extent": ctypes.c_int(COUNT),
        **{f"out{at}": result for at, result in enumerate(seen)},
    }
    args = [given[parameter.name] for parameter in lowered.parameters]
    compiled = nvrtc.compile(emit(lowered), arch).cubin
    gpu.launch(compiled, "kernel", -(-COUNT // 128), 128, args)
    for at in range(3):
        assert np.array_equal(seen[at], mine[at])
    made = np.array([block(77, each) for each in range(COUNT)], np.uint64)
    unit = np.float64(2) ** -24
    radius, turn = ((made[:, 0] >> 8) + 1) * unit, 2 * ((made[:, 1] >> 8) * unit)
    assert ulps(seen[3], box_muller(radius, turn)) <= 2
    unit = np.longdouble(2) ** -53
    first, second = (
        ((made[:, at] >> 5) << 26) + (made[:, at + 1] >> 6) for at in (0, 2)
    )
    assert ulps(seen[4], box_muller((first + 1) * unit, 2 * (second * unit))) <= 2

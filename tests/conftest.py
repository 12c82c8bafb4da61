"""Fixtures of all tests: golden files, and running a loop kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    """Add the flag that rewrites golden files instead of comparing with them."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files"
    )


@pytest.fixture
def golden(request):
    """Compare a text with tests/golden/<module>/<test>.txt.

    `golden(text)`, or `golden(text, "name")` for several in one test. After a
    wanted change run `pytest --update-golden` and read the difference.
    """
    update = request.config.getoption("--update-golden")
    folder = GOLDEN / request.module.__name__.removeprefix("test_")

    def compare(text, name=request.node.originalname.removeprefix("test_")):
        path = folder / f"{name}.txt"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; run pytest --update-golden."
        assert text == path.read_text()

    return compare


@pytest.fixture(scope="session")
def run_kernel():
    """Verify, emit, assemble and launch a loop kernel on arrays and scalars."""
    from steelyard_device import cpu, llvm
    from steelyard_kernels.emit.llvm import emit
    from steelyard_kernels.verify import verify

    codes = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "bool": "?"}

    def slot(value, parameter):
        if isinstance(value, np.ndarray):
            return value.ctypes.data
        return cpu.slot(value, codes[parameter.type.dtype.name])

    def run(kernel, *values, threads=1, text=None):
        verify(kernel)
        code = llvm.assemble(text or emit(kernel, llvm.host()))
        slots = [slot(*pair) for pair in zip(values, kernel.parameters, strict=True)]
        cpu.Launch(cpu.load(code, kernel.name), slots, threads).launch()

    return run

"""Capsules of kernels on a GPU: ours, with bulk copies too, and anyone's cubin."""

import numpy as np
import pytest
import shell
from fakes import case_of
from gpu import context

from steelyard.declare.plan import Settings
from steelyard.measure.prepared import PreparedCase
from steelyard.prepare import capsule_work, capsules
from steelyard.prepare.work import Cubin
from steelyard.process import capsules as recording
from steelyard_device import cuda
from steelyard_kernels import kernel, library


@pytest.fixture(autouse=True)
def _on_a_gpu():
    """Skip without one."""
    context()


def norm(b):
    """Describe a kernel of the library."""
    b.on("cuda")
    x = b.input((64, 768), "float16")
    vectors = [b.input(768, "float16", name=name) for name in "abcd"]
    y = b.output((64, 768), "float16")
    b.check(library_reference, x, *vectors, rtol=0.02, atol=0.02)
    return b.launch(library.bias_layernorm, x, *vectors, out=y)


def library_reference(x, a, b, c, d):
    """Return what the kernel makes of its arguments."""
    t = x + a + b
    t = t - t.mean(-1, keepdims=True)
    return t / np.sqrt(np.square(t).mean(-1, keepdims=True) + 1e-5) * c + d


@kernel
def multiplied(x, w):
    """Return a product, by tensor cores where the GPU has bulk copies."""
    return x @ w


def product(b):
    """Describe a product."""
    b.on("cuda")
    x, w = (
        b.input(s, "float16", name=n) for n, s in (("x", (64, 768)), ("w", (768, 64)))
    )
    y = b.output((64, 64), "float16")
    b.check(lambda x, w: x @ w, x, w, rtol=0.02, atol=0.1)
    return b.launch(multiplied, x, w, out=y)


def anyones(b):
    """Describe a cubin, here one of ours, with a number for an argument."""
    b.on("cuda")
    x = b.input((4096,), "float32")
    y = b.output((4096,), "float32")
    b.check(lambda x: x, x)
    arrays = [cuda.Buffer(context(), (4096,), np.float32) for _ in range(2)]
    bound = library.copy.bind(arrays[0], out=arrays[1])
    built = bound.built
    extents = [slot.index for slot in built.slots if slot.kind == "extent"]
    grid, block = built.blocks, built.threads
    made = Cubin(built.code.image, built.code.entry, grid, block, built.shared)
    return b.launch(made, x, y, *extents)


@pytest.mark.parametrize("body", [norm, product, anyones])
def test_a_capsule_launches_the_same_code_on_the_same_inputs(body, tmp_path):
    """Its results are those that are known, its facts those of then."""
    case = case_of(body)
    prepared = PreparedCase(case, Settings())
    source, home = tmp_path / "source", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    content = recording.record(prepared, Settings(), source)
    members = {
        str(file.relative_to(source)): file.read_bytes()
        for file in source.rglob("*")
        if file.is_file()
    }
    data = capsules.write(content, members | {capsules.RUN: b"{}"})
    sealed = capsule_work.unpack(capsules.read(data), home)
    replayed = PreparedCase(sealed.case(), Settings())
    assert replayed.checked
    assert replayed.work.facts()["code_hash"] == prepared.work.facts()["code_hash"]
    assert replayed.hashes["inputs"] == prepared.hashes["inputs"]
    for name in ("y",):
        np.testing.assert_array_equal(
            replayed.buffers.read(name), prepared.buffers.read(name)
        )


PROGRAM = """
import numpy as np
from steelyard_device import cuda
from steelyard_kernels import library

x, y, z = (cuda.Buffer(cuda.context(), (1 << 16,), np.float32) for _ in range(3))
for b in (x, y):
    b.write(np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32))
z.fill(np.float32(0))
for _ in range(3):
    library.triad(x, y, out=z, s=2.5)
cuda.context().wait_for_all()
"""


def test_a_launch_of_any_program_becomes_a_capsule(tmp_path):
    """It is measured, and replayed with its results known."""
    pytest.importorskip("cupti")
    (tmp_path / "prog.py").write_text(PROGRAM)
    own = {"STEELYARD_BLOCKS": "2", "STEELYARD_STORE": str(tmp_path / "s.db")}
    place = tmp_path / "triad.syc"
    line = ("attach", "--capture", "kernel", "-o", place, "--", "python", "prog.py")
    done = shell.steelyard(*line, folder=tmp_path, **own)
    assert done.returncode == 0, done.stderr
    done = shell.steelyard("replay", place, "--trust", folder=tmp_path, **own)
    assert done.returncode == 0, done.stderr
    assert "kernel[launch=1]" in done.stdout
    assert "same code" in done.stdout
    assert "unchecked" not in done.stdout

"""Kernels of the library on a GPU, bound and called, against the oracle."""

import gc
import threading

import bounds
import numpy as np
import pytest
from corpus import compare

from steelyard_device import cuda
from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, library
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.errors import CompilerBug, KernelError
from steelyard_kernels.function import kernel

DTYPES = ("float16", "bfloat16", "float32", "float64")
SIZES = (0, 1, 7, 100, 100_003)


def drawn(shape, dtype, seed=1):
    """Return random values as the host carries them."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return dtypes.rounded(values, dtypes.of(dtype))


def agrees(made, arrays, run, scalars=None):
    """Run a kernel on the GPU and compare every output with the oracle.

    `run` gets the arrays there and returns the outputs by name.
    """
    program = made.program(*arrays)
    defaults = {each.name: each.default for each in made.signature.scalars}
    expected = bounds.expected(program, arrays, {**defaults, **(scalars or {})})
    context = cuda.context()
    outputs = run(*[cuda.copy_of(context, array) for array in arrays])
    for name, near in expected.items():
        compare(name, near, outputs[name].read())


def bound_run(made, **scalars):
    """Return a run that binds, launches and waits."""

    def run(*buffers):
        work = made.bind(*buffers, **scalars)
        work.launch()
        work.wait()
        return work.outputs

    return run


def called(made, **scalars):
    """Return a run that calls, with the outputs by name."""

    def run(*buffers):
        done = made(*buffers, **scalars)
        return done if isinstance(done, dict) else {"out": done}

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [bound_run, called])
def test_fused_broadcasts_agree_with_the_oracle(context, dtype, size, way):
    """Fresh outputs and updated ones, of every dtype, from nothing to a prime."""
    a, b, c = (drawn(size, dtype, seed) for seed in range(3))
    agrees(library.copy, [a], way(library.copy))
    agrees(library.triad, [a, b], way(library.triad, s=0.5), {"s": 0.5})
    agrees(library.scale, [a, b, c], way(library.scale))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [bound_run, called])
def test_adam_updates_in_place(context, dtype, size, way):
    """All three arrays are the given ones."""
    gradient, m, v = (drawn(size, "float64", seed) for seed in range(3))
    given = gradient, m, np.abs(v)
    arrays = [dtypes.rounded(x, dtypes.of(dtype)) for x in given]
    agrees(library.adam, arrays, way(library.adam, rate=0.01), {"rate": 0.01})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "width"), [(0, 8), (1, 1), (3, 17), (37, 768), (5, 1601), (9, 5140)]
)
@pytest.mark.parametrize("way", [bound_run, called])
def test_rows_agree_with_the_oracle(context, dtype, rows, width, way):
    """LayerNorm and softmax of odd widths, and of none."""
    x = drawn((rows, width), dtype)
    vectors = [drawn(width, dtype, seed) for seed in range(2, 6)]
    agrees(library.bias_layernorm, [x, *vectors], way(library.bias_layernorm))
    agrees(library.softmax, [x], way(library.softmax))


def test_outputs_can_be_given_and_are_returned(context):
    """The very buffer; without one it is a new one of ours."""
    a = cuda.copy_of(context, np.arange(100, dtype=np.float32))
    out = cuda.Buffer(context, (100,), np.float32)
    assert library.triad(a, a, out=out) is out
    new = library.triad(a, a)
    assert isinstance(new, cuda.Buffer)
    np.testing.assert_array_equal(new.read(), out.read())


def test_scalars_are_given_at_each_call(context):
    """Before and after the arrays are remembered, and the defaults come back."""
    host = np.arange(100, dtype=np.float32)
    a = cuda.copy_of(context, host)
    out = cuda.Buffer(context, (100,), np.float32)
    for scalars in ({}, {}, {}, {"s": 0.5}, {}, {"s": -0.0}, {"s": 7}, {}):
        library.triad(a, a, out=out, **scalars)
        factor = scalars.get("s", 3.0)
        np.testing.assert_array_equal(out.read(), host + factor * host)


def test_a_dropped_buffers_place_is_not_remembered(context):
    """Whatever gets its identity is looked at anew."""
    for size in (100, 7, 100_003, 1) * 5:
        a = cuda.copy_of(context, np.full(size, size, np.float32))
        out = cuda.Buffer(context, (size,), np.float32)
        library.copy(a, out=out)
        assert (out.read() == size).all()
        del a, out
        gc.collect()


def test_parts_that_do_not_start_at_16_bytes_take_another_build(context):
    """The values are the same."""
    host = np.arange((1 << 22) + 1, dtype=np.float32)
    whole = cuda.copy_of(context, host)
    part = whole.part(4, (1 << 22,), np.float32)
    out = cuda.Buffer(context, host.shape, np.float32)
    moved = out.part(4, (1 << 22,), np.float32)
    library.copy(part, out=moved)
    np.testing.assert_array_equal(moved.read(), host[1:])
    schedule = library.copy.bind(whole, out=out).built.schedule
    assert library.copy.bind(part, out=moved).built.schedule != schedule


def test_bound_work_is_what_a_harness_measures(context):
    """Launches, a native window, a null launch, builds, facts."""
    host = np.zeros(1000, np.float32)
    a, one = cuda.copy_of(context, host), cuda.copy_of(context, host + 1)

    @kernel
    def count(a, b):
        return {"a": a + b}

    work = count.bind(a, one)
    assert (work.context, work.stream) == (context, context.stream)
    work.ready()
    work.launch()
    work.launch(4)
    start, end = work.window(5)
    assert end > start
    assert (a.read() == 10).all()
    start, end = work.null().window(1)
    assert end > start
    for cache in ("cold", "warm-memory"):
        work.build(cache)
    graph = cuda.Graph(work, 10)
    graph.launch()
    work.wait()
    assert (a.read() == 20).all()
    facts = work.facts()
    assert facts["bytes"] == 3 * 4000
    assert facts["target"] == f"cuda:{context.device.arch}"
    assert facts["code_hash"] == work.built.code_hash
    assert facts["grid"] * facts["block"] >= 1000 / 4
    assert 1 <= facts["blocks_per_multiprocessor"] == facts["blocks_resident"]
    assert facts["spill_bytes"] == 0


def test_a_cold_build_says_how_long_loading_took(context):
    """The phase behind the compiler's; a build from memory has none."""
    a = cuda.copy_of(context, np.zeros(100, np.float32))
    seen = []
    work = library.copy.bind(a)
    rebuild, work._rebuild = (
        work._rebuild,
        lambda c: seen.append(rebuild(c)) or seen[-1],
    )
    work.build("cold")
    work.build("warm-memory")
    cold, warm = (dict(built.phases) for built in seen)
    assert cold["nvrtc"] > cold["load"] > 0
    assert "load" not in warm


@pytest.mark.parametrize(("rows", "width"), [(64, 768), (64, 5140), (3, 20_480)])
def test_the_driver_agrees_with_what_was_read_of_every_candidates_cubin(
    context, rows, width
):
    """Registers, shared memory and how many blocks fit: else `facts` would raise."""
    target = f"cuda:{context.device.arch}"
    specs = [((rows, width), "float16"), *[((width,), "float16")] * 4]
    schedules = library.bias_layernorm.candidates(*specs, target=target)[::7]
    buffers = [cuda.Buffer(context, shape, dtype) for shape, dtype in specs]
    for schedule in schedules:
        facts = library.bias_layernorm.bind(*buffers, schedule=schedule).facts()
        assert facts["blocks_per_multiprocessor"] == facts["blocks_resident"]


def test_facts_of_another_code_are_our_bug(context):
    """What the driver says is of a kernel with other registers."""
    from msgspec.structs import replace

    from steelyard_kernels.calling.cuda_bind import check_agrees, function_of

    a = cuda.copy_of(context, np.zeros(100, np.float32))
    built = library.copy.bind(a).built
    function = function_of(built, context)
    wrong = replace(function.attributes, registers=99)
    resident = facts_of(built)["blocks_resident"]
    with pytest.raises(CompilerBug, match="says 99 registers"):
        check_agrees(built, wrong, resident)
    check_agrees(built, function.attributes, resident)


def test_work_goes_to_the_stream_it_is_given(context):
    """A kernel that is held on one stream holds no other."""
    with cuda.driver.current(context.handle):
        other = int(cuda.driver.call("making a stream", "cuStreamCreate", 1))
    a = cuda.copy_of(context, np.ones(100, np.float32))
    out = cuda.Buffer(context, (100,), np.float32)
    out.fill(0)
    context.wait()
    work = library.copy.bind(a, out=out, stream=other)
    assert (work.stream, work.null().stream) == (other, other)
    with cuda.Spin(context).held():
        work.launch()
        work.wait()  # ours is held
    assert (out.read() == 1).all()


def test_two_threads_call_one_kernel(context):
    """With scalars of their own: neither packs over the other's."""
    host = np.ones(100, np.float32)
    wrong = []

    def run(factor):
        a = cuda.copy_of(context, host)
        out = cuda.Buffer(context, (100,), np.float32)
        for turn in range(200):
            library.triad(a, a, out=out, s=factor + turn)
            if not (out.read() == 1 + factor + turn).all():
                wrong.append((factor, turn))

    threads = [threading.Thread(target=run, args=(n * 1000.0,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_host_and_gpu_do_not_mix(context):
    """Either way round, inputs and outputs."""
    host = np.ones(100, np.float32)
    there = cuda.copy_of(context, host)
    with pytest.raises(KernelError, match="b is a ndarray, expected an array on a GPU"):
        library.triad(there, host)
    with pytest.raises(KernelError, match="b is a Buffer on a GPU, expected a NumPy"):
        library.triad(host, there)
    with pytest.raises(KernelError, match="out is a ndarray, expected an array on"):
        library.triad(there, there, out=host)
    with pytest.raises(KernelError, match="out is a Buffer on a GPU"):
        library.triad(host, host, out=there)
    with pytest.raises(KernelError, match="stream 1 was given for arrays of the host"):
        library.triad.bind(host, host, stream=1)


def torch_on_gpu():
    """Return PyTorch; skip without it."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch with CUDA")
    return torch


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_are_taken_as_they_are(context, dtype):
    """On PyTorch's own stream, without copies; outputs are the given tensors."""
    torch = torch_on_gpu()
    a = torch.randn(1000, device="cuda", dtype=getattr(torch, dtype))
    out = torch.empty_like(a)
    assert library.copy(a, out=out) is out
    assert torch.equal(a, out)
    work = library.copy.bind(a, out=out)
    assert work.stream == torch.cuda.current_stream().cuda_stream
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert library.copy.bind(a, out=out).stream == side.cuda_stream


def test_tensors_and_buffers_go_together_in_order(context):
    """Each stream waits for the other: results are there for both."""
    torch = torch_on_gpu()
    for turn in range(20):
        a = torch.full((1 << 20,), 1.0, device="cuda")
        a += turn  # still under way when the kernel is submitted
        new = library.triad(a, a)
        a.zero_()  # not before the kernel has read it
        assert (new.read() == 4 * (1 + turn)).all()


def test_tensors_that_cannot_be_taken_are_refused(context):
    """Foreign dtypes and those of the host."""
    torch = torch_on_gpu()
    a = torch.ones((8, 8), device="cuda")
    with pytest.raises(KernelError, match=r"a is a tensor of torch\.complex64"):
        library.copy(a.to(torch.complex64))
    with pytest.raises(KernelError, match="a is a Tensor, expected a NumPy array"):
        library.copy(a.cpu())


def test_arrays_of_cupy_are_taken_on_their_stream(context):
    """By the CUDA array interface, strides and all."""
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    a = cupy.arange(1000, dtype=cupy.float32)
    out = cupy.empty_like(a)
    assert library.triad(a, a, out=out) is out
    assert (out == 4 * a).all()
    assert (cupy.asarray(library.copy(a[::2])) == a[::2]).all()


@pytest.mark.parametrize("size", [0, 1, 100, 1_000_003])
def test_a_stamped_launch_computes_the_same(context, size):
    """By a build of its own, whose times are of the last launch."""
    a = cuda.copy_of(context, np.arange(size, dtype=np.float32))
    out = cuda.Buffer(context, (size,), np.float32)
    work = library.triad.bind(a, a, out=out)
    stamped = work.stamped()
    stamped.launch(2)
    assert 0 <= stamped.nanoseconds() < 1e9
    np.testing.assert_array_equal(out.read(), 4 * a.read())
    assert len(stamped.blocks()) == work.facts()["grid"]
    facts = stamped.facts()
    assert facts["registers_added"] == facts["registers"] - work.facts()["registers"]
    assert facts["code_hash"] != work.built.code_hash


def test_stamps_read_what_the_work_is_long(context):
    """Sixty-four times the elements: the order of magnitude of the kernel's time."""
    times = []
    for size in (1 << 20, 1 << 26):
        a = cuda.Buffer(context, (size,), np.float32)
        out = cuda.Buffer(context, (size,), np.float32)
        a.fill(0)
        stamped = library.copy.bind(a, out=out).stamped()
        stamped.launch(3)
        times.append(stamped.nanoseconds())
    few, many = times
    assert 500 < few < 20_000
    assert 60_000 < many < 1_000_000


@kernel
def trained(x, a, b, c):
    """Multiply by three weights, which are updated by what comes out."""
    found = [(w, xp.matmul(x, w)) for w in (a, b, c)]
    new = [w - 0.01 * xp.matmul(xp.matrix_transpose(x), y) for w, y in found]
    sums = [xp.sum(y, axis=0) for _, y in found]
    return {**dict(zip("abc", new, strict=True)), "p": sums[0], "q": sums[1] + sums[2]}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(64, 32, 48), (257, 96, 160)])
def test_equal_launches_side_by_side_have_their_own_arrays(context, shape, dtype):
    """Outputs, arrays that are updated in place and memory between launches."""
    rows, depth, columns = shape
    arrays = [drawn((rows, depth), dtype)]
    arrays += [drawn((depth, columns), dtype, seed) for seed in (2, 3, 4)]
    agrees(trained, arrays, bound_run(trained))
    agrees(trained, arrays, called(trained))
    built = trained.build(*arrays, target=f"cuda:{context.device.arch}")
    assert max(launch.program.copies for launch in built.plan.launches) == 3

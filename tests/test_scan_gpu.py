"""Chains on a GPU that is here: what the interpreter ran, and the loop that began it all."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import gpu
import numpy as np
import pytest
import test_scan_cuda as scans

from steelyard_device import nvrtc
from steelyard_kernels import array as xp
from steelyard_kernels import random, reference
from steelyard_kernels.emit.cuda import emit, joined
from steelyard_kernels.ir.verify import verify
from steelyard_kernels.schedule.scan import cuda_lowering, cuda_model
from steelyard_kernels.schedule.scan.cuda import CudaScan
from steelyard_kernels.vmap import vmap

RNG = np.random.default_rng(11)
CODES = {"d": ctypes.c_double, "q": ctypes.c_int64, "?": ctypes.c_bool}
CODES["i"] = ctypes.c_int32
PROGRAMS = 12  # compiled at once
GROUPS = (1, 4, 16, 32, 128)


def noisy(x, key, w1, w2):
    """Iterate the seed's network with its noise, a thousand times."""

    def layer(x, w):
        return xp.sigmoid(x @ xp.softplus(w))

    def step(x, i):
        noise = random.normal(key, i, x.shape, x.dtype.name)
        return layer(layer(x, w1), w2) + noise, None

    return xp.scan(step, x, xp.arange(1000))[0]


def noisy_arrays(dtype, width, chains):
    """Return states, keys and weights."""
    first = (chains,) if chains else ()
    shapes = ((*first, 1), first, (1, width), (width, 1))
    x, key, w1, w2 = (RNG.normal(size=shape).astype(dtype) for shape in shapes)
    keys = RNG.integers(-(2**62), 2**62, size=key.shape or 1)
    return [x, keys.reshape(key.shape), w1, w2]


def cases():
    """Return, by name, a function, its arrays, a schedule and its scalars."""
    found = {}
    halves = np.array([[0.5, 0.1, 0], [7, -900, 3], [np.nan, 1, 1], [33, 0, 0]])
    for group in GROUPS:
        for chains in (1, 3) if group <= 32 else (1,):
            name = f"g{group}c{chains}"
            alone, many = CudaScan(group, 1, 2, True), CudaScan(group, chains, 2, True)
            plain = CudaScan(group, chains, 3, False)
            arrays = scans.network_arrays(RNG, 40, 9, chains=5)
            mapped = vmap(scans.network, (0, 0, None, None))
            found[f"network_{name}"] = mapped, arrays, plain, {}
            weights = [RNG.normal(size=(5, 40)), RNG.normal(size=(5, 9, 40))]
            found[f"again_{name}"] = vmap(scans.again, (0, 0)), weights, plain, {}
            rows = [RNG.normal(size=(3, 7)), RNG.normal(size=(3, 4, 7))]
            found[f"nested_{name}"] = vmap(scans.nested, (0, 0)), rows, plain, {}
            ended = vmap(scans.halving, (0, 0))
            pair = [halves, np.full_like(halves, 0.125)]
            for most in (0, 6, 1000):
                found[f"halving{most}_{name}"] = ended, pair, plain, {"most": most}
            for dtype in ("float32", "float64"):
                one = noisy_arrays(dtype, 12, 0)
                found[f"noisy_{dtype}_{name}"] = noisy, one, alone, {}
                some = noisy_arrays(dtype, 12, 5)
                each = vmap(noisy, (0, 0, None, None))
                found[f"noisy_chains_{dtype}_{name}"] = each, some, many, {}
        pair = [RNG.normal(size=(7, 33)), RNG.normal(size=(33, 4))]
        single = CudaScan(group, 1, 1, False)
        found[f"product_g{group}"] = scans.product, pair, single, {}
    return found


CASES = cases()


@pytest.fixture(scope="module")
def lowered():
    """Lower all cases once."""
    made = {}
    for name, (function, arrays, schedule, _) in CASES.items():
        program = scans.program_of(function, arrays)
        made[name] = program, cuda_lowering.lower(program, schedule)
        verify(made[name][1].kernel, "cuda")
    return made


@pytest.fixture(scope="module")
def cubins(lowered):
    """Compile all cases, some of them together; skip without a GPU."""
    arch = gpu.context().device.arch
    texts = [(name, emit(each.kernel)) for name, (_, each) in lowered.items()]
    parts = [texts[k::PROGRAMS] for k in range(PROGRAMS)]
    with ThreadPoolExecutor(PROGRAMS) as pool:
        made = pool.map(lambda part: nvrtc.compile(joined(part), arch).cubin, parts)
        return {
            name: cubin
            for part, cubin in zip(parts, made, strict=True)
            for name, _ in part
        }


def launched(case, cubin, entry, arrays, scalars):
    """Launch a lowered program on copies of its arrays; return the outputs by name."""
    program, lowered = case
    outputs = {
        output.name: np.full(output.value.shape, 77, output.value.dtype.numpy_name)
        for output in program.outputs
    }
    args = []
    for slot in lowered.slots:
        if slot.kind == "input":
            args.append(np.ascontiguousarray(arrays[slot.index]).reshape(-1))
        elif slot.kind == "output":
            args.append(outputs[program.outputs[slot.index].name].reshape(-1))
        else:
            value = scalars.get(slot.name, slot.index)
            args.append(CODES[slot.code](value))
    blocks = -(-program.chains // lowered.per_block) if lowered.per_block else 1
    gpu.launch(cubin, entry, blocks, lowered.threads, args)
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_what_the_oracle_says(lowered, cubins, name):
    """Every kind of loop by one thread a chain, parts of warps, warps and more."""
    _, arrays, _, scalars = CASES[name]
    program, _ = lowered[name]
    seen = launched(lowered[name], cubins[name], name, arrays, scalars)
    wanted = reference.evaluate(program, arrays, scalars)
    single = any(output.value.dtype.bytes == 4 for output in program.outputs)
    close = 2e-5 if single else 1e-10
    for output in program.outputs:
        if not output.hidden:
            values = seen[output.name].astype(np.float64)
            np.testing.assert_allclose(values, wanted[output.name], close, close)


@pytest.mark.parametrize("chains", [0, 1, 700])
def test_every_candidate_of_the_seeds_loop_gives_one_result(chains):
    """To a few ulp: sums are added up in other orders, noise is the same bits."""
    arch = gpu.context().device.arch
    arrays = noisy_arrays("float32", 12, chains)
    function = vmap(noisy, (0, 0, None, None)) if chains else noisy
    program = scans.program_of(function, arrays)
    every = cuda_model.candidates(program, scans.H200)[::3]
    kernels = [cuda_lowering.lower(program, knobs) for knobs in every]
    names = [f"k{place}" for place in range(len(every))]
    texts = [emit(each.kernel) for each in kernels]
    compiled = nvrtc.compile(joined(zip(names, texts, strict=True)), arch).cubin
    results = [
        launched((program, each), compiled, name, arrays, {})["out"]
        for name, each in zip(names, kernels, strict=True)
    ]
    for knobs, result in zip(every, results, strict=True):
        np.testing.assert_allclose(result, results[0], 1e-5, err_msg=knobs.label)

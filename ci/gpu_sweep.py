"""Run every candidate of the library on the GPU: right against the oracle, and how fast.

    python ci/gpu_sweep.py --out docs/results/h200-candidates.json [--arch sm_90a] [-k NAME]

Times are cold: an event before and after one launch, queued behind a write of four
times the L2, so that no launch waits for the host; the median of `--repeat`. An event
pair around a kernel that does nothing is given beside them (`null_us`) and not
subtracted. Needs a GPU, PyTorch for memory and events, and cuda.bindings.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver

from steelyard_kernels import dtypes, library, reference
from steelyard_kernels.binary import Built, Failed
from steelyard_kernels.building.build import build
from steelyard_kernels.cost import bytes_moved
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.group import Candidate, build_all
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.strategies import estimated_registers
from steelyard_kernels.targets import device, parse

LAYERNORM = (768, 1024, 1280, 1536, 1600, 2048, 2560, 4096, 5140, 12288, 16384, 20480)
CODES = {"d": ctypes.c_double, "q": ctypes.c_int64, "i": ctypes.c_int32}
CODES["?"] = ctypes.c_bool
Specs = list[tuple[tuple[int, ...], str]]


def cases() -> Iterator[tuple[KernelFunction, Specs]]:
    """Yield what is built: the sizes of the seeds, then ugly ones."""
    for hidden in LAYERNORM:
        yield library.bias_layernorm, layernorm(8192, hidden, "float16")
    for dtype in ("float32", "bfloat16"):
        yield library.bias_layernorm, layernorm(8192, 5140, dtype)
    for rows, hidden in ((1, 1), (7, 33), (3, 257), (33, 64), (129, 1000), (5, 65536)):
        for dtype in ("float16", "float32"):
            yield library.bias_layernorm, layernorm(rows, hidden, dtype)
    for n in (1, 4097, 1 << 20, 1 << 24):
        yield library.adam, [((n,), "float32")] * 3
        yield library.scale, [((n,), "float32")] * 3
        for dtype in ("float16", "float32", "float64", "bfloat16"):
            yield library.copy, [((n,), dtype)]
            yield library.triad, [((n,), dtype)] * 2
    for rows, hidden in ((8192, 768), (1024, 5140), (3, 1)):
        for dtype in ("float16", "float32", "float64"):
            yield library.softmax, [((rows, hidden), dtype)]


def layernorm(rows: int, hidden: int, dtype: str) -> Specs:
    """Return the arguments of bias_layernorm."""
    return [((rows, hidden), dtype), *[((hidden,), dtype)] * 4]


def checked(answer: tuple[Any, ...]) -> Any:
    """Return what the driver answered; raises RuntimeError with its error's name."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result.name)
    return values[0] if values else None


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Return seeded values in [0.5, 1.5) about as numbers come in practice."""
    values = np.random.default_rng(seed).random(shape) + 0.5
    values *= np.random.default_rng(seed + 1).choice([-1.0, 1.0], shape)
    if dtype == "bfloat16":
        return dtypes.to_bfloat16(values)
    return values.astype(dtype)


class Job:
    """One case's arrays on both sides, and what the oracle says they come to."""

    def __init__(self, kernel: KernelFunction, specs: Specs) -> None:
        self.kernel, self.specs = kernel, specs
        self.program = kernel.program(*specs)
        self.host = [random(s, d, 10 * i) for i, (s, d) in enumerate(specs)]
        if kernel is library.adam:
            self.host[2] = np.abs(self.host[2])  # a second moment
        self.scalars = {p.name: p.default for p in kernel.signature.scalars}
        self.sample, self.expected = self._oracle()
        self.inputs = [
            torch.from_numpy(a.copy().view(_bits(a))).cuda() for a in self.host
        ]
        self.fresh = [
            torch.empty(o.value.shape, dtype=_torch(o.value.dtype), device="cuda")
            for o in self.program.outputs
        ]

    def _oracle(self) -> tuple[Any, dict[str, Any]]:
        """Return the rows that are checked, and what they come to: ends of large cases."""
        if not self.program.outputs:
            return torch.arange(0), {}
        shape = self.program.outputs[0].value.shape
        count = shape[0]
        most = max(2, (1 << 22) // max(1, int(np.prod(shape[1:]))))
        sample = np.arange(count)
        if count > most:
            sample = np.r_[: most // 2, count - most // 2 : count]
        rows = [
            a[sample] if a.ndim == len(shape) and a.shape[0] == count else a
            for a in self.host
        ]
        specs = [(a.shape, d) for a, (_, d) in zip(rows, self.specs, strict=True)]
        few = self.kernel.program(*specs)
        return torch.from_numpy(sample), reference.evaluate(few, rows, self.scalars)

    def reset(self) -> None:
        """Put inputs back and poison outputs."""
        for tensor, array in zip(self.inputs, self.host, strict=True):
            tensor.copy_(torch.from_numpy(array.view(_bits(array))))
        for tensor in self.fresh:
            tensor.view(torch.uint8).fill_(0xFF)

    def launcher(self, built: Built, function: Any) -> Callable[[], None]:
        """Return what launches a build once on torch's stream."""
        binary = built.binary
        values: list[Any] = []
        for slot in binary.slots:
            if slot.kind == "input":
                values.append(ctypes.c_uint64(self.inputs[slot.index].data_ptr()))
            elif slot.kind == "output":
                values.append(ctypes.c_uint64(self.fresh[slot.index].data_ptr()))
            elif slot.kind == "scalar":
                values.append(CODES[slot.code](self.scalars[slot.name]))
            else:
                values.append(CODES[slot.code](slot.index))
        packed = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        extent = binary.slots[-1].index if binary.slots else 1
        grid = -(-extent // binary.per_block) if binary.per_block else 1
        stream = torch.cuda.current_stream().cuda_stream

        def launch() -> None:
            _ = values  # kept alive: the launch reads them
            checked(
                driver.cuLaunchKernel(
                    function, grid, 1, 1, binary.threads, 1, 1, 0, stream, packed, 0
                )
            )

        return launch

    def error(self) -> float:
        """Return the largest error, in epsilons of the value and of the root mean square."""
        worst = 0.0
        for place, output in enumerate(self.program.outputs):
            here = (
                self.fresh[place]
                if output.updates is None
                else self.inputs[output.updates]
            )
            got = here[self.sample.cuda()].cpu().numpy()
            dtype = output.value.dtype
            if dtype.name == "bfloat16":
                got = dtypes.from_bfloat16(got.view(np.uint16))
            else:
                got = got.view(dtype.numpy_name)
            want = np.asarray(self.expected[output.name], np.float64)
            wide = got.astype(np.float64)
            if not np.isfinite(wide).all():
                return float("inf")
            size = np.abs(want) + np.sqrt(np.mean(want**2))
            epsilon = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}.get(
                dtype.name, 2**-52
            )
            worst = max(worst, float(np.max(np.abs(wide - want) / (size * epsilon))))
        return worst


def _bits(array: Any) -> Any:
    return np.int16 if array.dtype == np.uint16 else array.dtype


def _torch(dtype: dtypes.DType) -> Any:
    names = {"bfloat16": "int16"}
    return getattr(torch, names.get(dtype.name, dtype.name))


class Cold:
    """Times launches that find nothing in the cache."""

    def __init__(self, repeat: int) -> None:
        size = 4 * torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.pairs = [
            [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for _ in range(repeat)
        ]

    def microseconds(self, launch: Callable[[], None]) -> list[float]:
        """Return one launch's time for every pair of events."""
        for before, after in self.pairs:
            self.flush.fill_(1)
            before.record()
            launch()
            after.record()
        torch.cuda.synchronize()
        return [1000 * before.elapsed_time(after) for before, after in self.pairs]


def sweep(job: Job, arch: str, cold: Cold) -> Iterator[dict[str, Any]]:
    """Build, check and time every candidate of one case."""
    target = f"cuda:{arch}"
    program = simplify(job.program)
    ranked = strategies.rank(program, device(parse(target)))
    chosen = strategies.heuristic(program, device(parse(target)))
    batch = build_all(
        [Candidate(each.label, job.program, each) for each, _ in ranked], target=target
    )
    seen: set[str] = set()
    modules: dict[bytes, Any] = {}
    for place, ((schedule, prediction), built) in enumerate(
        zip(ranked, batch.results, strict=True)
    ):
        if isinstance(built, Failed):
            yield {"schedule": schedule.label, "failed": built.error}
            continue
        if built.code_hash in seen:
            continue
        seen.add(built.code_hash)
        code = built.binary.code
        if code not in modules:
            modules[code] = checked(driver.cuModuleLoadData(code))
        entry = built.binary.entry.encode()
        function = checked(driver.cuModuleGetFunction(modules[code], entry))
        launch = job.launcher(built, function)
        job.reset()
        try:
            launch()
        except RuntimeError as refused:
            yield {"schedule": schedule.label, "failed": str(refused)}
            continue
        torch.cuda.synchronize()
        error = job.error()
        times = sorted(cold.microseconds(launch))
        blocks = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                function, built.binary.threads, 0
            )
        )
        resources = built.made.resources
        assert resources is not None
        yield {
            "schedule": schedule.label,
            "rank": place,
            "chosen": schedule == chosen,
            "predicted_us": prediction.total / 1000,
            "us": statistics.median(times),
            "us_quarters": [times[len(times) // 4], times[3 * len(times) // 4]],
            "error_epsilons": error,
            "registers": resources.registers,
            "estimated_registers": estimated_registers(program, schedule),
            "spill_stores": built.made.spill_stores,
            "local": resources.local_loads + resources.local_stores,
            "blocks_per_multiprocessor": blocks,
        }
    for module in modules.values():
        checked(driver.cuModuleUnload(module))


def main() -> None:
    """Sweep and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("-k", default="")
    parser.add_argument("--commit", help="where the machine has no history of its own")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=480.0)
    options = parser.parse_args()
    torch.cuda.init()
    cold = Cold(options.repeat)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever is installed
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    results: list[dict[str, Any]] = []
    known = {
        "command": "python ci/gpu_sweep.py",
        "commit": options.commit or commit,
        "machine": torch.cuda.get_device_name(0),
        "cuda": torch.version.cuda,
        "null_us": null(cold, options.arch),
        "cases": results,
    }
    begin = time.monotonic()
    for kernel, specs in cases():
        name = f"{kernel.name}{specs[0]}"
        if options.k not in name or time.monotonic() - begin > options.seconds:
            continue
        job = Job(kernel, specs)
        rows = list(sweep(job, options.arch, cold))
        good = [row for row in rows if "us" in row]
        fastest = min(good, key=lambda row: row["us"])
        first = next((row for row in good if row["chosen"]), good[0])
        worst = max(row["error_epsilons"] for row in good)
        moved = bytes_moved(job.program)
        results.append(
            {"kernel": kernel.name, "specs": specs, "bytes": moved, "candidates": rows}
        )
        print(  # noqa: T201
            f"{name:44} {len(good):3} codes, {len(rows) - len(good)} failed; "
            f"chosen {first['us']:8.2f} us, best {fastest['us']:8.2f} us "
            f"({fastest['schedule']}), {moved / 1e6 / fastest['us']:.2f} TB/s, "
            f"error {worst:.2f} eps",
            flush=True,
        )
        options.out.write_text(json.dumps(known, separators=(",", ":")))


def null(cold: Cold, arch: str) -> float:
    """Return what an event pair reads around a kernel that does nothing."""
    job = Job(library.empty, [])
    built = build(job.program, None, target=f"cuda:{arch}", name="empty")
    assert isinstance(built, Built)
    module = checked(driver.cuModuleLoadData(built.binary.code))
    function = checked(driver.cuModuleGetFunction(module, built.binary.entry.encode()))
    return statistics.median(cold.microseconds(job.launcher(built, function)))


if __name__ == "__main__":
    main()

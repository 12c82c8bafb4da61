"""What the model's choices take over the best that was found: replayed from measurements.

    python tests/regret.py                   # replay tests/tuned_h200.json
    python tests/regret.py --measure FILE S  # on such a GPU, in at most S seconds
    python tests/regret.py --measure FILE S linear 8x768:  # points with such words

A file has each candidate's nanoseconds by the digest of its label. To replay, nothing is
built or measured: the model of today chooses, and its choice was measured with others.
What a file has of other points stays.
"""

import json
import multiprocessing
import random
import statistics
import sys
import time
from functools import cache
from hashlib import sha256
from pathlib import Path

from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.schedule import strategies
from steelyard_kernels.schedule.schedule import Sought
from steelyard_kernels.targets import device, parse
from steelyard_lock.points import Point, spec_of
from steelyard_lock.tuning_cases import Tuned

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("tuned_h200.json")
TARGET = "cuda:sm_90a"
PRODUCTS = "tests/product_programs.py"
ATTENTION = "tests/attention_programs.py"
BERT = [
    (m, n, k)
    for m in (64, 128, 512, 4096)
    for n, k in ((768, 768), (2304, 768), (3072, 768), (768, 3072))
]
SQUARES = [(512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096)]
SKINNY = [(16, 4096, 4096), (8, 3072, 768), (4096, 64, 4096), (256, 128, 8192)]
PRIMES = [(97, 101, 131), (509, 1021, 2053), (1031, 1033, 1048), (127, 2039, 4099)]
NARROW = [(64, 768, 768), (512, 3072, 768), (4096, 2304, 768), (1024, 1024, 1024)]
LAYERS = [  # program, extent, features in and out, window
    ("window", 56, 64, 64, 3),
    ("window", 28, 128, 128, 3),
    ("window", 14, 256, 256, 3),
    ("window", 7, 512, 512, 3),
    ("strided", 28, 256, 256, 3),
    ("pointwise", 56, 256, 512, 1),
]
HEADS = [  # program, batch, heads, queries and keys, columns
    ("plain", 8, 12, 128, 64),
    ("plain", 1, 12, 512, 64),
    ("plain", 8, 12, 512, 64),
    ("plain", 4, 16, 2048, 128),
    ("causal", 4, 16, 2048, 64),
    ("causal", 2, 16, 1024, 128),
]
# Candidates that are measured: the best of the likely, of all, and any.
LIKELY, OTHERS = 26, 6
ROUNDS, LAUNCHES = 5, 4


def points():
    """Yield kernels with their arrays."""
    for place, shape in enumerate([*BERT, *SQUARES, *SKINNY, *PRIMES]):
        name = ("linear", "product")[place % 2]
        yield _product(name, shape, ("float16", "bfloat16")[place % 3 == 2])
    for name, extent, read, made, window in LAYERS:
        x, w = (32, extent, extent, read), (made, window, window, read)
        yield f"{PRODUCTS}:{name}", _specs("float16", x, w, (made,))
    for name, *outer, length, columns in HEADS:
        yield f"{ATTENTION}:{name}", _specs("float16", *[(*outer, length, columns)] * 3)
    for shape in [*NARROW, (4096, 4096, 4096), (16, 4096, 4096)]:
        yield _product("linear_in_float32", shape, "float8_e4m3fn")
    for shape in NARROW[1:]:
        yield _product("linear_as_tf32", shape, "float32")
    for shape in NARROW[1::2]:
        yield _product("linear_in_int32", shape, "int8")


def _product(name, shape, dtype):
    m, n, k = shape
    right = (k, n) if name == "product" else (n, k)
    return f"{PRODUCTS}:{name}", _specs(dtype, (m, k), right)


def _specs(dtype, *shapes):
    return tuple([f"{'x'.join(map(str, shape))}:{dtype}" for shape in shapes])


def key(label):
    """Return a label's digest."""
    return sha256(label.encode()).hexdigest()[:8]


@cache
def program_of(kernel, arrays):
    """Return a kernel's function and its program for some arrays."""
    point = Point(str(ROOT / kernel), (), tuple(map(spec_of, arrays)), TARGET)
    found = Tuned.of(point)
    return found, simplify(found.program)


def chosen(kernel, arrays):
    """Return the schedule that today's model chooses."""
    return strategies.heuristic(program_of(kernel, arrays)[1], device(parse(TARGET)))


def regrets(path):
    """Yield each point, the choice of today, and its time over the best's.

    A choice that was not measured has none: then the file has to be made again.
    """
    for point in json.loads(Path(path).read_text())["points"]:
        label = chosen(point["kernel"], tuple(point["arrays"])).label
        times = point["times"]
        over = (
            times[key(label)] / min(times.values()) - 1 if key(label) in times else None
        )
        name = point["kernel"].rpartition(":")[2]
        yield f"{name} {' '.join(point['arrays'])}", label, over


def measured(point):
    """Return the schedules of a point that are measured: the choice comes first."""
    _, program = program_of(*point)
    gpu = device(parse(TARGET))
    likely, predict = strategies._space(program, gpu, Sought(likely=True))
    best = sorted(likely, key=lambda schedule: predict(schedule).total)
    rest = [schedule for schedule, _ in strategies.rank(program, gpu)]
    some = random.Random(str(point)).sample(rest, min(OTHERS, len(rest)))
    every = (*best[:LIKELY], *rest[:OTHERS], *some)
    return list({each.label: each for each in every}.values())


def build(task):
    """Build a schedule of a point into the cache."""
    from steelyard_kernels.building.programs import build

    (kernel, arrays), schedule = task
    found = build(program_of(kernel, arrays)[0].program, schedule, target=TARGET)
    return str(getattr(found, "error", "") or "")


def measure(path, seconds, words):
    """Measure all points that there is time for, and write them."""
    began, found = time.monotonic(), list[dict]()
    every = [p for p in points() if not words or any(w in str(p) for w in words)]
    if Path(path).exists():
        found = json.loads(Path(path).read_text())["points"]
        found = [p for p in found if (p["kernel"], tuple(p["arrays"])) not in every]
    with multiprocessing.get_context("fork").Pool() as pool:
        tasks = [
            [(point, schedule) for schedule in schedules]
            for point, schedules in zip(
                every, pool.map(measured, every, 1), strict=True
            )
        ]
        builds = [pool.map_async(build, some, 1) for some in tasks]
        from steelyard_device import cuda  # after the processes began

        context = cuda.context()
        for point, some, built in zip(every, tasks, builds, strict=True):
            left = began + seconds - time.monotonic()
            if left < 0:
                break
            errors = built.get(max(left, 1))
            schedules = [s for (_, s), why in zip(some, errors, strict=True) if not why]
            times = timed(context, point, schedules)
            kernel, arrays = point
            found.append({"kernel": kernel, "arrays": arrays, "times": times})
            first = key(schedules[0].label)
            over = times[first] / min(times.values()) - 1
            best = min(times, key=times.get)
            (label,) = (s.label for s in schedules if key(s.label) == best)
            sys.stdout.write(
                f"{kernel.rpartition(':')[2]} {' '.join(arrays)}: {over:.1%} of "
                f"{times[best]} ns, {len(times)}: {schedules[0].label} | {label}\n"
            )
            sys.stdout.flush()
            write(path, found)
        pool.terminate()


def write(path, found):
    """Write measurements, a line a point."""
    lines = ",\n".join(json.dumps(point, separators=(",", ":")) for point in found)
    Path(path).write_text(f'{{"target":"{TARGET}","points":[\n{lines}\n]}}\n')


def timed(context, point, schedules):
    """Return nanoseconds of each schedule by its key, warm: medians of interleaved rounds."""
    import numpy as np

    from steelyard_device import cuda
    from steelyard_device.cuda.activity import Recorder
    from steelyard_kernels import dtypes
    from steelyard_lock.points import find

    made, rng = find(str(ROOT / point[0])), np.random.default_rng(1)
    arrays = []
    for shape, name in map(spec_of, point[1]):
        values = rng.standard_normal(shape, np.float32)
        values = values * 40 if dtypes.of(name).kind == "int" else values
        arrays.append(cuda.copy_of(context, values.astype(dtypes.of(name).numpy)))
    works = [made.bind(*arrays, schedule=schedule) for schedule in schedules]
    recorder, taken = Recorder(context), {}
    for work in works:
        work.launch()
    context.wait()
    with recorder.recording():
        for turn in range(ROUNDS):
            for place, work in enumerate(works):
                work.launch()  # warm
                with recorder.window(turn * len(works) + place):
                    for _ in range(LAUNCHES):
                        work.launch()
    context.wait()
    for number, kernels in recorder.collect().items():
        each = [kernel.end - kernel.start for kernel in kernels]
        taken.setdefault(number % len(works), []).extend(each)
    return {
        key(schedule.label): round(statistics.median(taken[place]))
        for place, schedule in enumerate(schedules)
    }


def main(path=TABLE):
    """Write a line a point, and the mean and the worst."""
    found = list(regrets(path))
    lines = [
        f"{point}: {'unknown' if over is None else f'{over:.1%}'} {label}"
        for point, label, over in found
    ]
    known = [over for *_, over in found if over is not None]
    mean, worst = statistics.fmean(known), max(known)
    lines.append(f"{len(known)} of {len(found)}: mean {mean:.1%}, worst {worst:.1%}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    else:
        main(*sys.argv[1:])

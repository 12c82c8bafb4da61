"""The texts of one build: program, schedule, loops, compiler's input and output."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from steelyard_kernels import expr, loops_print
from steelyard_kernels.build import Phases, Source, prepare
from steelyard_kernels.compiling.points import Point, ready, traced
from steelyard_kernels.errors import KernelError
from steelyard_kernels.simplify import simplify
from steelyard_kernels.targets import CPU, parse

KINDS: Final = {
    "program": "",
    "schedule": "",
    "loops": "",
    "llvm": "cpu",
    "cuda": "cuda",
    "ptx": "cuda",
    "sass": "cuda",
}
"""What can be shown, and the kind of target it needs; empty: any."""


def emitted(point: Point, what: str) -> str:
    """Return one text of a build; raises KernelError where the target has none."""
    target = parse(point.target)
    if KINDS[what] not in {"", target.kind}:
        example = CPU if KINDS[what] == CPU else "cuda:sm_90a"
        raise KernelError(
            f"--emit {what} is of {KINDS[what]} targets, {point.label} is not; name "
            f"one, such as --target {example}."
        )
    source = _source(point)
    if what == "ptx":
        return _ptx(source)
    if what == "sass":
        return _sass(source)
    return dict(_stages(source))[what]


def after_all(point: Point) -> str:
    """Return what each phase made, each under its name."""
    source = _source(point)
    texts = {"trace": expr.text(source.program), **dict(_stages(source))}
    headings = {
        "trace": "trace",
        "program": "simplify",
        "schedule": "schedule",
        "loops": "lower",
        "llvm": "emit",
        "cuda": "emit",
    }
    return "\n".join(
        f"=== {point.label} after {headings[name]} ===\n{text.rstrip()}\n"
        for name, text in texts.items()
    )


def _source(point: Point) -> Source:
    _, kernel, arrays, schedule = ready(point)
    program = traced(point, kernel, arrays)
    target = parse(point.target)
    return prepare(program, schedule, target, Phases(), aligned=True)


def _stages(source: Source) -> Iterator[tuple[str, str]]:
    yield "program", expr.text(simplify(source.program))
    chosen = source.schedule
    yield "schedule", f"{chosen.strategy} {chosen.label}\n{chosen}\n"
    yield "loops", loops_print.text(source.kernel)
    yield ("llvm" if source.target.kind == CPU else "cuda"), source.text


def _ptx(source: Source) -> str:
    from steelyard_device import nvrtc

    return nvrtc.ptx(source.text, source.target.arch)


def _sass(source: Source) -> str:
    from steelyard_device import nvrtc

    tool = nvdisasm()
    if tool is None:
        raise KernelError(
            "--emit sass needs nvdisasm, which is not installed: pip install "
            "nvidia-cuda-nvdisasm; --resources has the instruction mix without it."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(nvrtc.compile(source.text, source.target.arch).cubin)
        command = [tool, "--print-code", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(
            f"{tool} cannot read this cubin: {done.stderr.strip()}. Upgrade the package "
            "nvidia-cuda-nvdisasm to the compiler's version."
        )
    return done.stdout


def nvdisasm() -> str | None:
    """Return the disassembler of the path, or of NVIDIA's package beside us."""
    found = shutil.which("nvdisasm")
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = found or shutil.which("nvdisasm", path=f"{folder}/cu13/bin")
    return found

"""What we read of cubins, held against NVIDIA's own tools."""

import re
import shutil
import subprocess
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest
from cuda_programs import built

from steelyard_device import cubin, nvrtc

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

FAMILIES = {"CGAERRBAR": "ERRBAR"}
"""Names that one operation has by its form, and the one we give it."""


def tool(name):
    """Find a tool on the path or beside the NVRTC of a package."""
    beside = Path(nvrtc.compiler().path).parents[1] / "bin" / name
    found = shutil.which(name) or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip(f"needs {name}: pip install nvidia-cuda-{name}")
    return found


def said(name, *arguments):
    """Run a tool and return its output."""
    command = [tool(name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=nvrtc.ARCHITECTURES)
def file(request, tmp_path_factory):
    """Every program as a file, for one architecture after the other."""
    path = tmp_path_factory.mktemp(request.param) / "all.cubin"
    path.write_bytes(built(request.param).cubin)
    return path


@cache
def listings(file):
    """Return each kernel's instructions, with modifiers, as nvdisasm writes them."""
    found, entry = defaultdict(list), ""
    for line in said("nvdisasm", "-c", file).splitlines():
        if header := re.match(r"//-+ \.text\.(\S+)", line):
            entry = header[1]
        elif line := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ +)?([\w.]+)", line):
            found[entry].append(line[1])
    return found


def is_wide(instruction):
    """Whether an access is of 16 bytes or more."""
    return bool({"128", "256"} & set(instruction.split(".")))


def test_instructions_have_the_names_nvdisasm_gives_them(file):
    """Every instruction of every kernel, and none is unknown."""
    kernels = cubin.read(file.read_bytes())
    listed = listings(file)
    assert set(kernels) == set(listed)
    for entry, instructions in listed.items():
        names = Counter(
            FAMILIES.get(name, name)
            for name in (full.split(".")[0] for full in instructions)
        )
        assert dict(kernels[entry].opcodes) == names


def test_wide_accesses_are_those_nvdisasm_calls_128(file):
    """Loads, asynchronous copies and stores of global memory."""
    kernels = cubin.read(file.read_bytes())
    for entry, instructions in listings(file).items():
        wide = Counter(full.split(".")[0] for full in instructions if is_wide(full))
        assert kernels[entry].loads_128 == wide["LDG"] + wide["LDGSTS"]
        assert kernels[entry].stores_128 == wide["STG"]


def test_resources_are_those_cuobjdump_says(file):
    """From sm_90 on it adds the kilobyte that the system keeps of a block's memory."""
    kernels = cubin.read(file.read_bytes())
    pattern = (
        r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) .*CONSTANT\[0\]:(\d+)"
    )
    rows = re.findall(pattern, said("cuobjdump", "--dump-resource-usage", file))
    system = 1024 if kernels["scale"].arch in {"sm_90", "sm_100", "sm_120"} else 0
    expected = {
        (entry, it.registers, it.stack, it.shared + system, it.constant)
        for entry, it in kernels.items()
    }
    assert {(entry, *map(int, numbers)) for entry, *numbers in rows} == expected

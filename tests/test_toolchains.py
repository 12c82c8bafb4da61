"""What each kind of target brings, and what its compilers say of single kernels."""

import pytest
from cuda_programs import EMPTY, SPILL

from steelyard_kernels.emit import ENTRY
from steelyard_kernels.targets import parse
from steelyard_kernels.toolchains import TOOLCHAINS, toolchain

CUDA = parse("cuda:sm_90a")


def alone(text, name):
    """Return a text under the name that all have."""
    return text.replace(name, ENTRY)


@pytest.mark.parametrize("kind", TOOLCHAINS)
def test_every_toolchain_names_its_compiler_and_its_text(kind):
    """The text comes first, as it is; keys have both."""
    if kind != "cpu":
        pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda extra")
    target = parse("cpu" if kind == "cpu" else f"{kind}:sm_80")
    chain = toolchain(target)
    chain.preload(None)
    assert any(letter.isdigit() for letter in chain.compiler())
    assert chain.settings(target)
    own, *_ = chain.TEXTS.values()
    assert own("as it is", target) == "as it is"


def test_spills_are_with_the_code(nvrtc):
    """As its log has them, whether it was compiled alone or with others."""
    text = alone(SPILL, "spill")
    code = toolchain(CUDA).compile_text(text, CUDA)
    assert min(code.spill_stores, code.spill_loads) > 0
    assert code.phases == (("nvrtc", code.nanoseconds),)
    many = toolchain(CUDA).compile_many([("one", text)], CUDA, None)["one"]
    assert (many.spill_stores, many.spill_loads) == (
        code.spill_stores,
        code.spill_loads,
    )
    assert many.code_hash == code.code_hash


@pytest.mark.measuring
def test_who_costs_a_program_more_is_told_more(nvrtc):
    """Its own time in ptxas, and a share of the front end by its text."""
    parts = [("small", alone(EMPTY, "empty")), ("large", alone(SPILL, "spill"))]
    made = toolchain(CUDA).compile_many(parts, CUDA, None)
    assert made["large"].nanoseconds > 2 * made["small"].nanoseconds > 0

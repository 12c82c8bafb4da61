import pytest

from steelyard_kernels import library
from steelyard_kernels.building.facts import facts_of
from steelyard_kernels.errors import KernelError
from steelyard_kernels.library import examples

CUDA = "cuda:sm_90a"


def test_a_build_says_what_it_is_of_and_who_made_it():
    """A CPU's code has no registers to count."""
    built = library.copy.for_target("cpu", *examples.specs("copy")).facts()
    assert built["bytes"] == 2 * 4 * examples.AXES["n"]
    assert (built["target"], built["strategy"]) == ("cpu", "pointwise")
    assert str(built["compiler"]).startswith("llvm")
    assert "registers" not in built


def test_a_gpus_code_says_what_it_takes():
    """Registers beside the model's, bytes, and counts of instructions."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    facts = library.triad.for_target(CUDA, *examples.specs("triad")).facts()
    assert facts["registers"] > 0
    assert facts["estimated_registers"] > 0
    assert facts["spill_bytes"] == facts["stack_bytes"] == 0
    assert facts["blocks_resident"] >= 1
    assert facts["opcodes"]["EXIT"] >= 1
    assert facts["tensor_core"] == facts["local_memory"] == 0
    nothing = library.empty.for_target(CUDA).facts()
    assert "estimated_registers" not in nothing


def test_a_build_for_a_target_is_made_again_through_any_cache():
    """Its facts stay those of the first."""
    built = library.copy.for_target("cpu", *examples.specs("copy"))
    before = built.facts()
    for cache in ("cold", "warm-memory"):
        built.build(cache)
    assert built.facts() == before


def test_a_build_for_a_target_that_fails_is_one_sentence():
    """At once, and not when it is measured."""
    with pytest.raises(KernelError, match="target 'tpu' is not known"):
        library.copy.for_target("tpu", *examples.specs("copy"))
    with pytest.raises(KernelError, match="copy: got 0 arrays"):
        library.copy.for_target("cpu")


def test_facts_are_of_the_build_not_of_its_launch():
    """Threads and arrays are the launch's to say."""
    specs = [(shape, "float32") for shape, _ in examples.specs("copy")]
    assert "threads" not in facts_of(library.copy.build(*specs))

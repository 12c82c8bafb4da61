"""Which GPU a run uses, and what becomes of its cases where there is none."""

import pytest
from fakes import case_of

from steelyard.declare import plan
from steelyard.errors import USAGE, SteelyardError
from steelyard.machine import gpu_choice as gpu
from steelyard_device.cuda import Device

NO_DRIVER = "this machine has no CUDA driver: measure on the CPU."


def device(index, uuid, name="NVIDIA H200"):
    """Return a made-up GPU."""
    return Device(index, name, uuid, "sm_90a", 132, 60 << 20, 141 << 30)


FIRST = device(0, "GPU-aabb0000-1111-2222-3333-444455556666")
SECOND = device(1, "GPU-aacc0000-1111-2222-3333-444455556666")


@pytest.fixture
def seen(monkeypatch):
    """Return a function that says which GPUs there are."""

    def say(*devices, why=""):
        monkeypatch.setattr(gpu, "_seen", lambda: (devices, why))

    return say


def on_gpu(b):
    """Declare a case of a GPU."""
    b.on("cuda")
    return on_cpu(b)


def on_cpu(b):
    """Declare a case of the CPU."""
    x = b.input((4,))
    y = b.output((4,))
    return b.launch(print, x, out=y)


def broken(b):
    """Fail to declare anything."""
    raise RuntimeError("no library")


@pytest.mark.parametrize(
    ("bodies", "devices", "kept", "left"),
    [
        ([on_cpu, on_gpu, on_cpu], [], [0, 2], f"1 case needs a GPU: {NO_DRIVER}"),
        ([on_gpu] * 3, [], [], f"3 cases need a GPU: {NO_DRIVER}"),
        ([on_cpu, on_gpu], [FIRST], [0, 1], ""),
        ([broken], [], [0], ""),  # measuring it will say why
    ],
)
def test_cases_of_a_gpu_are_left_out_with_a_sentence_where_there_is_none(
    seen, bodies, devices, kept, left
):
    """Never a failure, never silent; others stay in their order."""
    seen(*devices, why="" if devices else NO_DRIVER)
    cases = [case_of(body) for body in bodies]
    assert plan.able(cases) == ([cases[place] for place in kept], left)


def test_without_cases_of_a_gpu_nobody_asks_for_one(monkeypatch):
    """The driver takes 0.2 s to start."""

    def asked():
        raise AssertionError("the driver was asked")

    monkeypatch.setattr(gpu, "_seen", asked)
    cases = [case_of(on_cpu)]
    assert plan.able(cases) == (cases, "")


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ("0", 0),
        ("1", 1),
        ("GPU-aabb", 0),
        ("gpu-AACC", 1),
        ("aacc", 1),
        ("aabb0000-1111", 0),
        ("12345678", 2),  # there are no ten million GPUs
    ],
)
def test_a_gpu_is_named_by_its_index_or_the_beginning_of_its_uuid(seen, asked, index):
    """As nvidia-smi prints it, with or without the mark, in any case."""
    seen(FIRST, SECOND, device(2, "GPU-12345678-0000"))
    assert gpu.choose(asked) == index


@pytest.mark.parametrize(("asked", "what"), [("2", "no GPU"), ("aa", "2 GPUs")])
def test_a_name_of_none_or_several_is_refused_with_those_there_are(seen, asked, what):
    """The sentence lists them."""
    seen(FIRST, SECOND)
    with pytest.raises(SteelyardError, match=f"names {what}, .*0 .*1 ") as error:
        gpu.choose(asked)
    assert error.value.exit_code == USAGE


def test_without_any_gpu_a_choice_says_why(seen):
    """The reason is the driver's."""
    seen(why=NO_DRIVER)
    with pytest.raises(SteelyardError, match="no CUDA driver"):
        gpu.choose()


def test_the_least_used_gpu_is_taken_and_the_first_of_equals(seen):
    """By the work it does, then by the memory in use."""
    seen(FIRST, SECOND)
    use = {FIRST.uuid: (0.0, 5e9), SECOND.uuid: (0.0, 4e9)}
    assert gpu.choose(use=use.get) == 1
    assert gpu.choose(use={**use, SECOND.uuid: (90.0, 0.0)}.get) == 0
    assert gpu.choose(use=lambda _: (0.0, 0.0)) == 0


def test_of_one_gpu_nobody_asks_how_busy_it_is(seen):
    """There is no choice."""
    seen(FIRST)
    assert gpu.choose(use=lambda _: pytest.fail("asked")) == 0


def test_a_stored_uuid_is_hashed():
    """A published run does not tell the GPU's own id, but two of one are the same."""
    assert gpu.hashed(FIRST.uuid) != gpu.hashed(SECOND.uuid)
    assert len(gpu.hashed(FIRST.uuid)) == 12
    assert "aabb" not in gpu.hashed(FIRST.uuid)

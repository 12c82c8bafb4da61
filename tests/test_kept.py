"""Small cubins that are compiled once a machine."""

import pytest

from steelyard_device import nvrtc
from steelyard_device.cuda import kept
from steelyard_device.errors import CompileError

TEXT = 'extern "C" __global__ void nothing() {}'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Keep cubins here; each call is a process's first."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    kept.cubin.cache_clear()
    yield tmp_path / "probes"
    kept.cubin.cache_clear()


@pytest.fixture
def compiled(monkeypatch):
    """Write down what is compiled."""
    texts = []
    real = nvrtc.compile

    def compiling(text, arch):
        texts.append((text, arch))
        return real(text, arch)

    monkeypatch.setattr(nvrtc, "compile", compiling)
    return texts


def again(text=TEXT, arch="sm_90a"):
    """Ask as another process would."""
    kept.cubin.cache_clear()
    return kept.cubin(text, arch)


def test_the_second_process_compiles_nothing(folder, compiled):
    """And gets the same bytes; another text or arch is another file."""
    first = again()
    assert again() == first
    assert len(compiled) == 1
    again(arch="sm_80")
    again(text=TEXT.replace("nothing", "else_"))
    assert len(compiled) == 3
    assert len(list(folder.glob("??/*.build"))) == 3


def test_a_text_that_is_refused_leaves_no_file(folder):
    """Neither a cubin nor half of one."""
    with pytest.raises(CompileError):
        again(text="nonsense")
    assert not folder.exists()

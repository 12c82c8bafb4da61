import ctypes
import re

import pytest
import shell
from msgspec.structs import replace

from steelyard_device import llvm
from steelyard_device.errors import DeviceError

ANSWER = "define i32 @answer() { ret i32 42 }"


def call(address):
    """Call loaded code that takes nothing and returns an i32."""
    return ctypes.CFUNCTYPE(ctypes.c_int32)(address)()


def test_our_own_texts_are_assembled_once_a_machine(tmp_path, monkeypatch):
    """Another text, machine or build of LLVM is assembled anew."""
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    seen, assemble = [], llvm.assemble
    monkeypatch.setattr(
        llvm, "assemble", lambda text, **how: seen.append(text) or assemble(text, **how)
    )
    for _ in range(2):
        assert call(llvm.own(ANSWER, ["answer"])["answer"]) == 42
    assert len(seen) == 1
    other = ANSWER.replace("42", "43")
    assert call(llvm.own(other, ["answer"])["answer"]) == 43
    host = replace(llvm.host(), features=frozenset())
    with monkeypatch.context() as changed:
        changed.setattr(llvm, "host", lambda: host)
        llvm.own(ANSWER, ["answer"])
    with monkeypatch.context() as changed:
        changed.setattr("llvmlite.__version__", "0")
        llvm.own(ANSWER, ["answer"])
    assert len(seen) == 4


def test_programs_with_the_same_entry_live_side_by_side():
    """Candidates of one kernel share its name, and each keeps its own code."""
    texts = [f"define i32 @same() {{ ret i32 {k} }}" for k in range(3)]
    addresses = [llvm.link(llvm.assemble(t), ["same"])["same"] for t in texts]
    assert [call(address) for address in addresses] == [0, 1, 2]


def test_one_object_may_have_several_entries():
    """Every entry that is asked for has its address."""
    text = "define i32 @one() { ret i32 1 }\ndefine i32 @two() { ret i32 2 }"
    found = llvm.link(llvm.assemble(text), ["two", "one"])
    assert {name: call(address) for name, address in found.items()} == {
        "one": 1,
        "two": 2,
    }


def test_the_same_text_gives_the_same_code():
    """Bytes depend on the text alone, so that a hash can stand for a kernel."""
    assert llvm.assemble(ANSWER) == llvm.assemble(ANSWER)


def test_phases_are_told_in_order_with_their_time():
    """A recorder hears of each phase once; nanoseconds are whole and not negative."""
    heard = []
    llvm.assemble(ANSWER, lambda name, spent: heard.append((name, spent)))
    assert [name for name, _ in heard] == ["parse", "verify", "codegen"]
    assert all(isinstance(spent, int) and spent >= 0 for _, spent in heard)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("define void @f() { ret i32 0 }", "value doesn't match function result"),
        ("", None),
        ("define i32 @f() { %a = add i32 %a, 1\n ret i32 %a }", "own value"),
        ("define void @f() { call void @g()\n ret void }", "@g"),
        ("this is no program", "expected top-level entity"),
    ],
)
def test_what_is_no_program_is_rejected_in_llvms_words(text, said):
    """The error is the device's and carries what LLVM saw; empty text is legal."""
    if said is None:
        assert llvm.assemble(text)
        return
    with pytest.raises(llvm.LLVMError, match=re.escape(said)) as caught:
        llvm.assemble(text)
    assert isinstance(caught.value, DeviceError)


def test_a_failed_link_costs_no_later_one():
    """The first version gave every later library the failed one's name."""
    for bad in (b"", b"no object", llvm.assemble(ANSWER)[:80]):
        with pytest.raises(llvm.LLVMError, match="linking f failed"):
            llvm.link(bad, ["f"])
    with pytest.raises(llvm.LLVMError, match="Symbols not found"):
        llvm.link(llvm.assemble(ANSWER), ["question"])
    assert call(llvm.link(llvm.assemble(ANSWER), ["answer"])["answer"]) == 42


def test_threads_may_begin_together():
    """Each had a session of its own, and all but one were freed with their code."""
    script = """
import ctypes
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from steelyard_device import llvm
together = Barrier(32)
def linked(k):
    together.wait()
    code = llvm.assemble(f"define i32 @f{k}() {{ ret i32 {k} }}")
    return llvm.link(code, [f"f{k}"])[f"f{k}"]
with ThreadPoolExecutor(32) as pool:
    addresses = list(pool.map(linked, range(32)))
print(*(ctypes.CFUNCTYPE(ctypes.c_int32)(address)() for address in addresses))
"""
    done = shell.python("-c", script, check=True)
    assert done.stdout.split() == [str(k) for k in range(32)]


CROWDED = """
import ctypes
from itertools import pairwise
from steelyard_device import llvm

def linked(lines):
    body = "".join(f"store volatile i32 {k}, ptr %a\\n" for k in range(lines))
    text = (
        "@table = private constant [3 x i32] [i32 40, i32 41, i32 42]\\n"
        "define i32 @f(i32 %k) { %a = alloca i32\\n" + body +
        "%p = getelementptr [3 x i32], ptr @table, i32 0, i32 %k\\n"
        "%v = load i32, ptr %p\\nret i32 %v }"
    )
    return llvm.link(llvm.assemble(text), ["f"])["f"]

first = linked(1)
PAGE, TOP, FAR = 4096, 0x7FFFFFFFF000, 0x100000000000
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
hole = libc.mmap(0, 2 * PAGE, 0, 0x22, -1, 0)
FLAGS = 0x100000 | 0x4000 | 0x22  # fixed, no replacing, no swap, private, anonymous
taken = [(0, 1 << 16), (FAR, FAR + (1 << 30)), (TOP, TOP)]
for line in open("/proc/self/maps"):
    low, high = (int(word, 16) for word in line.split()[0].split("-"))
    taken.append((low, high))
for (_, low), (high, _) in pairwise(sorted(taken)):
    if low < high <= TOP:
        libc.mmap(low, high - low, 0, FLAGS, -1, 0)
libc.munmap(ctypes.c_void_p(hole), ctypes.c_size_t(2 * PAGE))
far = linked(4000)
assert abs(far - first) > 1 << 32, (hex(far), hex(first))
print(ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(far)(2))
"""
"""Leaves two pages near loaded code, enough for constants, and a gigabyte far away."""


def test_code_lies_near_its_constants_where_addresses_are_scarce():
    """As in a process whose GPU's driver has taken most of them."""
    done = shell.python("-c", CROWDED)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_the_host_is_described():
    """A vector is one of the widths we know, and follows from the features."""
    host = llvm.host()
    assert host.architecture in host.triple
    assert host.cpu
    wide = 64 if "avx512f" in host.features else 32 if "avx2" in host.features else 16
    assert host.vector_bytes == wide

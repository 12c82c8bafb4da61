"""A kernel's code, inputs and measurement as one file, and its replay."""

import base64
import hashlib
import json
import re
import subprocess
import zipfile

import numpy as np
import pytest
import shell

from steelyard.declare import discovery
from steelyard.declare.plan import Settings
from steelyard.errors import BenchmarkError, SteelyardError
from steelyard.gate import blocks
from steelyard.machine import trust
from steelyard.measure.prepared import PreparedCase, static_facts
from steelyard.prepare import capsule_work
from steelyard.prepare import capsules as format_of
from steelyard.prepare.capsules import write
from steelyard.report import text
from steelyard.store import capsules, private
from steelyard.store.store import Store
from steelyard_kernels.artifact import digest

SUITE = """
import numpy as np
from steelyard import benchmark
from steelyard_kernels import array as xp
from steelyard_kernels.function import kernel


@kernel
def scaled(x, *, s=2.0):
    return KERNEL


@benchmark(n=[64, 4096])
def scale(b, n):
    x = b.input((n,), "float32")
    y = b.output((n,), "float32")
    b.check(lambda x: 3.0 * x, x)
    b.mode("kernel/warm")
    return b.launch(scaled, x, out=y, s=3.0)


@benchmark()
def update(b):
    a = b.inout((512,), "float32")
    y = b.input((512,), "float32", dist="uniform")
    b.check(lambda a, y: a + y, a, y)
    return b.launch(added, a, y)


@kernel
def chain(x, w):
    y = x @ w
    return (y - xp.mean(y, axis=-1, keepdims=True)) @ w


@benchmark()
def products(b):
    x = b.input((24, 48), "float32")
    w = b.input((48, 48), "float32")
    y = b.output((24, 48), "float32")
    b.check(centred, x, w, atol=1e-3)
    b.mode("kernel/warm")
    return b.launch(chain, x, w, out=y)


def centred(x, w):
    y = x @ w
    return (y - y.mean(axis=-1, keepdims=True)) @ w


@kernel
def added(a, y):
    return {"a": a + y}


@benchmark()
def python(b):
    x = b.input((8,), "float32")
    y = b.output((8,), "float32")
    return b.launch(np.copyto, y, x)


@kernel
def turned(x):
    return xp.fori_loop(0, 3, lambda i, c: xp.roll(c, 1) * 0.5, x)


@benchmark()
def turns(b):
    x = b.input((5000,), "float32")
    return b.launch(turned, x)
"""

QUICK = ("--blocks", "1", "--timeout", "600")


def steelyard(*words, code=0):
    """Run a command in this process; return all that it said."""
    return shell.command(*words, code=code).output


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with a suite, and the capsules of two of its cases."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "suite.py").write_text(SUITE.replace("KERNEL", "s * x"))
    data = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    np.save(folder / "mine.npy", data)
    for name, words in {
        "scale": ("scale[n=64]",),
        "update": ("update", "--mode", "kernel/warm,latency/warm"),
        "products": ("products",),
        "data": ("scale[n=64]", "--input", f"x=@{folder}/mine.npy"),
    }.items():
        where = ("-o", folder / f"{name}.syc", "--store", folder / "s.db")
        steelyard("capsule", *words, folder / "suite.py", *QUICK, *where)
    return folder


@pytest.fixture
def replay(project, tmp_path, monkeypatch):
    """Replay a capsule of the project's elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    where = (*QUICK, "--store", tmp_path / "r.db")
    return lambda name, *words, code=0: steelyard(
        "replay", project / f"{name}.syc", *words, *where, code=code
    )


@pytest.mark.parametrize("name", ["scale", "update", "data", "products"])
def test_a_replay_measures_the_same_code_on_the_same_inputs(name, replay, tmp_path):
    """Checked against the rows that were known; beside the times of then.

    It is no history of the checkout: its run is found by its tags.
    """
    said = replay(name, "--trust")
    assert "trusted by --trust" in said
    assert re.search(r"ratio: time of new / base", said)
    assert "same code" in said
    for other in ("other inputs", "other source", "wrong", "unchecked"):
        assert other not in said
    assert said.index("base: ") < said.index("new: ") < said.rindex("kernel/warm")
    said = steelyard("history", "--store", tmp_path / "r.db", code=4)
    assert "no run" in said
    with Store.open(f"sqlite:///{tmp_path}/r.db") as store:
        ((plain, digest),) = [head.tags for head in store.heads()]
    assert plain == "replay"
    assert re.fullmatch("replay/[0-9a-f]{32}", digest)


def test_a_replay_of_one_mode_lacks_no_other(replay):
    """What was not asked for is not missing."""
    said = replay("update", "--trust", "--mode", "kernel/warm")
    assert "latency/warm" not in said.partition("new: ")[2]


def test_suites_without_a_build_to_stand_beside_are_refused(replay):
    """The capsule alone is measured, whatever lies there."""
    assert "pass --beside" in replay("scale", "suite.py", "--trust", code=4)


def test_two_capsules_are_explained_without_running_them(project, monkeypatch):
    """What differs between their measurements."""
    monkeypatch.setattr(subprocess, "Popen", None)
    said = steelyard("explain", project / "scale.syc", project / "data.syc")
    assert "kernel/warm: B takes" in said
    assert "other inputs" in said


def test_nothing_runs_before_somebody_vouches_for_it(replay, monkeypatch):
    """What it holds is shown, and no process is started."""
    monkeypatch.setattr(subprocess, "Popen", None)
    said = replay("scale", code=4)
    assert "capsule of scale[n=64]" in said
    assert "nothing of it was run" in said


def test_what_is_trusted_is_what_runs(project, tmp_path, monkeypatch):
    """A file that another takes the place of meanwhile is read once."""
    place = tmp_path / "x.syc"
    place.write_bytes((project / "scale.syc").read_bytes())
    read, seen = capsules.read, []

    def swapped(path):
        found = read(path)
        seen.append(path)
        place.write_bytes((project / "update.syc").read_bytes())
        return found

    monkeypatch.setattr(capsules, "read", swapped)
    where = ("--store", tmp_path / "s.db")
    said = steelyard("replay", place, "--trust", *QUICK, *where)
    assert len(seen) == 1
    assert "scale[n=64]" in said
    assert "update" not in said


def test_a_capsule_has_no_path_of_the_machine(project):
    """Nor what a person is called."""
    for name in ("scale", "data"):
        found = capsules.read(project / f"{name}.syc")
        with zipfile.ZipFile(project / f"{name}.syc") as box:
            text = box.read("manifest.json").decode()
        assert str(project) not in text + repr(found.run) + repr(found.trials)


def test_tolerances_of_its_maker_are_said(project, tmp_path):
    """With any, wrong results pass."""
    found = capsules.read(changed(project, tmp_path, set_("check", "rtol", to=9.5)))
    *_, last = text.capsule(found.capsule)
    assert last.startswith("its results may be off by rtol 9.5: its maker's")
    assert len(text.capsule(capsules.read(project / "scale.syc").capsule)) == 2


def test_a_store_of_sqlite_is_a_path_too():
    """A command names it by its URL."""
    said = "steelyard capsule x --store sqlite:////home/me/s.db"
    assert private.anonymous(said) == "steelyard capsule x --store sqlite:///.../s.db"
    assert private.anonymous("sqlite:///s.db") == "sqlite:///s.db"


def test_wrong_results_are_found_by_the_known_rows(project, tmp_path):
    """A capsule whose rows say something else fails as a wrong kernel does."""
    found = capsules.read(project / "scale.syc").capsule
    members = dict(found.members)
    places, rows = found.known(0)
    members["check/0.wanted"] = (rows + 1).tobytes()
    content = {n: v for n, v in found.manifest.items() if n != "members"}
    changed = format_of.read(write(content, members))
    case = capsule_work.unpack(changed, tmp_path).case()
    with pytest.raises(BenchmarkError, match="y is wrong in 64 of 64 elements"):
        PreparedCase(case, Settings())
    assert len(places) == 64


@pytest.mark.parametrize(
    ("case", "why"),
    [("python", "calls Python"), ("turns", "repeats launches of a loop")],
)
def test_other_work_has_no_capsule(project, tmp_path, case, why):
    """Said before anything is measured, and nothing is written."""
    place = tmp_path / "p.syc"
    where = ("-o", place, "--store", tmp_path / "s.db")
    said = steelyard("capsule", case, project / "suite.py", *QUICK, *where, code=2)
    assert why in said
    assert "kernel/cold" not in said
    assert not place.exists()
    assert not (tmp_path / "s.db").exists()


def test_a_word_that_names_several_cases_is_refused(project, tmp_path):
    """With their ids."""
    where = ("-o", tmp_path / "p.syc", "--store", tmp_path / "s.db")
    said = steelyard("capsule", "scale", project / "suite.py", *where, code=4)
    assert "scale[n=64], scale[n=4096]" in said.replace(
        "scale[n=4096], scale[n=64]", "scale[n=64], scale[n=4096]"
    )


@pytest.fixture
def checkout(project, tmp_path):
    """Return a git repository whose suite builds another kernel than the capsule's."""
    root = tmp_path / "checkout"
    root.mkdir()
    shell.git(root, "init", "-q")
    for kernel in ("s * x", "s * xp.abs(x) * xp.sign(x)"):
        (root / "suite.py").write_text(SUITE.replace("KERNEL", kernel))
        shell.git(root, "add", ".")
        shell.git(root, "commit", "-qm", kernel)
    return root


def test_a_gate_takes_a_capsule_for_its_base(project, checkout, monkeypatch):
    """Without --trust it has no verdict; the same code needs no measuring."""
    monkeypatch.chdir(checkout)
    words = ("gate", project / "scale.syc", "suite.py", "--store", checkout / "g.db")
    assert "nothing of it was run" in steelyard(*words, code=4)
    shell.git(checkout, "checkout", "-q", "HEAD~1")
    said = steelyard(*words, "--trust")
    assert "identical code" in said


def test_todays_build_stands_beside_it_in_turn(replay, checkout, monkeypatch):
    """Each in its own process; the ending is a gate's."""
    monkeypatch.chdir(checkout)
    beside = ("scale", "suite.py", "--trust", "--beside")
    said = replay(*beside, ".", "--budget", "1", code={0, 1, 3})
    assert (
        said.index("gate/base") < said.index("gate/head") < said.rindex("kernel/warm")
    )
    assert "identical code" in replay(*beside, "HEAD~1")


def test_a_capsule_is_confined():
    """Its process can take no more memory than its buffers and some to spare."""
    program = (
        "import resource, pathlib, sys\n"
        "from steelyard.process import capsules\n"
        "class Sealed:\n    class capsule:\n        nbytes = 1 << 20\n"
        "    of = classmethod(lambda c, p: c)\n"
        "capsules.Sealed, capsules.SPARE = Sealed, 1 << 30\n"
        "capsules.confine(pathlib.Path())\n"
        "try:\n    bytearray(2 << 30)\nexcept MemoryError:\n    print('refused')\n"
    )
    assert shell.python("-c", program, check=True).stdout == "refused\n"


def test_a_capsule_that_does_not_end_is_ended(project, tmp_path, monkeypatch):
    """A launch that never returns costs its worker, after --timeout."""
    found = capsules.read(project / "scale.syc").capsule
    code = found.members["code"]
    content = json.loads(json.dumps(dict(found.manifest)))
    del content["members"]
    symbol = content["launch"]["entry"].encode()
    assert symbol in code
    at = text_of(code)
    looped = code[:at] + b"\xeb\xfe" + code[at + 2 :]  # jmp to itself (x86-64)
    if not llvm_host().startswith("x86_64"):
        pytest.skip("writes an instruction of x86-64")
    content["launch"]["facts"]["code_hash"] = digest(looped)
    place = tmp_path / "x.syc"
    place.write_bytes(write(content, {**found.members, "code": looped}))
    words = ("--trust", "--store", tmp_path / "s.db", *QUICK, "--timeout", "5")
    said = steelyard("replay", place, *words, code=2)
    assert "no answer within 5 s" in said


def llvm_host():
    """Return this machine's triple."""
    from steelyard_device import llvm

    return llvm.host().triple


def text_of(code):
    """Return where the instructions of an object file begin (ELF64)."""
    at = int.from_bytes(code[40:48], "little")
    size, count = (int.from_bytes(code[i : i + 2], "little") for i in (58, 60))
    for number in range(count):
        head = code[at + number * size :][:size]
        flags = int.from_bytes(head[8:16], "little")
        if flags & 4 and int.from_bytes(head[32:40], "little"):
            return int.from_bytes(head[24:32], "little")
    raise AssertionError("there is none")


def test_instructions_that_this_processor_lacks_are_named(project, tmp_path):
    """Before the code is loaded."""
    found = capsules.read(project / "scale.syc").capsule
    content = {n: v for n, v in found.manifest.items() if n != "members"}
    content["features"] = [*content["features"], "avx10.9", "sgx9"]
    changed = format_of.read(write(content, found.members))
    case = capsule_work.unpack(changed, tmp_path).case()
    with pytest.raises(BenchmarkError, match=r"processor with avx10\.9, which"):
        PreparedCase(case, Settings())


def changed(project, tmp_path, edit, name="scale"):
    """Write a capsule whose content or members were changed under right digests."""
    found = capsules.read(project / f"{name}.syc").capsule
    content = json.loads(json.dumps(dict(found.manifest)))
    del content["members"]
    members = dict(found.members)
    edit(content, members)
    place = tmp_path / "x.syc"
    place.write_bytes(write(content, members))
    return place


def set_(*path, to):
    """Return an edit of one value of a content."""

    def edit(content, _members):
        *above, last = path
        for key in above:
            content = content[key]
        content[last] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (set_("handles", 0, "role", to="spare"), "role"),
        (set_("handles", 0, "dtype", to="object"), "dtype"),
        (set_("handles", 0, "shape", to=[2**31 - 1] * 3), "larger than any memory"),
        (set_("handles", 0, "recipe", to=[["dist", "chaos"]]), "a recipe that is none"),
        (set_("handles", 0, "recipe", to=[["file", "/etc/passwd"], ["constant", False]]), "members are others"),
        (set_("arrays", 0, "handle", to="z"), "which is no handle"),
        (set_("arrays", 0, "name", to="../x"), "arrays"),
        (set_("launch", "slots", 0, to=["input", "nobody", 0]), "which is no array"),
        (set_("launch", "slots", to=[]), "0 slots"),
        (set_("launch", "slots", 0, to=["scalar", "x", -1]), "slot 0"),
        (set_("launch", "slots", 0, to=["bytes", "x", "00"]), "kind bytes"),
        (set_("launch", "threads", to=3), "threads"),
        (set_("launch", "entry", to="system"), "has no system"),
        (set_("launch", "facts", "bytes", to="many"), "facts.bytes"),
        (set_("device", to="cuda"), "has no"),
        (set_("check", "results", to=[]), "members are others"),
        (set_("case", to="other"), "not of its case"),
        (set_("seed", to=-1), "seed"),
        (lambda _c, m: m.update(code=b"\x7fELF\2\1" + bytes(64)), "no object file"),
        (lambda _c, m: m.update(code=m["code"] + b"\0"), "not facts.code_hash"),
        (set_("launch", "facts", "code_hash", to="0" * 32), "not facts.code_hash"),
        (lambda c, _m: c["launch"]["facts"].pop("code_hash"), "not facts.code_hash"),
        (lambda _c, m: m.update({"check/0.indices": b"\xff" * 512}), "outside"),
        (lambda _c, m: m.update({"check/0.wanted": b""}), "another length"),
        (lambda _c, m: m.update({"run.json": b"{}"}), "not an exported run"),
        (lambda _c, m: m.update({"more": b""}), "members are others"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused_by_name(
    edit, says, project, tmp_path
):
    """Under digests that are right: nobody but its maker vouches for a capsule."""
    with pytest.raises(SteelyardError, match=re.escape(says)):
        capsules.read(changed(project, tmp_path, edit))


def test_a_capsule_of_several_launches_has_each_with_its_code(project, tmp_path):
    """In order, with the memory between; no other code, and no place behind an array."""
    manifest = capsules.read(project / "products.syc").capsule.manifest
    launches = manifest["launch"]["launches"]
    assert manifest["launch"]["facts"]["schedule"] == f"{len(launches)} launches"
    (between,) = [one for one in manifest["arrays"] if one["handle"] is None]
    assert between["name"] == ".workspace"
    with zipfile.ZipFile(project / "products.syc") as box:
        assert json.loads(box.read("manifest.json"))["format"] == 2
    place, slot = next(
        (place, slot)
        for place, slot in enumerate(launches[0]["slots"])
        if slot[1] == ".workspace"
    )
    beyond = [*slot[:2], between["bytes"] + 1]
    for path, to, says in (
        ((0, "slots", place), beyond, "takes .workspace, which is no array"),
        ((1, "code"), [0, 1], "no object file"),
        ((1, "code"), launches[0]["code"], "not facts.code_hash"),
        ((1, "threads"), 3, "threads"),
        ((), [], "it has 0 launches, not 1 to"),
    ):
        edit = set_("launch", "launches", *path, to=to)
        with pytest.raises(SteelyardError, match=re.escape(says)):
            capsules.read(changed(project, tmp_path, edit, "products"))


def test_an_archive_that_promises_too_much_is_not_unpacked(project, tmp_path):
    """A bomb, a member twice, and one that another program encrypted."""
    place = tmp_path / "x.syc"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("code", bytes(format_of.BOUNDS["code"] + 1))
    with pytest.raises(SteelyardError, match="'code' is too large"):
        capsules.read(place)
    with zipfile.ZipFile(place, "w") as box:
        box.writestr("code", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            box.writestr("code", b"2")
    with pytest.raises(SteelyardError, match="there twice"):
        capsules.read(place)
    for junk in (b"junk", bytes(22)):
        place.write_bytes((project / "scale.syc").read_bytes() + junk)
        with pytest.raises(SteelyardError, match="bytes follow the archive"):
            capsules.read(place)
    place.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(SteelyardError, match="this is no capsule"):
        capsules.read(place)


class Signing:
    """A key as minisign has it, and files that it signs."""

    number = b"\1\2\3\4\5\6\7\x08"

    def __init__(self, seed):
        nacl = pytest.importorskip("nacl.signing", reason="pip install pynacl")
        self.key = nacl.SigningKey(bytes([seed]) * 32)

    @property
    def public(self):
        """The line of a list of keys."""
        return base64.b64encode(
            b"Ed" + self.number + bytes(self.key.verify_key)
        ).decode()

    def sign(self, path):
        """Write a signature of a file's hash beside it."""
        hashed = hashlib.blake2b(path.read_bytes()).digest()
        signature = self.key.sign(hashed).signature
        over = self.key.sign(signature + b"made by a test").signature
        first = base64.b64encode(b"ED" + self.number + signature).decode()
        lines = "untrusted comment: x", first, "trusted comment: made by a test"
        second = base64.b64encode(over).decode()
        path.with_name(path.name + ".minisig").write_text(
            "\n".join((*lines, second, ""))
        )


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Return the user's list of keys."""
    place = tmp_path / "trusted_keys"
    monkeypatch.setattr(trust, "keys_file", lambda: place)
    return place


MINISIGN = {
    "hashed": (
        "untrusted comment: signature from minisign secret key\n"
        "RURU/OUX5YTheC66+fzP11i46MilLuNnNxmA0HfVwhGkWb3ivXz1CcEeDa6+VwU8FdasX4EgsLEZAz+WNNVKgu8kVRHlNCPCnQQ=\n"
        "trusted comment: hashed\n"
        "0KpXkFT31vwbnAEeeJpMTSy5tYuCr38yOABGbPLqBx/3mH4Wi+rIx4Q+i3bmEU4KXud3UfgHOaCfckfpgtBMAQ==\n"
    ),
    "raw": (
        "untrusted comment: signature from minisign secret key\n"
        "RWRU/OUX5YTheHVAKNasqZaYNXnHnNxJj8p8XZhon+JTEz2psDxHwpthzcZiuR0TyVSdeptbR53Y3wCbZ0b9M7VVBdbgTMhQigM=\n"
        "trusted comment: raw\n"
        "AV6JfJlWSG4PvJShy3n5DZFq54KOQ9CMJEue5z5Qtji3FVdii3+I0PowOnO3YKzxLLlnMeddjEwI/5wfQLY+AA==\n"
    ),
}
"""What minisign 0.11 writes of a file that holds ``capsule``, with -l for ``raw``."""


@pytest.mark.parametrize("kind", MINISIGN)
def test_what_minisign_writes_by_a_listed_key_is_trust(kind, listed, tmp_path):
    """By the number that minisign shows of the key; of the bytes, or of their hash."""
    pytest.importorskip("nacl.signing", reason="pip install pynacl")
    path, key = (
        tmp_path / "x.syc",
        "RWRU/OUX5YTheAAWJmWTirgOct/pKVzfBwYoxzZDdxKhOk2SiaK8egMm",
    )
    assert trust.signer(path, b"") is None
    (tmp_path / "x.syc.minisig").write_text(MINISIGN[kind])
    with pytest.raises(SteelyardError, match=r"signed by key 78E184E517E5FC54, which"):
        trust.signer(path, b"capsule")
    listed.write_text(f"# mine\nuntrusted comment: x\n{key}\n")
    assert trust.signer(path, b"capsule") == trust.Signer("78E184E517E5FC54", kind)
    with pytest.raises(SteelyardError, match="is not of"):
        trust.signer(path, b"another")


def test_no_other_signature_is(listed, tmp_path):
    """Of other bytes, by another key of that number, with another comment, cut off."""
    mine, path = Signing(1), tmp_path / "x.syc"
    signed = tmp_path / "x.syc.minisig"
    path.write_bytes(b"capsule")
    listed.write_text(mine.public)
    mine.sign(path)
    with pytest.raises(SteelyardError, match=r"is not of x\.syc as it is"):
        trust.signer(path, b"capsulE")
    whole = signed.read_text()
    signed.write_text(whole.replace("made by", "made for"))
    with pytest.raises(SteelyardError, match=r"is not of x\.syc as it is"):
        trust.signer(path, b"capsule")
    Signing(2).sign(path)
    with pytest.raises(SteelyardError, match=r"is not of x\.syc as it is"):
        trust.signer(path, b"capsule")
    for cut in ("", whole[:150], whole.replace("R", "!"), whole.replace("RUQ", "QUQ")):
        signed.write_text(cut)
        with pytest.raises(SteelyardError, match="no signature of minisign's"):
            trust.signer(path, b"capsule")
    signed.write_text(whole)
    listed.write_text("RWnonsense")
    with pytest.raises(SteelyardError, match="trusted_keys:1: 'RWnonsense' is no"):
        trust.signer(path, b"capsule")


def test_a_signed_capsule_runs_without_a_word(project, replay, listed):
    """And a changed one does not, whatever the user says."""
    mine, path = Signing(1), project / "scale.syc"
    listed.write_text(mine.public)
    signed = path.with_name("scale.syc.minisig")
    try:
        mine.sign(path)
        said = replay("scale")
        assert "signed by key 0807060504030201: made by a test" in said
        mine.sign(project / "update.syc")
        (project / "update.syc.minisig").replace(signed)
        said = replay("scale", "--trust", code=4)
        assert "is not of scale.syc as it is" in said
    finally:
        signed.unlink()


def extent(content, _members):
    """Change a number that the code gets."""
    slot = next(
        one for one in content["launch"]["slots"] if one[0] not in {"input", "output"}
    )
    slot[2] += 1


@pytest.mark.parametrize(
    ("edit", "alike"),
    [
        (lambda *_: None, True),
        (extent, False),
        (lambda c, _m: c["launch"]["slots"].reverse(), False),
    ],
)
def test_the_same_code_launched_otherwise_is_not_identical(
    edit, alike, project, checkout, tmp_path
):
    """Whatever its facts say: a gate then measures."""
    shell.git(checkout, "checkout", "-q", "HEAD~1")
    sealed = capsules.read(changed(project, tmp_path, edit)).capsule
    (tmp_path / "home").mkdir()
    base = capsule_work.unpack(sealed, tmp_path / "home").case()
    (head,) = discovery.find([str(checkout / "suite.py")], "scale[n=64]")
    told = {
        side: static_facts(case, Settings())
        for side, case in (("base", base), ("head", head))
    }
    found = blocks._identity(told)  # a gate takes seconds
    assert ("kernel" in found.identical) == alike

"""What a build is known by: one pair of programs or facts for each that matters."""

import pytest
from msgspec.structs import replace
from programs import vectors

from steelyard_device import llvm
from steelyard_kernels import array as xp
from steelyard_kernels import dtypes, function, library, toolchains
from steelyard_kernels.building import keys
from steelyard_kernels.expression.expr import (
    Apply,
    Cast,
    Constant,
    Input,
    Reduce,
    Scalar,
)
from steelyard_kernels.function import kernel
from steelyard_kernels.targets import parse

CPU = parse("cpu")
CUDA = parse("cuda:sm_90a")


@kernel
def everything(x, y, *, s=2.0):
    """Hold a node of every kind, and an update."""
    rows = xp.sum(x, axis=-1, keepdims=True)
    return {"x": x * 3.0 + s + rows, "out": y.astype("float32") - rows}


PROGRAM = everything.program(((4, 8), "float32"), ((4, 8), "float16"))


@pytest.fixture(autouse=True)
def forgotten():
    """Forget what the process knows of its compilers, before and after."""

    def forget():
        chains = (toolchains.cpu, toolchains.cuda, toolchains.nvptx)
        for value in (v for m in (keys, *chains) for v in vars(m).values()):
            getattr(value, "cache_clear", lambda: None)()

    forget()
    yield forget
    forget()


def key(program=PROGRAM, schedule=None, target=CPU, *, aligned=True):
    """Return a key of our program, unless it is said otherwise."""
    return keys.key(program, schedule, target, aligned=aligned)


def changed(kind, program=PROGRAM, **fields):
    """Return the program with fields of its first node of a kind replaced."""
    made = {}
    first = next(node for node in program.nodes if isinstance(node, kind))
    for node in program.nodes:
        new = replace(node, **fields) if node is first else node
        if isinstance(new, Apply):
            new = replace(new, args=tuple(made[arg.number] for arg in new.args))
        elif hasattr(new, "arg"):
            new = replace(new, arg=made[new.arg.number])
        made[node.number] = new
    return replace(
        program,
        nodes=tuple(made[node.number] for node in program.nodes),
        inputs=tuple(made[node.number] for node in program.inputs),
        scalars=tuple(made[node.number] for node in program.scalars),
        outputs=tuple(
            replace(out, value=made[out.value.number]) for out in program.outputs
        ),
    )


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Input, {"index": 1}),
        (Input, {"shape": (8, 4)}),
        (Input, {"dtype": dtypes.float16}),
        (Scalar, {"dtype": dtypes.int64}),
        (Constant, {"value": 4.0}),
        (Constant, {"value": 3}),
        (Constant, {"value": -3.0}),
        (Apply, {"op": "add"}),
        (Apply, {"dtype": dtypes.float64}),
        (Apply, {"shape": (4, 1)}),
        (Reduce, {"op": "max"}),
        (Reduce, {"keepdims": False}),
        (Cast, {"dtype": dtypes.float64}),
    ],
)
def test_a_field_of_a_node_is_part_of_the_key(kind, fields):
    """Each alone, whatever else it would have to change in a program that was traced."""
    other = changed(kind, **fields)
    assert key(other) != key()
    assert key(changed(kind)) == key()  # copying alone changes nothing


@pytest.mark.parametrize("zero", [0.0, -0.0, 0, False])
def test_constants_that_compare_equal_are_told_apart(zero):
    """Signs of zeros and kinds of numbers come out of a kernel."""
    others = [0.0, -0.0, 0, False]
    same = [
        other
        for other in others
        if key(changed(Constant, value=other)) == key(changed(Constant, value=zero))
    ]
    assert list(map(repr, same)) == [repr(zero)]


def test_operands_count_in_their_order():
    """What is subtracted from what."""
    (difference,) = (n for n in PROGRAM.nodes if getattr(n, "op", "") == "subtract")
    turned = replace(difference, args=difference.args[::-1])
    nodes = tuple(turned if n is difference else n for n in PROGRAM.nodes)
    outputs = tuple(
        replace(out, value=turned) if out.value is difference else out
        for out in PROGRAM.outputs
    )
    assert key(replace(PROGRAM, nodes=nodes, outputs=outputs)) != key()


def test_an_update_in_place_is_not_an_output_beside():
    """The same values, in another buffer."""
    first, second = PROGRAM.outputs
    beside = (replace(first, updates=None), second)
    assert key(replace(PROGRAM, outputs=beside)) != key()
    assert key(replace(PROGRAM, outputs=(second, first))) != key()


def test_scalars_and_inputs_that_nothing_reads_are_part_of_the_key():
    """They take a slot."""
    assert key(replace(PROGRAM, scalars=())) != key()
    assert key(replace(PROGRAM, inputs=PROGRAM.inputs[:1])) != key()


def test_the_name_of_a_kernel_is_not():
    """Nor where its function stands."""
    assert key(replace(PROGRAM, name="other")) == key()


def test_schedule_target_and_alignment_are(nvrtc):
    """The heuristic's choice is known by its being the heuristic's."""
    every = [
        key(),
        key(aligned=False),
        key(target=CUDA),
        key(target=parse("cuda:sm_80")),
        key(target=parse("nvptx:sm_90a")),
        key(schedule=vectors(16)),
        key(schedule=vectors(16, 2)),
    ]
    assert len(set(every)) == len(every)


def test_the_schema_is(monkeypatch):
    """An older one is a miss."""
    before = key()
    monkeypatch.setattr(keys, "SCHEMA", keys.SCHEMA + 1)
    assert key() != before


@pytest.mark.parametrize("fact", ["cpu", "triple", "features"])
def test_the_processor_is(monkeypatch, forgotten, nvrtc, fact):
    """A folder of builds may be shared by machines that differ in one feature."""
    before, gpu, host = key(), key(target=CUDA), llvm.host()
    given = getattr(host, fact)
    other = given | {"none"} if fact == "features" else f"{given}x"
    monkeypatch.setattr(llvm, "host", lambda: replace(host, **{fact: other}))
    forgotten()
    assert key() != before
    assert key(target=CUDA) == gpu


def test_what_the_compiler_is_told_is(monkeypatch, forgotten, nvrtc):
    """Another option may be other instructions."""
    before, told = key(target=CUDA), nvrtc.options_for
    monkeypatch.setattr(nvrtc, "options_for", lambda arch: (*told(arch), "--x"))
    forgotten()
    assert key(target=CUDA) != before


def test_the_build_of_the_compiler_is(monkeypatch, forgotten):
    """Two of one version may differ."""
    before = key()
    monkeypatch.setattr(toolchains.cpu, "compiler", lambda: "llvm 20.1.8 other")
    forgotten()
    assert key() != before


def test_our_own_sources_are(monkeypatch):
    """A change of any rebuilds everything."""
    before = key()
    monkeypatch.setattr(keys, "sources", lambda: "other")
    assert key() != before


def test_sources_are_known_by_folder_name_and_text(tmp_path, monkeypatch):
    """And by nothing that is no source."""
    monkeypatch.setattr(keys.resources, "files", lambda _package: tmp_path)

    def sources():
        return keys.sources.__wrapped__()

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    seen = [sources()]
    (tmp_path / "x.py").write_text("1")
    seen.append(sources())
    (tmp_path / "x.py").rename(tmp_path / "a" / "x.py")
    seen.append(sources())
    (tmp_path / "a" / "x.py").rename(tmp_path / "b" / "x.py")
    seen.append(sources())
    (tmp_path / "b" / "x.py").rename(tmp_path / "b" / "y.py")
    seen.append(sources())
    (tmp_path / "b" / "y.py").write_text("2")
    seen.append(sources())
    assert len(set(seen)) == len(seen)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "z.py").write_text("3")
    (tmp_path / "note.txt").write_text("4")
    assert sources() == seen[-1]


def test_what_a_build_depends_on_is_known_before_it_is_made(monkeypatch):
    """The same of the same arrays, by the same compiler; and nothing is built."""
    monkeypatch.setattr(function, "build", None)
    spec = ((1000,), "float32")
    known = library.triad.made_of("cpu", spec, spec)
    assert known == library.triad.made_of("cpu", spec, spec)
    assert known["compiler_hash"] == keys.sources()
    half = ((1000,), "float16")
    assert known != library.triad.made_of("cpu", half, half)
    monkeypatch.setattr(keys, "sources", lambda: "changed")
    changed = library.triad.made_of("cpu", spec, spec)
    assert changed["compiler_hash"] == "changed"
    assert changed["build_key"] != known["build_key"]

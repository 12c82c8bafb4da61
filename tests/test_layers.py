import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import shell

ROOT = Path(__file__).parents[1]
SOURCES = {
    "steelyard_device": ROOT / "kernels" / "steelyard_device",
    "steelyard_kernels": ROOT / "kernels" / "steelyard_kernels",
    "steelyard": ROOT / "harness" / "steelyard",
    "steelyard_lock": ROOT / "rim" / "steelyard_lock",
}
MAY_IMPORT = {
    "steelyard_device": {"steelyard_device"},
    "steelyard_kernels": {"steelyard_kernels", "steelyard_device"},
    "steelyard": {"steelyard", "steelyard_device"},
    "steelyard_lock": set(SOURCES),
}

HEAVY = (
    "numpy",
    "ml_dtypes",
    "scipy",
    "sqlalchemy",
    "rich",
    "click",
    "psutil",
    "llvmlite",
    "torch",
)
"""What a program that only declares benchmarks must not pay for."""


def modules(package):
    """Return the files of a package by the names of their modules."""
    root = SOURCES[package]
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__")] = path
    return found


ALL = {name: path for package in SOURCES for name, path in modules(package).items()}


def statements(module, *, at_import):
    """Walk a module's statements: all of them, or those that run when it is imported."""
    pending = [module]
    while pending:
        node = pending.pop()
        yield node
        if not (at_import and is_later(node)):
            pending += ast.iter_child_nodes(node)


def is_later(node):
    """Say whether what a statement holds runs in a call, or for types alone."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


@cache
def tree(path):
    """Return the syntax of a file."""
    return ast.parse(path.read_text())


@cache
def imports(name, *, at_import):
    """Return the modules, ours and foreign, that a module imports."""
    path = ALL[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in statements(tree(path), at_import=at_import):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = (
                package.split(".")[: -(node.level - 1) or None] if node.level else []
            )
            source = ".".join([*above, *filter(None, [node.module])])
            parts = {f"{source}.{alias.name}" for alias in node.names}
            ours = {part for part in parts if part in ALL}
            found |= ours if ours == parts else {source, *ours}
    return found


@pytest.mark.parametrize("package", SOURCES)
def test_packages_import_only_what_lies_below_them(package):
    """Kernels and harness meet in suites and in `steelyard_lock`, not in each other."""
    beyond = {
        (name, used)
        for name in modules(package)
        for used in imports(name, at_import=False)
        if used.partition(".")[0] in SOURCES.keys() - MAY_IMPORT[package]
    }
    assert beyond == set()


@pytest.mark.parametrize("package", SOURCES)
def test_imports_form_no_circle(package):
    """A module can be read when those it names anywhere have been.

    Imports in functions and for types count: no circle hides behind them.
    """
    graph = {
        name: imports(name, at_import=False) & ALL.keys() for name in modules(package)
    }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports form a circle: {' -> '.join(error.args[1])}")


def test_no_process_is_given_the_credentials_of_a_store():
    """Each is started with an environment that was chosen."""
    bare = [
        f"{name}:{node.lineno}"
        for name, path in modules("steelyard").items()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"subprocess.run", "subprocess.Popen"}
        and "env" not in {word.arg for word in node.keywords}
    ]
    assert bare == []


def test_no_file_is_too_long_to_be_read_at_once():
    """400 lines."""
    lengths = {name: len(path.read_text().splitlines()) for name, path in ALL.items()}
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


@pytest.mark.parametrize("package", SOURCES)
def test_every_module_has_its_place_in_the_architecture(package):
    """Under its package, with its folder; and no other is named there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (section,) = re.findall(
        rf"^## \w+/{package}, .*?(?=^## )", text, re.MULTILINE | re.DOTALL
    )
    files = [
        path.relative_to(SOURCES[package])
        for path in modules(package).values()
        if path.name != "__init__.py"
    ]
    said = set(re.findall(r"`(\w+\.py)`", section))
    assert said == {file.name for file in files}
    folders = {parent for file in files for parent in file.parts[:-1]}
    assert {name for name in folders if f"`{name}/`" not in section} == set()


@pytest.mark.parametrize(
    ("module", "light"),
    [
        ("steelyard", HEAVY),
        ("steelyard.declare.discovery", HEAVY),
        ("steelyard.declare.plan", HEAVY),
        ("steelyard.analyse.stats", HEAVY),
        ("steelyard_device", HEAVY),
        (
            "steelyard.process.worker",
            ("sqlalchemy", "rich", "click", "llvmlite", "psutil", "email", "tomllib"),
        ),
        ("steelyard_kernels", ("scipy", "sqlalchemy", "rich", "click", "psutil")),
    ],
)
def test_importing_costs_only_what_is_used(module, light):
    """Nothing heavy is imported by a module that does not need it to be imported."""
    script = f"import sys, {module}; print(*sys.modules)"
    done = shell.python("-c", script, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & set(
        light
    ) == set()


def test_the_walk_sees_imports_of_every_kind():
    """Absolute and relative, of modules and names, in functions and for types."""
    assert imports("steelyard", at_import=True) >= {
        "steelyard.declare.axes",
        "steelyard.declare.benchmark",
    }
    assert "numpy" in imports("steelyard.declare.recipes", at_import=False)
    assert "numpy" not in imports("steelyard.declare.recipes", at_import=True)
    assert "steelyard.declare.npy" in imports(
        "steelyard.declare.handles", at_import=False
    )
    assert "steelyard.declare.mode" in imports("steelyard.declare.plan", at_import=True)


ROOMS = (
    "analyse",
    "machine",
    "declare",
    "prepare",
    "clocks",
    "measure",
    "process",
    "store",
    "gate",
    "fleet",
    "report",
    "commands",
    "plugins",
)
"""The harness's folders: each imports only from itself and those before it."""

SHARED = {"steelyard.errors", "steelyard.units", "steelyard.moved"}
"""What every room may import, and what imports none of them."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_before_it(room):
    """Readers meet nothing that they have not read."""
    before = ROOMS[: ROOMS.index(room) + 1]
    back = {
        (name, used)
        for name in modules("steelyard")
        if name.split(".")[1:2] == [room]
        for used in imports(name, at_import=False)
        if used.startswith("steelyard.") and used not in SHARED
        if used.split(".")[1] not in before
    }
    assert back == set()


def test_analysis_is_pure():
    """It imports NumPy and what computes with values: nothing of a system."""
    system = {"os", "pathlib", "subprocess", "socket", "time", "io", "shutil"}
    found = {
        used.partition(".")[0]
        for name in modules("steelyard")
        if name.startswith("steelyard.analyse")
        for used in imports(name, at_import=False)
    }
    assert found & (system | set(HEAVY) - {"numpy"}) == set()


def test_the_harness_has_its_rooms_and_few_files_beside_them():
    """Thirteen folders; at most five files, and the one that ``python -m`` names."""
    root = SOURCES["steelyard"]
    assert {p.parent.name for p in root.glob("*/__init__.py")} == set(ROOMS)
    assert len({*root.glob("*.py")} - {root / "__main__.py"}) <= 5


COINAGES = {
    r"baton": "token, interleave",
    r"plant(s|ed|ing)?\b": "inject",
    r"beam": "session",
    r"\btold\b": "reported",
    r"lent\b": "exported, portable",
    r"weigh(s|ed|ing)?\b": "measure",
    r"glance": "the facts that are read",
    r"overtaken": "crossovers",
}
"""Words that nobody searches for, with the field's word."""


def bound(node):
    """Return the variables, attributes and parameters that a node binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
    return []


def test_names_and_summaries_have_the_words_of_the_field():
    """Of modules, classes, functions and variables; the slogan keeps its metaphor."""
    said = []
    for name, path in modules("steelyard").items():
        module = tree(path)
        said += [(name, part) for part in name.split(".")]
        for node in ast.walk(module):
            named = isinstance(node, ast.FunctionDef | ast.ClassDef)
            said += [(name, node.name.strip("_"))] if named else []
            said += [(name, one) for one in bound(node)]
            if named or (isinstance(node, ast.Module) and name != "steelyard"):
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                said.append((name, summary))
    found = {
        f"{name}: {text!r} has {word}, say {instead}"
        for name, text in said
        for word, instead in COINAGES.items()
        if re.search(rf"(\b|_){word}", text.lower())
    }
    assert found == set()

import sys

import pytest
import shell

from steelyard.process import origins

ASK = (
    "import mine, theirs; from steelyard.process import origins as e; print(e.digest())"
)
RECORD = "theirs.py,sha256=aaaa,10\ntheirs.pth,sha256={folder},9\n"


@pytest.fixture
def told(tmp_path):
    """Give what a process says that imports from a checkout and an environment."""

    def ask(name, source="x = 1", record=RECORD, version="1"):
        home = tmp_path / name
        checkout, installed = home / "src", home / "env/site-packages"
        listed = installed / "theirs-1.dist-info"
        for folder in (checkout, listed):
            folder.mkdir(parents=True)
        (checkout / "mine.py").write_text(source)
        (installed / "theirs.py").write_text("y = 1")
        (listed / "METADATA").write_text(f"Name: theirs\nVersion: {version}\n")
        (listed / "RECORD").write_text(record.format(folder=name))
        places = [str(checkout), str(installed), *sys.path]
        program = f"import sys; sys.path[:] = {places}; {ASK}"
        done = shell.python("-c", program, check=True)
        return done.stdout.strip()

    return ask


def test_other_sources_and_other_packages_are_another_environment(told):
    """Whether their version was raised or not, but not wherever they lie.

    Files that have a folder's name in them are not code.
    """
    one = told("one")
    assert told("same") == one
    for number, change in enumerate(
        (
            {"source": "x = 2"},
            {"record": RECORD.replace("aaaa", "bbbb")},
            {"record": ""},
            {"version": "2"},
        )
    ):
        assert told(str(number), **change) != one, change


def test_what_is_imported_later_makes_it_another(tmp_path, monkeypatch):
    """It is asked again for each case; a file that is gone is another one too."""
    (tmp_path / "late_one.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = origins.digest()
    assert origins.digest() == before
    __import__("late_one")
    with_it = origins.digest()
    assert with_it != before
    sys.modules["late_one"].__file__ = str(tmp_path / "nowhere.py")
    assert origins.digest() not in {before, with_it}
    del sys.modules["late_one"]
    assert origins.digest() == before


def test_all_of_a_package_counts_whatever_of_it_is_imported(tmp_path, monkeypatch):
    """A build that a cache has imports less of a compiler than one that it has not."""

    def told(number, imported):
        package = tmp_path / f"{imported}{number}" / "compiler"
        (package / ".venv").mkdir(parents=True, exist_ok=True)
        for name in ("__init__", "emitter"):
            (package / f"{name}.py").write_text(f"x = {number}" * (name == "emitter"))
        (package / ".venv" / "more.py").write_text(imported)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(package.parent)
            __import__(imported)
            try:
                return origins.digest()
            finally:
                for name in ("compiler.emitter", "compiler"):
                    sys.modules.pop(name, None)

    assert told(1, "compiler") == told(1, "compiler.emitter")
    assert told(1, "compiler") != told(2, "compiler.emitter")

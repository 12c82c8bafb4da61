import signal
import sys
import textwrap

import pytest
import shell

from steelyard import SteelyardError
from steelyard.declare import discovery
from steelyard.declare.benchmark import select

ONE = """
from steelyard import benchmark

@benchmark(n=[1, 2])
def NAME(b, n):
    return b.launch(print)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Write files of a project that is the current folder; forget it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    known = dict(sys.modules)

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("-", "__")
            path = path.with_name(path.name + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    yield write
    for name in set(sys.modules) - set(known):
        del sys.modules[name]


def one(name):
    """Return the text of a module with one benchmark."""
    return ONE.replace("NAME", name)


def names(*places):
    """Return the names of the benchmarks in places."""
    return [found.name for found in discovery.discover(list(map(str, places)))]


def test_benchmarks_are_found_in_files_folders_and_modules(project, tmp_path):
    """In order of their files; a module is what can be imported."""
    project(
        suites__b=one("second"), suites__a=one("first"), suites__deep__c=one("third")
    )
    assert names("suites") == ["first", "second", "third"]
    assert names(tmp_path / "suites" / "b.py") == ["second"]
    assert names("suites/b.py", "suites/a.py", "suites/a.py") == ["second", "first"]
    assert names("steelyard.declare.builtin") == ["copy", "add", "softmax"]


@pytest.mark.parametrize("place", ["../x/suites", "./suites", ".", "suites/../suites"])
def test_a_folder_may_be_named_from_anywhere(project, tmp_path, monkeypatch, place):
    """A folder given as ../suites once held nothing, '..' being taken for hidden."""
    project(suites__a=one("first"))
    monkeypatch.chdir(tmp_path)
    if place.startswith("../x"):
        place = f"../{tmp_path.name}/suites"
    assert names(place) == ["first"]


def test_a_folder_may_lie_in_a_hidden_one(project, tmp_path):
    """What is hidden below it is left out all the same."""
    project(**{".cache__suites__a": one("first"), ".cache__suites__.old__b": one("x")})
    assert names(tmp_path / ".cache" / "suites") == ["first"]
    with pytest.raises(SteelyardError, match=r"no benchmark in \."):
        names(".")


def test_a_module_that_is_run_is_not_imported_with_its_folder(project):
    """Importing __main__ would run the program."""
    project(suites__a=one("first"))
    project(**{"suites__-main-": "raise SystemExit('ran')"})
    assert names("suites") == ["first"]


def test_a_folder_runs_no_file_that_does_not_mention_steelyard(project):
    """A setup.py in it is left alone; named itself it is imported."""
    project(suites__a=one("first"), suites__setup="raise SystemExit('ran')")
    assert names("suites") == ["first"]
    with pytest.raises(SteelyardError, match="SystemExit: ran"):
        names("suites/setup.py")


def test_two_benchmarks_of_one_name_in_a_file_are_refused(project):
    """Python keeps the second alone; the sentence has both lines."""
    project(suites__a=one("same") + one("same"))
    with pytest.raises(SteelyardError, match=r"line 5 of .*a\.py and again in line 11"):
        names("suites/a.py")


def test_files_of_one_name_in_two_folders_are_two_modules(project):
    """Each has its own benchmarks; results are kept by the benchmark's name."""
    project(a__same=one("first"), b__same=one("second"))
    assert names("a", "b") == ["first", "second"]
    project(c__same=one("first"))
    with pytest.raises(SteelyardError, match=r"a/same\.py and again in .*c/same\.py"):
        names("a", "c")


def test_packages_may_import_relatively(project):
    """And a benchmark that another module imports is found once."""
    project(
        **{
            "pack__-init-": "from pack.sub.a import first",
            "pack__sub__-init-": "",
            "pack__sub__a": "from ..common import SIZES\n" + one("first"),
            "pack__common": "SIZES = [1]",
            "pack__b": "from .sub.a import first\n" + one("second"),
        }
    )
    assert names("pack") == ["second", "first"]
    assert names("pack/sub/a.py") == ["first"]


def test_packages_of_one_name_are_never_mistaken_for_each_other(project):
    """The second folder's modules once read as the first's, without a word."""
    project(**{"a__pack__-init-": "", "a__pack__m": one("first")})
    project(**{"b__pack__-init-": "", "b__pack__m": one("second")})
    with pytest.raises(SteelyardError) as caught:
        names("a/pack", "b/pack")
    said = str(caught.value)
    assert "b/pack/m.py would be imported as pack.m, but pack is already" in said
    assert "a/pack/__init__.py" in said


def test_a_loose_file_hides_no_library_from_its_neighbours(project):
    """suites/numba.py compares with numba, and must not become it."""
    project(
        suites__colorsys="RED = 1\n" + one("first"),
        suites__b="import colorsys\nassert colorsys.rgb_to_hsv\n" + one("second"),
        suites__helper="HELP = 1",
        suites__c="from helper import HELP\n" + one("third"),
    )
    assert sorted(names("suites")) == ["first", "second", "third"]


@pytest.mark.parametrize("suite", ["suites/a.py", "packed/a.py"])
@pytest.mark.parametrize("installed", [True, False])
def test_a_project_in_the_root_hides_nothing_that_is_installed(
    project, tmp_path, monkeypatch, suite, installed
):
    """It is found where it is not installed, from a loose suite and from a package.

    A package of suites is known by its path, whatever else is installed of its name.
    """
    text = "from mylib import WHERE\nassert WHERE == {!r}\n" + one("first")
    text = text.format("installed" if installed else "root")
    (tmp_path / ".git").mkdir()
    project(
        suites__a=text,
        packed__a=text,
        **{"packed__-init-": "", "mylib__-init-": "WHERE = 'root'"},
    )
    if installed:
        project(site__mylib="WHERE = 'installed'", **{"site__packed__-init-": "1 / 0"})
        sys.path.insert(0, str(tmp_path / "site"))
    assert names(suite) == ["first"]


def test_importing_twice_runs_once(project):
    """A case that is found and then loaded is the same object."""
    project(suites__a=one("first"))
    (found,) = discovery.discover(["suites"])
    assert discovery.load(found.path, "first") is found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n  pass", "SyntaxError: invalid syntax"),
        ("import nosuchmodule", "No module named 'nosuchmodule' (a.py:1). Install it"),
        ("1 / 0", "ZeroDivisionError: division by zero (a.py:1)"),
        ("raise SystemExit(0)", "SystemExit: 0 (a.py:1)"),
        ("import os; os._exit(0)", "os._exit(0) ends the process (a.py:1)"),
        ("import posix; posix._exit(0)", "os._exit(0) ends the process (a.py:1)"),
        ("import os; os.execl('/bin/true', 'true')", "os.execv('/bin/true') ends the"),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = '\0'", "null bytes"),
        ("from steelyard import benchmark\nbenchmark(n=[])", None),
        (
            "from steelyard import benchmark\n@benchmark(n=[])\ndef f(b, n): pass",
            "axis n of benchmark f has no values",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(project, text, said):
    """One sentence, whatever it does; a broken module is tried again."""
    text += "\n# mentions steelyard"
    project(suites__a=text, pack__a=text, **{"pack__-init-": ""})
    for place in ("suites", "suites/a.py", "pack"):
        with pytest.raises(SteelyardError) as caught:
            names(place)
        assert (said or "no benchmark in") in str(caught.value)
        assert "importlib" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("missing/", "does not exist. Name a file, folder or module"),
        ("missing.py", "does not exist"),
        ("nosuchmodule", "is neither a file, a folder nor a module"),
        ("json", "no benchmark in json. Decorate a function"),
        ("empty", "no benchmark in empty"),
        ("notes.txt", "is not a Python file"),
        (".relative", "could not be imported"),
    ],
)
def test_a_place_without_benchmarks_is_told_what_to_do(project, tmp_path, place, said):
    """Misspelt, missing, empty or not Python."""
    project()
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SteelyardError) as caught:
        names(place)
    assert said in str(caught.value)


def test_a_benchmark_that_is_gone_is_missed_by_name(project, tmp_path):
    """A worker that imports the file after an edit says so."""
    project(suites__a=one("first"))
    with pytest.raises(SteelyardError, match="has no benchmark other any more"):
        discovery.load(tmp_path / "suites" / "a.py", "other")


def test_finding_and_listing_allocate_nothing(project):
    """A case of a terabyte is listed like any other, before NumPy is even imported."""
    project(
        suites__huge="""
        from steelyard import benchmark

        @benchmark(n=[1 << 60])
        def huge(b, n):
            x = b.input((n, n))
            return b.launch(print, x)
        """
    )
    (case,) = select(discovery.discover(["suites"]))
    assert case.describe().handles[0].size == 1 << 120
    script = "import sys; from steelyard.declare import discovery; discovery.discover(['suites'])"
    script += "; sys.exit('numpy' in sys.modules)"
    shell.python("-c", script, check=True)


def test_an_import_that_never_ends_is_named_and_ended(tmp_path, monkeypatch, capfd):
    """The others of its folder stay; without a limit it is named all the same."""
    monkeypatch.setattr(discovery, "SILENT", 0.1)
    (tmp_path / "a.py").write_text(one("first"))
    (tmp_path / "b.py").write_text("import steelyard\nwhile True:\n    pass\n")
    broken = []
    found = discovery.discover([str(tmp_path)], broken, seconds=0.3)
    assert [one.name for one in found] == ["first"]
    (error,) = map(str, broken)
    assert f"importing {tmp_path / 'b.py'} was not done within 0.3 s" in error
    assert f"still importing {tmp_path / 'b.py'} after 0.1 s" in capfd.readouterr().err
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL

import pytest

from steelyard.declare import config
from steelyard.errors import SteelyardError


def project(tmp_path, table):
    """Write a project's file with the given table and return its folder."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.steelyard]\n{table}")
    return tmp_path


def test_without_any_setting_the_defaults_hold(tmp_path):
    """The store is that of the project, found from a folder below."""
    (tmp_path / ".git").mkdir()
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    settings = config.load({}, {}, below)
    assert settings == config.Config(store=str(tmp_path / ".steelyard/steelyard.db"))
    assert settings.precision == 0.005


def test_a_flag_wins_over_the_environment_over_the_file(tmp_path):
    """Each source is taken only where the one above it says nothing."""
    folder = project(tmp_path, "budget = 1\nblocks = 2\nseed = 3\n")
    environment = {"STEELYARD_BUDGET": "10", "STEELYARD_BLOCKS": "20"}
    settings = config.load({"budget": 100.0, "seed": None}, environment, folder)
    assert (settings.budget, settings.blocks, settings.seed) == (100.0, 20, 3)


def test_paths_of_the_file_are_relative_to_it(tmp_path):
    """A command in any folder of the project finds the same suites and store."""
    folder = project(tmp_path, 'suites = ["s", "some.module"]\nstore = "runs.db"\n')
    (folder / "s").mkdir()
    (folder / "below").mkdir()
    settings = config.load({}, {}, folder / "below")
    assert settings.suites == (str(folder / "s"), "some.module")
    assert settings.store == str(folder / "runs.db")


def test_a_url_is_left_as_it_is(tmp_path):
    """Neither the file nor the environment turns a URL into a path."""
    folder = project(tmp_path, 'store = "postgresql+psycopg://host/db"\n')
    assert config.load({}, {}, folder).store == "postgresql+psycopg://host/db"
    environment = {"STEELYARD_STORE": "sqlite:///x.db", "STEELYARD_SUITES": "a:b"}
    settings = config.load({}, environment, folder)
    assert (settings.store, settings.suites) == ("sqlite:///x.db", ("a", "b"))


def test_a_large_seed_is_the_one_that_was_given(tmp_path):
    """Not the float next to it."""
    for given in (2**53 + 1, str(2**53 + 1)):
        assert config.load({"seed": given}, {}, tmp_path).seed == 2**53 + 1


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("budjet = 3", "budjet.*Did you mean budget?"),
        ("zzz = 3", "zzz.*Known: suites, store"),
        ("blocks = 0", "blocks in .* is 0, expected a whole number of at least 1"),
        ("blocks = 2.5", "2.5, expected a whole number"),
        (f"blocks = {10**23}", "of at least 1 and up to 1e"),
        (f"seed = {10**400}", "expected a whole number of at least 0"),
        ('store = "a\\u0000"', "expected a path or a URL"),
        ("blocks = true", "True, expected a whole number"),
        ("precision = nan", "nan, expected a percentage"),
        ("gpu = true", "gpu in .* is True, expected an index or the beginning"),
        ('gpu = "H200"', "'H200', expected an index or the beginning of a GPU's UUID"),
        ("clock = 1", "1, expected the id of a clock, auto or all"),
        ('peaks = "on"', "'on', expected one of auto, off"),
        ("precision = 100", "expected a percentage between 0 and 100"),
        ("budget = -1", "-1, expected a number above 0"),
        ("budget = inf", "inf, expected a number above 0"),
        ("timeout = '1 hour'", "'1 hour', expected a number above 0"),
        ("seed = -1", "expected a whole number of at least 0"),
        ("suites = 'one'", "'one', expected a list"),
        ("suites = [1]", "expected a list"),
        (
            "suites = []",
            r"is \[\], expected a list of files, folders or modules, or no",
        ),
        ("suites = ['']", "expected a list"),
        ("store = ''", "expected a path or a URL"),
        ("store = [", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path, table, says):
    """It names the key, the file, what was seen and what was expected."""
    with pytest.raises(SteelyardError, match=says):
        config.load({}, {}, project(tmp_path, table))


def test_a_table_that_is_no_table_is_one_sentence(tmp_path):
    """As ``tool.steelyard = 1`` is legal TOML."""
    (tmp_path / "pyproject.toml").write_text("[tool]\nsteelyard = 1\n")
    with pytest.raises(SteelyardError, match="expected a table"):
        config.load({}, {}, tmp_path)
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(SteelyardError, match=r"cannot be read: Is a directory\. Mend"):
        config.load({}, {}, tmp_path)


@pytest.mark.parametrize(
    ("variable", "text"), [("BLOCKS", "many"), ("SEED", "1e999"), ("PRECISION", "5%")]
)
def test_a_wrong_variable_is_named(tmp_path, variable, text):
    """So is a flag, by the name it has on the command line."""
    with pytest.raises(SteelyardError, match=f"^STEELYARD_{variable} is '{text}'"):
        config.load({}, {f"STEELYARD_{variable}": text}, tmp_path)
    with pytest.raises(SteelyardError, match=f"^--{variable.lower()} is '{text}'"):
        config.load({variable.lower(): text}, {}, tmp_path)


def test_suites_fall_back_to_the_folder_and_then_to_the_built_in(tmp_path):
    """What a bare `steelyard run` measures."""
    settings = config.Config()
    assert config.suites(settings, tmp_path) == ["steelyard.declare.builtin"]
    (tmp_path / "suites").mkdir()
    assert config.suites(settings, tmp_path) == [str(tmp_path / "suites")]
    assert config.suites(config.Config(suites=("x",)), tmp_path) == ["x"]


@pytest.mark.parametrize("text", ["0", "12", "GPU-7e219368", "gpu-7E21", "7e219368-aa"])
def test_a_gpu_is_an_index_or_the_beginning_of_a_uuid(tmp_path, text):
    """Also a number of the file; which one it is the machine knows."""
    folder = project(tmp_path, "gpu = 1\nclock = 'events'\npeaks = 'off'\n")
    settings = config.load({}, {}, folder)
    assert (settings.gpu, settings.clock, settings.peaks) == ("1", "events", "off")
    assert config.load({"gpu": text}, {"STEELYARD_GPU": "3"}, folder).gpu == text

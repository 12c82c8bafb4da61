"""The recipes of docs: their own systems' schemas take them, and their commands run.

No scheduler is here: its variables are set as it would, and what it alone has is a stand-in
that writes down how it was called.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import shell
import test_docs
import yaml

from steelyard.commands import init, main
from steelyard.store.store import Store

RECIPES = Path(__file__).parent.parent / "docs" / "recipes"

STAND_IN = """#!/bin/sh
printf '%s\\n' "$(basename "$0")" "$@" '' >> "$CALLS"
"""


def recipe(name):
    """Return a recipe of YAML."""
    return yaml.safe_load((RECIPES / name).read_text())


@pytest.mark.parametrize(
    ("name", "schema"),
    [("github.yml", "vendor.github-workflows"), ("buildkite.yml", "vendor.buildkite")],
)
def test_schemas_of_services_take_their_recipes(name, schema):
    """And refuse one with a misspelt key."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs check-jsonschema")
    check = pytest.importorskip("check_jsonschema.builtin_schemas")
    schema = check.get_builtin_schema(schema)
    checker = jsonschema.validators.validator_for(schema)(schema)
    document = json.loads(json.dumps(recipe(name)).replace('"on": ', '"on": '))
    document = {"on" if key is True else key: one for key, one in document.items()}
    document.update({"on": document.pop("true")} if "true" in document else {})
    assert not list(checker.iter_errors(document))
    steps = document.get("steps") or document["jobs"]["run"]["steps"]
    steps[0]["concurency"] = 1
    assert list(checker.iter_errors(document))


def test_kubernetes_takes_its_recipe():
    """Strictly: no key that it does not know."""
    kubernetes = pytest.importorskip("kubernetes_validate")
    document = recipe("kubernetes.yaml")
    version = kubernetes.latest_version()
    kubernetes.validate(document, version, strict=True)
    container = document["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    container["comand"] = container.pop("command")
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(document, version, strict=True)


def test_ray_takes_the_recipe_of_machines_reached_by_ssh():
    """As `ray up` reads it; its own commands name options that exist."""
    util = pytest.importorskip("ray.autoscaler._private.util")
    document = recipe("cluster.yaml")
    config = util.prepare_config(document)
    util.validate_config(config)
    (kind,) = config["available_node_types"].values()
    assert kind["min_workers"] == len(document["provider"]["worker_ips"])


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Put stand-ins first on the path; return what reads how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("steelyard", "srun", "sleep"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    log = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(log))

    def read():
        found = [one.splitlines() for one in log.read_text().split("\n\n") if one]
        log.unlink()
        return [[word for word in one if word] for one in found]

    return read


def ran(line, **variables):
    """Run a shell's line with a scheduler's variables, and steelyard on the path."""
    beside = f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    own = os.environ | {"PATH": beside} | variables
    return shell.run(["sh", "-c", line], None, own).stdout


def parsed(words):
    """Have click read a command of steelyard's."""
    assert words[0] == "steelyard"
    test_docs.parsed(main, words[1:])


@pytest.mark.parametrize("nodes", [1, 4])
def test_slurms_recipe_makes_a_fleet_of_its_nodes(calls, nodes):
    """The first is the head, all others join it; it is ended whatever happens."""
    words = "benchmarks --commits main~5..main --on gpu=H200"
    ran(
        f"sh {RECIPES / 'slurm.sh'} {words}; wait",
        SLURM_JOB_ID="7",
        SLURM_JOB_NUM_NODES=str(nodes),
        SLURMD_NODENAME="node1",
    )
    made = calls()
    own = [one for one in made if one[0] == "steelyard"]
    for one in own:
        parsed(one)
    up, run, down = own
    head = up[-1]
    assert up[:4] == ["steelyard", "fleet", "up", "--bind"]
    assert run == ["steelyard", "fleet", "run", "--address", head, *words.split()]
    assert down == ["steelyard", "fleet", "down"]
    joins = [one for one in made if one[0] == "srun"]
    assert len(joins) == (nodes > 1)
    for srun in joins:
        assert srun[1:4] == ["--overlap", "--nodes=3", "--exclude=node1"]
        ran(srun[-1], HEAD=head)
        join, sleep = calls()
        parsed(join)
        assert join[1:5] == ["fleet", "up", "--address", head]
        assert sleep == ["sleep", "infinity"]


def test_kubernetes_pods_join_the_head(calls):
    """By the variables of its service and of the pod."""
    container = recipe("kubernetes.yaml")["spec"]["template"]["spec"]["containers"][0]
    (line,) = container["args"]
    ran(line, STEELYARD_HEAD_SERVICE_HOST="192.0.2.1", POD_IP="192.0.2.7")
    join, _ = calls()
    parsed(join)
    assert join[3:] == ["--address", "192.0.2.1:6379", "--bind", "192.0.2.7"]


def test_machines_reached_by_ssh_join_the_head(calls):
    """What `ray up` runs there."""
    document = recipe("cluster.yaml")
    for name in ("head_start_ray_commands", "worker_start_ray_commands"):
        for line in document[name]:
            ran(line, RAY_HEAD_IP="192.0.2.10")
    made = calls()
    for one in made:
        parsed(one)
    ups = [one[3:] for one in made if one[2] == "up"]
    assert ups[0][:2] == ["--bind", "192.0.2.10:6379"]
    assert ups[1][:2] == ["--address", "192.0.2.10:6379"]


def measuring(name):
    """Return the line of a service's recipe that measures."""
    document = recipe(name)
    if "jobs" in document:
        steps = document["jobs"]["run"]["steps"]
        return next(
            one["run"] for one in steps if "steelyard run" in one.get("run", "")
        )
    return document["steps"][0]["command"].replace("$$", "$")


@pytest.mark.parametrize(
    ("name", "variables", "tag"),
    [
        ("github.yml", {"GITHUB_RUN_ID": "41"}, "github/41"),
        ("buildkite.yml", {"BUILDKITE_BUILD_NUMBER": "42"}, "buildkite/42"),
    ],
)
def test_services_run_the_suites_of_a_checkout(
    tmp_path, monkeypatch, name, variables, tag
):
    """Their results are in the store that a variable names."""
    monkeypatch.chdir(tmp_path)
    shell.git(tmp_path, "init", "--quiet", "--initial-branch=main")
    shell.files(tmp_path, {"benchmarks/bench_example.py": init.EXAMPLE})
    line = measuring(name).replace(".venv/bin/", "")
    url = str(tmp_path / "results.db")
    ran(
        f"{line} --blocks 1 --mode kernel/warm --no-check",
        STEELYARD_STORE=url,
        **variables,
    )
    with Store.open(url) as store:
        (run,) = store.runs()
    assert run.tags == (tag,)
    assert run.state == "finished"

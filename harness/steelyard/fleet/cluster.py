"""The part of a cluster that runs on this machine: started, looked at and ended.

Ray listens on localhost unless told otherwise, and asks everybody for the token of
`token_file`. Every node but that of ``--local`` is one machine with its facts as labels.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from steelyard.errors import SteelyardError
from steelyard.fleet import engine, environments, jobs, local
from steelyard.fleet.agent import Order
from steelyard.fleet.campaign import Campaign
from steelyard.fleet.engine import Ray
from steelyard.fleet.local import LABEL, LOCALHOST, STORE_BYTES
from steelyard.fleet.record import Entry, Record
from steelyard.machine import children, facts, gpu_choice, writer

SECONDS: Final = 60.0
"""In which a cluster is up, or never."""

ENDING: Final = 20.0


def token_file() -> Path:
    """Return the file whose content lets in to the cluster; a new one is made once."""
    file = environments.home() / "token"
    if not file.exists():
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(secrets.token_hex(32))
    return file


def authenticated() -> dict[str, str]:
    """Return the variables by which Ray asks for the token and gives it."""
    chosen = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    own = {} if chosen else {"RAY_AUTH_TOKEN_PATH": str(token_file())}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    return {"RAY_AUTH_MODE": "token", **own, **quiet}


def labels(name: str) -> dict[str, str]:
    """Return this machine's facts as labels."""
    identity = facts.describe()["identity"]
    found = {"name": name, "cpu": identity["cpu"], "cores": identity["cores"]}
    found["memory"] = f"{int(identity['memory']) >> 30}G"
    gpus = gpu_choice.devices()
    if gpus:
        found |= jobs.labels([(one.name, one.uuid) for one in gpus])
        found["driver"] = gpu_choice.facts(0).get("driver", "")
    # What Ray takes as a label (docs.ray.io, Labels): 63 letters, digits, - _ and .
    clean = {
        n: re.sub(r"[^\w.]+", "-", str(v))[:63].strip("-") for n, v in found.items()
    }
    return {f"{LABEL}{n}": value for n, value in clean.items() if value}


def up(
    address: str | None, bind: str, count: int, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Start nodes here and return where they are: a head unless ``address`` names one.

    One that others reach is started with ``more`` options of ``ray start``.

    Raises:
        SteelyardError: some run already, Ray is missing, or they do not start.
    """
    _with_variables(address or bind)
    if running():
        raise SteelyardError(
            "a part of a cluster runs here already: see `steelyard fleet status`, end "
            "it with `steelyard fleet down`."
        )
    names = [f"local-{n + 1}" for n in range(count)] or [socket.gethostname()]
    every = [labels(name) for name in names]
    try:
        if address is None and is_local(bind):
            state = _alone(every)
        else:
            state = _open(address, bind, every[0], more)
        connected(state["address"])
        _await(lambda: len(engine.machines()) >= len(every))
    except BaseException:
        down()
        raise
    return state


def is_local(place: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    return (place.rpartition(":")[0] or place) == LOCALHOST


def _alone(every: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Start a head and machines that listen on localhost."""
    file = environments.home() / "address"
    file.unlink(missing_ok=True)
    line = [sys.executable, "-m", "steelyard.fleet.local", str(file)]
    state: dict[str, Any] = {"address": "", "processes": []}
    _start([*line, *map(json.dumps, every)], state)
    _await(file.exists)
    state["address"] = file.read_text()
    _save(state)
    return state


def _open(
    address: str | None, bind: str, own: Mapping[str, str], more: Sequence[str]
) -> dict[str, Any]:
    """Start a node that others reach: of the cluster at an address, or its head."""
    bind, _, chosen = bind.partition(":")
    state: dict[str, Any] = {
        "address": address or f"{bind}:{chosen or _free_port()}",
        "processes": [],
    }
    said = ",".join(f"{label}={value}" for label, value in own.items())
    line = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
    line += [f"--node-ip-address={bind}", "--num-cpus=0", "--disable-usage-stats"]
    line += [f"--object-store-memory={STORE_BYTES}", f"--labels={said}"]
    line.append(f"--resources={json.dumps(local.resources(own))}")
    if address is None:
        port = state["address"].rpartition(":")[2]
        line += ["--head", f"--port={port}", "--include-dashboard=false"]
    else:
        line.append(f"--address={address}")
    _start([*line, *more], state)
    _await(lambda: _answers(state["address"]))
    return state


def _start(line: Sequence[str], state: dict[str, Any]) -> None:
    """Start a process that nodes end with, and note it."""
    with (environments.home() / "ray.log").open("a") as output:
        process = subprocess.Popen(
            line,
            env=children.environment(**authenticated()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    state["processes"].append(writer.process(process.pid))
    _save(state)


def _await(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and running():
        if done():
            return
        time.sleep(0.2)
    log = environments.home() / "ray.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise SteelyardError(f"Ray does not start; the end of {log}:\n{tail}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def connected(address: str | None) -> Any:
    """Connect this process to a cluster, by default that which was started here.

    Raises:
        SteelyardError: there is none, or it does not let us in.
    """
    address = address or str(_state().get("address", ""))
    module = _with_variables(address)
    if module.is_initialized():
        return module
    if not address:
        raise SteelyardError(
            "no cluster was started here: start one with `steelyard fleet up`, or name "
            "one with --address."
        )
    if not _answers(address):  # Ray would try for a minute
        raise SteelyardError(f"nothing answers at {address}: is the cluster up?")
    own = {"_node_ip_address": LOCALHOST} if is_local(address) else {}
    quiet = {"log_to_driver": False, "logging_level": "critical"}
    try:
        module.init(address=address, **quiet, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SteelyardError(
            f"the cluster at {address} does not let us in: {first}. Look whether it is "
            f"up, and whether {token_file()} has its token."
        ) from error
    return module


def _with_variables(address: str) -> Any:
    """Import Ray once the variables are set that it reads then."""
    for name, value in authenticated().items():
        os.environ.setdefault(name, value)
    if is_local(address):  # it would look for a local head on another interface
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    return engine.ray()


def running() -> list[int]:
    """Return the processes that `up` started here and that still run."""
    found = _state().get("processes", [])
    return [one["pid"] for one in found if writer.process(one["pid"]) == one]


def down() -> bool:
    """End what `up` started here; say whether there was anything."""
    import psutil

    pids = running()
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            below = process.children(recursive=True)
            process.terminate()
            _, left = psutil.wait_procs([process, *below], ENDING)
            for one in left:
                one.kill()
    (environments.home() / "cluster.json").unlink(missing_ok=True)
    return bool(pids)


def _state() -> dict[str, Any]:
    try:
        text = (environments.home() / "cluster.json").read_text()
        found: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found


def _save(state: Mapping[str, Any]) -> None:
    (environments.home() / "cluster.json").write_text(json.dumps(state))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOCALHOST, 0))
        return int(found.getsockname()[1])


@dataclass(slots=True)
class Fleet:
    """A cluster that campaigns are driven on."""

    record: Record
    engine: Ray
    lease: float
    say: Callable[[str], None]

    def drive(self, name: str, tip: str) -> list[Entry]:
        """Drive a campaign, whose suites are those of a commit, to its end."""
        self.engine.order = replace(self.engine.order, campaign=name, tip=tip)
        return Campaign(name, self.record, self.engine, self.say).run(self.lease)


@contextmanager
def joined(
    store: str,
    repository: str,
    build: str,
    *,
    say: Callable[[str], None],
    lease: float,
    per: str,
    address: str | None,
) -> Iterator[Fleet]:
    """Connect to a cluster and a store; what machines build is the project's command.

    Raises:
        SteelyardError: one of them does not answer.
    """
    connected(address)
    order = Order("", store, repository, "", lease, build)
    record = Record(store, lease)
    try:
        yield Fleet(record, Ray(order, per), lease, say)
    finally:
        record.close()

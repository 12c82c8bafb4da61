"""A cluster on this machine alone, which listens on localhost and ends with its process.

Run as ``python -m steelyard.fleet.local ADDRESS_FILE LABELS...``, one JSON text of labels
for each node that passes for a machine.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from steelyard.fleet import jobs

LOCALHOST: Final = "127.0.0.1"

LABEL: Final = "steelyard/"
"""What the labels of a machine's facts begin with; `name` is one."""

STORE_BYTES: Final = 80_000_000
"""About Ray's least: nothing is put into its object store."""

NODE: Final[dict[str, Any]] = {
    "node_ip_address": LOCALHOST,
    "num_cpus": 0,
    "object_store_memory": STORE_BYTES,
    "include_dashboard": False,
}


def resources(labels: Mapping[str, str]) -> dict[str, float]:
    """Return what a node with these labels has."""
    return jobs.resources(facts(labels))


def facts(labels: Mapping[str, str]) -> dict[str, str]:
    """Return what a node's labels say of its machine."""
    own = {name: value for name, value in labels.items() if name.startswith(LABEL)}
    return {name.removeprefix(LABEL): value for name, value in own.items()}


def cluster(labels: Sequence[dict[str, str]]) -> Any:
    """Start a head and a node for each of some labels; return `ray.cluster_utils`'s."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    made.add_node(**NODE)
    for one in labels:
        made.add_node(**NODE, resources=resources(one), labels=one)
    return made


def main(address_file: str, *labels: str) -> None:
    """Start, say where, and end at SIGTERM."""
    made = cluster([json.loads(one) for one in labels])
    ended = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ended)
    place = Path(address_file)
    place.with_suffix(".new").write_text(made.address)
    place.with_suffix(".new").replace(place)
    signal.sigwait(ended)
    made.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Files that were damaged or written by somebody else, given to the commands that read them.

python tests/mutated.py --each 3000 [--seed 1] [--only sqlite]

Prints a line a format: tried, refused, the same, tracebacks, and silent changes: commands
that ended well and said something else than of the whole file, of formats that have a
digest. Exits with 1 if there was a traceback or a silent change.
"""

# ruff: noqa: D102 - a format has the methods of `Format`

from __future__ import annotations

import argparse
import base64
import contextlib
import difflib
import io
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from hashlib import blake2b
from pathlib import Path
from unittest import mock

import fakes
import numpy as np
import outcomes
import trials
from click.testing import CliRunner
from test_imports import EXAMPLES

from steelyard.commands import main as command_line
from steelyard.errors import BenchmarkError
from steelyard.gate import document
from steelyard.gate.outcome import StaticChange
from steelyard.machine import decoding
from steelyard.prepare import capsules, inputs
from steelyard.report.pages import gate as gate_page
from steelyard.store import archive
from steelyard.store.imports import asv
from steelyard.store.store import Store
from steelyard_device import llvm
from steelyard_lock import file as entries

ROOT = Path(__file__).parents[1]
REFUSED = {1, 2, 3, 4}

OUTCOME = outcomes.outcome(
    outcomes.finding(), static=(StaticChange("adam", "cpu:a", ("1 more register",)),)
)

PAGE_HEAD = f"<!doctype html><html>{decoding.OPENING}".encode()

VALUES = (
    *(None, True, 0, -1, 7, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\0", "\ud800", "a" * 5000, "../../x", "@-1", "2026-01-01", "slower"),
    *([], [1], [[]], {}, {"a": 1}, {"$float": "x"}, {"pid": "x"}),
)


def bytes_changed(data, rng):
    """Flip, overwrite, cut, exchange, repeat or remove some bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, length = rng.randrange(len(found) or 1), rng.choice((1, 2, 8, 64, 512))
        kind = rng.randrange(6)
        if kind == 0 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at : at + length] = rng.randbytes(len(found[at : at + length]))
        elif kind == 2:
            del found[at : at + length]
        elif kind == 3:
            found[at:at] = found[at : at + length]
        elif kind == 4 and rng.random() < 0.3:
            del found[at:]
        else:
            other = rng.randrange(len(found) or 1)
            found[at : at + length] = found[other : other + length]
    return bytes(found)


def places(value, at=()):
    """Yield the paths of all values within one."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, one in value.items() if isinstance(value, dict) else ():
        yield (*at, key)
        yield from places(one, (*at, key))


def values_changed(value, rng):
    """Replace, remove or rename some values of a JSON document."""
    found = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 2))):
        all_of_them = list(places(found))
        if not all_of_them:
            break
        *above, last = rng.choice(all_of_them)
        place = found
        for key in above:
            place = place[key]
        if rng.random() < 0.2:
            del place[last]
        elif rng.random() < 0.1 and isinstance(place, dict):
            place["other"] = place.pop(last)
        else:
            place[last] = rng.choice(VALUES)
    return found


def dumped(value):
    """Return JSON as a careless program writes it."""
    return json.dumps(value).encode(errors="surrogatepass")


class Format:
    """A kind of file: its content, how it is changed, and what reads it."""

    sealed = False
    """Whether a change of what it says is noticed."""
    by_bytes = 1.0
    """The share of changes that know nothing of what the bytes mean."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / self.name
        self.good = self.make()

    def changed(self, rng):
        """Return another content."""
        if rng.random() < self.by_bytes:
            return bytes_changed(self.good, rng)
        return self.other(rng)

    def other(self, rng):
        """Return a content of which values differ."""
        return dumped(values_changed(json.loads(self.good), rng))

    def lines(self):
        """Return the command lines that read the file."""
        raise NotImplementedError

    def prepare(self):
        """Undo what a command wrote."""

    def empty_store(self):
        """Return the option that names a store without a run."""
        store = self.folder / "t.db"
        for end in ("", "-wal", "-shm"):
            Path(f"{store}{end}").unlink(missing_ok=True)
        return "--store", store

    def read(self, content):
        """Return the exit codes, all that was said, and the traceback if there was one."""
        self.path.write_bytes(content)
        codes, said = [], ""
        for line in self.lines():
            self.prepare()
            done = CliRunner().invoke(command_line, list(map(str, line)))
            codes.append(done.exit_code)
            said += done.output
            if done.exit_code not in {0, *REFUSED} or "Traceback" in done.output:
                lines = traceback.format_exception(done.exception)
                return codes, said, done.output + "".join(lines)
        return codes, said, None


class Sqlite(Format):
    """A store with two runs."""

    name, sealed = "s.db", True

    def make(self):
        made = [
            trials.trial(case, range(1000 + block, 1040 + block), block=block)
            for case in ("copy[n=1]", "copy[n=2]")
            for block in range(2)
        ]
        for number in range(2):
            started = f"2026-01-0{number + 1}T00:00:00"
            trials.kept(self.path, made, started=started, writer={})
        return self.path.read_bytes()

    def prepare(self):
        for end in ("-wal", "-shm"):
            self.path.with_name(f"{self.name}{end}").unlink(missing_ok=True)

    def lines(self):
        where = ("--store", self.path)
        yield "show", "--runs", *where
        yield "show", "@-1", "--format", "json", *where
        yield "history", *where
        yield "compare", "@-2", "@-1", *where
        yield "export", "@-2", "-", *where


class Archive(Format):
    """An exported run, whose bytes change or whose values do under a right digest."""

    name, by_bytes = "e.json", 0.4

    def make(self):
        run = trials.run(state="finished", machine=trials.FACTS | {"gpu": trials.GPU})
        read = {"quantum": 1.0, "offset": 0.0, "uncertainty": 10.0, "drift": 0.0}
        extra = {
            "gpu": trials.STATE | {"capped": {"power": 0}},
            "clocks": {"events": read | {"ticks": [1000, 1010, 1020]}},
            "mhz": [1980, 1980],
        }
        facts = {"dtype": "float16", "kernels": 1, "opcodes": {"FADD": 3}}
        measured = [
            *(trials.trial(block=block) for block in range(2)),
            *(trials.trial("add[n=8]", block=b, extra=extra) for b in range(2)),
            trials.trial("add[n=9]", facts=trials.trial().facts | facts, extra=extra),
        ]
        return archive.write(run, measured)

    def other(self, rng):
        found = json.loads(self.good)
        found["content"] = values_changed(found["content"], rng)
        found["digest"] = decoding.digest(found["content"])
        return dumped(found)

    def lines(self):
        where = self.empty_store()
        yield "import", self.path, *where
        yield "show", *where
        yield "show", "--runs", *where
        yield "show", "copy", *where
        yield "show", "@-1", "add[n=9]", *where
        for shape in ("json", "csv", "markdown"):
            yield "show", "--format", shape, *where
        yield "show", "--across", "n", "--plot", self.folder / "x.svg", *where
        yield "history", *where
        yield "compare", "@-1", "@-1", *where
        yield "export", "@-1", "-", *where


class Page(Archive):
    """A page of a run, whose bytes change or whose values do under a right digest."""

    name = "p.html"

    def make(self):
        self.found = archive.read(super().make())
        return self.page(archive.for_page(*self.found))

    def page(self, value):
        said = json.dumps(value).encode(errors="surrogatepass")
        return PAGE_HEAD + said.replace(b"<", b"\\u003c") + b"</script></html>"

    def other(self, rng):
        whole = archive.packed_content(*self.found)
        some = rng.choice((whole, {n: whole[n] for n in ("run", "trials")}))
        content = whole | values_changed(some, rng)  # most of the whole are samples
        document = archive.for_page(*self.found)
        document["digest"] = decoding.digest(content)
        body = json.dumps(content).encode(errors="surrogatepass")
        document["packed"] = base64.b64encode(lzma.compress(body)).decode()
        return self.page(document)

    def lines(self):
        where = self.empty_store()
        yield "import", self.path, *where
        yield "show", *where
        yield "show", "@-1", "add[n=9]", *where
        yield "report", "@-1", "-o", self.folder / "x.html", *where


class ArchiveBytes(Archive):
    """An exported run, whose digest sees every change."""

    name, sealed, by_bytes = "b.json", True, 1.0

    def lines(self):
        where = self.empty_store()
        yield "import", self.path, *where
        yield "show", *where


def accept(outcome, policy):
    """Return the command line that has a policy accept the outcome's finding."""
    words = ("--reason", "x", "--from", outcome, "--policy", policy)
    return "accept", OUTCOME.findings[0].case, *words


class Gate(Format):
    """The last gate's outcome, whose digest sees every change."""

    name, sealed, by_bytes = "gate.json", True, 0.4

    def make(self):
        return document.dumps(OUTCOME).encode()

    def prepare(self):
        (self.folder / "policy.toml").unlink(missing_ok=True)

    def lines(self):
        for shape in ("table", "json", "markdown", "junit"):
            yield "verdict", "--from", self.path, "--format", shape
        yield accept(self.path, self.folder / "policy.toml")


class SealedGate(Gate):
    """The same with a right digest: only of what is read a traceback could come."""

    name, sealed, by_bytes = "sealed.json", False, 0.0

    def other(self, rng):
        found = values_changed(json.loads(self.good), rng)
        if isinstance(found, dict):
            with contextlib.suppress(ValueError):
                found["digest"] = document._digest(found)
        return dumped(found)


class GatePage(Gate):
    """The page of a gate, which holds the outcome; what is drawn of it is not read."""

    name, sealed = "gate.html", False

    def make(self):
        return gate_page.dumps(OUTCOME).encode()

    def changed(self, rng):
        start, inside, end = self.good.partition(decoding.page_content(self.good))
        return start + bytes_changed(inside, rng) + end


class Trace(Format):
    """A trace of spans, which anybody may have written."""

    name, by_bytes = "trace.json", 0.4

    def make(self):
        spans = [("build", 0, 9), ("trace", 0, 4), ("compile", 4, 5), ("build", 9, 3)]
        events = [
            {"ph": "X", "pid": 1, "tid": 0, "name": name, "ts": ts, "dur": dur}
            for name, ts, dur in spans
        ]
        main_thread = {"ph": "M", "pid": 1, "tid": 0, "args": {"name": "main"}}
        return dumped({"traceEvents": [main_thread, *events]})

    def lines(self):
        yield "report", self.path, "-o", self.folder / "t.html"


class Stacks(Trace):
    """Sampled stacks, which anybody may have written."""

    name = "stacks.json"

    def make(self):
        sampled = {"type": "sampled", "unit": "seconds"}
        calls = [("O", 0, 0.0), ("O", 1, 1.0), ("C", 1, 2.0), ("C", 0, 3.5)]
        events = [{"type": t, "frame": f, "at": at} for t, f, at in calls]
        return dumped(
            {
                "$schema": "https://www.speedscope.app/file-format-schema.json",
                "shared": {"frames": [{"name": "f", "file": "x.py"}, {"name": "g"}]},
                "profiles": [
                    sampled | {"samples": [[0], [0, 1]], "weights": [0.25, 1.5]},
                    {"type": "evented", "unit": "seconds", "events": events},
                ],
            }
        )


class Lock(Format):
    """The lock file of kernels."""

    name, sealed = "kernels.lock", True

    def make(self):
        text = (ROOT / "ci" / "kernels.lock").read_text()
        whole = entries.read(text, "it")
        few = dict(list(whole.entries.items())[:4])
        return entries.text(entries.Lock(whole.compilers, few)).encode()

    def read(self, content):
        try:
            found = entries.read(content.decode(), "it")
        except (entries.Unreadable, UnicodeDecodeError):  # its readers catch both
            return [4], "", None
        except Exception:  # noqa: BLE001 - the finding
            return [70], "", traceback.format_exc()
        return [0], repr(found), None


class Npy(Format):
    """A user's data."""

    name = "x.npy"

    def make(self):
        file = io.BytesIO()
        np.save(file, np.arange(8.0))
        suite = (
            "from steelyard import benchmark\n@benchmark()\ndef one(b):\n"
            "    x = b.input((8,))\n    y = b.output((8,))\n"
            "    return b.launch(lambda x, out: None, x, out=y)\n"
        )
        (self.folder / "one.py").write_text(suite)
        return file.getvalue()

    def changed(self, rng):
        if rng.random() < 0.1:
            file = io.BytesIO()
            other = rng.choice((np.savez, np.savez_compressed))
            other(file, x=np.arange(8.0))
            return bytes_changed(file.getvalue(), rng)
        if rng.random() < 0.5:  # the header is where it goes wrong
            return bytes_changed(self.good[:128], rng) + self.good[128:]
        return bytes_changed(self.good, rng)

    def lines(self):
        one = self.folder / "one.py"
        yield "run", one, "--input", f"x=@{self.path}", "--dry-run"

    def read(self, content):
        codes, said, failed = super().read(content)
        inputs._KEPT.clear()  # another file of the same path
        try:
            buffers = fakes.prepared(self.loading)[1]
        except BenchmarkError as error:
            return [*codes, 4], said + str(error), failed
        except Exception:  # noqa: BLE001 - the finding
            return codes, said, traceback.format_exc()
        return [*codes, 0], said + repr(buffers.read("x")), failed

    def loading(self, b):
        """Declare a case that loads the file, and nothing else."""
        x = b.load(str(self.path))
        return b.launch(print, x)


class Policy(Format):
    """A project's policy."""

    name = "policy.toml"

    def make(self):
        (self.folder / "gate.json").write_text(document.dumps(OUTCOME))
        return (ROOT / "ci" / "policy.toml").read_bytes()

    def lines(self):
        yield accept(self.folder / "gate.json", self.path)


class Project(Format):
    """A project's settings."""

    name = "pyproject.toml"

    def make(self):
        trials.kept(self.folder / "s.db", [])
        return (
            b'[project]\nname = "x"\n[tool.steelyard]\nsuites = ["suites"]\n'
            b'store = "s.db"\nbudget = 60\nprecision = 0.5\nblocks = 4\ntimeout = 60\n'
            b'seed = 0\ngpu = "0"\nclock = "auto"\npeaks = "auto"\nbuild = "make"\n'
        )

    def lines(self):
        yield "show", "--runs"


class Imported(Format):
    """Results of another tool, of which nothing but what is read can be checked."""

    name, by_bytes = "results/box/1.json", 0.4

    def make(self):
        place = EXAMPLES[self.tool]
        self.path.parent.mkdir(parents=True)
        if self.tool == "asv":
            units = place.parent.parent / asv.BENCHMARKS
            shutil.copy(units, self.path.parent.parent)
        return place.read_bytes()

    def lines(self):
        where = self.empty_store()
        yield "import", self.path, *where
        with Store.open(str(where[1])) as opened:
            if not opened.runs():
                return
        yield "show", *where
        yield "show", "--format", "json", *where
        yield "history", *where
        yield "report", "@-1", "-o", self.folder / "x.html", *where


class Asv(Imported):
    """The same, read where it lies."""

    tool = "asv"

    def lines(self):
        yield "history", "--asv", self.folder / "results"
        yield "history", "b.time_range", "--asv", self.folder / "results"


IMPORTED = tuple(
    type(f"Import-{tool}", (Imported,), {"tool": tool}) for tool in EXAMPLES
)


class Capsule(Format):
    """A capsule, whose bytes change or whose values do under right digests."""

    name, by_bytes = "x.syc", 0.3

    def make(self):
        code = llvm.assemble("define void @k(ptr %launch, ptr %args) { ret void }")
        handle = {"name": "y", "role": "output", "shape": [8], "dtype": "float32"}
        x = handle | {"name": "x", "role": "input"}
        recipe = [["dist", "normal"], ["mean", 0.0], ["deviation", 1.0]]
        self.members = {
            "code": code,
            "run.json": archive.write(trials.run(), [trials.trial("copy[n=8]")]),
            "check/0.indices": np.arange(8).astype("<i8").tobytes(),
            "check/0.wanted": np.arange(8.0).astype("<f8").tobytes(),
        }
        self.content = {
            "case": "copy[n=8]",
            "benchmark": "copy",
            "axes": {"n": 8},
            "source": "aa",
            "file": "copy.py",
            "line": 3,
            "device": "cpu",
            "features": ["avx2"],
            "seed": 0,
            "modes": ["kernel/warm"],
            "counts": {"bytes": 64.0},
            "handles": [x | {"recipe": recipe}, handle | {"recipe": []}],
            "arrays": [
                {"name": "a", "handle": "x", "bytes": 32},
                {"name": "out", "handle": "y", "bytes": 32},
                {"name": "spare", "handle": None, "bytes": 64},
            ],
            "launch": {
                "entry": "k",
                "slots": [["input", "a", 0], ["output", "out", 0], ["extent", "n", 8]],
                "facts": {
                    "code_hash": blake2b(code, digest_size=16).hexdigest(),
                    "bytes": 64,
                },
                "threads": 1,
            },
            "check": {
                "rtol": None,
                "atol": 0.0,
                "results": [{"rows": 8, "dtype": "float64"}],
            },
        }
        return capsules.write(self.content, self.members)

    def other(self, rng):
        content, members = self.content, dict(self.members)
        if rng.random() < 0.2:
            name = rng.choice([*members])
            members[name] = bytes_changed(members[name], rng)
        else:
            content = values_changed(content, rng)
        try:
            return capsules.write(content, members)
        except (UnicodeError, TypeError):  # not even a careless program writes this
            return self.other(rng)

    def lines(self):
        yield "replay", self.path, "--dry-run"
        yield "replay", self.path, "--trust", "--mode", "kernel/cold", "--dry-run"

    def read(self, content):
        """Nothing is loaded, and no process is started."""
        with (
            mock.patch.object(llvm, "link", side_effect=AssertionError("loaded")),
            mock.patch.object(subprocess, "Popen", side_effect=AssertionError("run")),
        ):
            return super().read(content)


class CapsuleBytes(Capsule):
    """The same, whose digests see every change."""

    sealed, by_bytes = True, 1.0


FORMATS = (
    *(*IMPORTED, Sqlite, Archive, ArchiveBytes, Page, Gate, SealedGate, GatePage),
    *(Trace, Stacks, Lock, Capsule, CapsuleBytes, Npy, Asv, Policy, Project),
)


def tried(kind, folder, count, seed):
    """Return counts of what became of so many files, and what is wrong with some."""
    rng = random.Random(seed)
    one = kind(folder)
    codes, whole, failed = one.read(one.good)
    assert failed is None, failed
    names = ("tried", "refused", "same", "other", "traceback", "silent")
    found = dict.fromkeys(names, 0)
    wrong = []
    for _ in range(count):
        content = one.changed(rng)
        now, said, failed = one.read(content)
        refused = now != codes
        other = not refused and said != whole
        found["tried"] += 1
        found["refused"] += refused
        found["traceback"] += failed is not None
        found["same"] += not refused and not other
        found["other"] += other
        if other and one.sealed and failed is None:
            found["silent"] += 1
            lines = (whole.splitlines(), said.splitlines())
            wrong.append("silent:\n" + "\n".join(difflib.unified_diff(*lines)))
        if failed is not None:
            wrong.append(failed)
    return found, wrong


def main():
    """Try every format and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    options = parser.parse_args()
    bad = 0
    for kind in FORMATS:
        name = kind.__name__.lower()
        if options.only not in {None, name}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found, wrong = tried(kind, Path(folder), options.each, options.seed)
            os.chdir(ROOT)
        bad += found["traceback"] + found["silent"]
        sys.stdout.write(f"{name}: {json.dumps(found)}\n")
        for text in wrong[:5]:
            sys.stdout.write(f"{text[-3000:]}\n")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()

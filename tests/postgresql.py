"""A server of PostgreSQL for tests, in a folder of its own, where its programs are."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

USER = "steelyard"
PASSWORD = "correct horse"

OTHERS = ("postgres", "nobody")
"""Who runs it where we are root, as whom it refuses to run."""


def programs():
    """Return the folder of the newest server's programs; None where there is none."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdecimal() else 0,
    )
    on_path = shutil.which("initdb")
    newest = found[-1] if found else on_path and Path(on_path).resolve()
    return newest.parent if newest else None


def _somebody():
    """Return the user that a root starts it as."""
    for name in OTHERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError(f"there is none of the users {', '.join(OTHERS)}")


class Server:
    """A running server; `url` names one of its databases."""

    def __init__(self, folder):
        self._bin = programs()
        self._folder = Path(folder)
        self._data = self._folder / "data"
        self._as = {}
        if os.geteuid() == 0:
            user = _somebody()
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        how = ["-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        self._do("initdb", "-D", self._data, *how, "--no-locale", "-E", "UTF8")
        self.port = _free_port()
        self._made = 0
        self.start()

    def _do(self, program, *words):
        line = [self._bin / program, *map(str, words)]
        subprocess.run(
            line,
            cwd=self._folder,
            env=os.environ | {"PGCTLTIMEOUT": "600"},
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as,
        )

    def start(self):
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -k {self._folder} -h 127.0.0.1 -c fsync=off"
        log = self._folder / "log"
        self._do("pg_ctl", "-D", self._data, "-l", log, "-w", "-o", options, "start")

    def stop(self):
        """End it and every connection at once."""
        self._do("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def signal(self, number):
        """Send a signal to the server and to all of its processes."""
        first = psutil.Process(
            int((self._data / "postmaster.pid").read_text().split()[0])
        )
        first.send_signal(number)  # before the others: it starts no more of them
        for process in first.children():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    @contextmanager
    def frozen(self):
        """Stop all of its processes from running as long as the context lasts."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def execute(self, statement, database="postgres"):
        """Return the rows of a statement."""
        import psycopg  # in an extra

        with psycopg.connect(self._conninfo(database), autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def _conninfo(self, database):
        place = f"host=127.0.0.1 port={self.port} dbname={database}"
        return f"{place} user={USER} password='{PASSWORD}'"

    def url(self, database=None):
        """Return the URL of a database, by default of a new and empty one."""
        if database is None:
            self._made += 1
            database = f"d{self._made}"
            self.execute(f"CREATE DATABASE {database}")
        return (
            f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"
        )


def _free_port():
    """Return one below those that connections get: it stays free while nobody listens."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    draw = random.SystemRandom()  # tests seed the other
    while True:
        port = draw.randrange(first // 2, first)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def serve():
    """Yield a server and remove it afterwards."""
    folder = tempfile.mkdtemp(prefix="steelyard-postgresql-", dir="/tmp")
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)

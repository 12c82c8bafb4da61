"""Run a command, and end with it everything that it started.

Run as ``python -I -S keeper.py PARENT MOST COMMAND...`` and ends as the command does.
What the command leaves behind becomes this process's to end, also in sessions of its
own; so it does when process PARENT is gone, however that ended, and on SIGTERM. All that
they print goes to standard error if MOST is not 0, and no more bytes than that.
"""

from __future__ import annotations

import _thread  # threading takes long to import
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import subprocess

SECONDS: Final = 5.0
"""After which those that cannot be ended are left."""

PAUSE: Final = 0.001

LEFT_OUT: Final = b"\nsteelyard: of what the work prints the rest is left out\n"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def command(program: Sequence[str], most: int = 0) -> list[str]:
    """Return the command line that runs a program under a keeper of this process.

    ``most`` is how many bytes it may print, to standard error; 0: all, to where it is.
    """
    keeper = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    return [*keeper, str(most), *program]


def end_kept(keeper: subprocess.Popen[Any]) -> None:
    """Have a keeper end all that it keeps, and wait for that."""
    import subprocess  # here alone: keepers are to start at once

    if keeper.poll() is None:
        keeper.terminate()
        keeper.send_signal(signal.SIGCONT)  # the work may have stopped it
        try:
            keeper.wait(2 * SECONDS)
        except subprocess.TimeoutExpired:
            keeper.kill()
    keeper.wait()


def main(parent: int, most: int, program: Sequence[str]) -> None:
    """Start the program, wait for its end or for SIGTERM, and end as it did."""
    awaited = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    for one in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(one, signal.SIG_IGN)  # the work may send them to its parent
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    keeper = os.getpid()
    printed, prints = os.pipe()
    child = os.fork()
    if child == 0:
        for descriptor in (1, 2) if most else ():
            os.dup2(prints, descriptor)
        _become(program, keeper, libc)
    os.dup2(printed, 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # who reads a pipe sees the child's end
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(_pass_on, (most, done))
    status = None
    while status is None and signal.sigwait(awaited) == signal.SIGCHLD:
        status = _reaped(child)
    _end_all()
    done.acquire(timeout=SECONDS)
    _end_as(status or 0)


def _pass_on(most: int, done: _thread.LockType) -> None:
    """Copy from standard input to standard error until nobody writes there any more."""
    while text := os.read(0, 1 << 16):
        if most >= 0:
            try:
                os.write(2, text[:most] + (LEFT_OUT if len(text) > most else b""))
            except OSError:  # nobody reads it: the work is not to wait for that
                most = 0
            most -= len(text)
    done.release()


def _become(program: Sequence[str], keeper: int, libc: ctypes.CDLL) -> None:
    """Run the program in a session of its own; it ends when the keeper does."""
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for one in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() == keeper:
            os.execvp(program[0], list(program))  # noqa: S606 # its words as they are
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
    os._exit(127)


def _reaped(child: int) -> int | None:
    """Wait for all that has ended; return how the child did, if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _end_all() -> None:
    """Kill children until there is none: those of the killed become ours."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # gone, or of another user
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(PAUSE)


def _children() -> list[int]:
    """Return the processes whose parent is this one."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208 # pathlib takes long to import
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 # likewise
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    found.append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def _end_as(status: int) -> None:
    """End as a wait status says, without a second core file."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

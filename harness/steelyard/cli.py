"""Where the script ``steelyard`` begins: Ctrl-C is answered while modules are loaded too."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import Final

SPARED: Final = 100_000
"""Objects made between looks for garbage, which modules are not: 700 by default."""


def main() -> None:
    """Load the command line and run it."""
    gc.set_threshold(SPARED)
    atexit.register(gc.freeze)  # what is left at the end is not looked through
    try:
        from steelyard.commands import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # commands.INTERRUPTED, which is not loaded yet
    except SystemExit as end:
        sys.stderr.flush()
        if any(map(_holds_on, threading.enumerate())):
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise


def _holds_on(thread: threading.Thread) -> bool:
    """Tell whether it is of a suite's import and the process would never end for it.

    Idle workers of executors end by themselves, once they are told.
    """
    idle = thread.name.startswith("ThreadPoolExecutor")
    return not (thread.daemon or idle or thread is threading.main_thread())


if __name__ == "__main__":
    main()

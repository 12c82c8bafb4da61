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
        if not all(one.daemon for one in threading.enumerate()[1:]):
            os._exit(int(end.code or 0))  # what a suite's import began goes on for ever
        raise


if __name__ == "__main__":
    main()

"""Where the script ``steelyard`` begins: Ctrl-C is answered while modules are loaded too."""

from __future__ import annotations

import atexit
import gc
import sys
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


if __name__ == "__main__":
    main()

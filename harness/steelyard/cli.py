"""Where the script ``steelyard`` begins: Ctrl-C is answered while modules are loaded too."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the command line and run it."""
    try:
        from steelyard.commands import main as command

        command()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)  # commands.INTERRUPTED, which is not loaded yet


if __name__ == "__main__":
    main()

"""The command line as ``python -m steelyard``: which Python runs it is then certain."""

from steelyard.cli import main

main()

"""The same suites for pytest and asv."""

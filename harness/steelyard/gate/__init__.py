"""The gate: both sides of a change measured in turn, and an exit code of it."""

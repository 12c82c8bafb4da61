"""The machine and its files: facts, lock, checks, neighbours."""

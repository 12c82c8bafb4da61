"""Runs that are kept: as bytes, in a database, in a file."""

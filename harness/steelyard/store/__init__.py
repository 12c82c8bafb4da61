"""Runs kept in a database or a file, and series of them."""

"""Emitters: a verified loop kernel to source text, one target a module."""

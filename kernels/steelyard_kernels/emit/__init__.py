"""Emitters: a verified loop kernel to source text, one target a module."""

from __future__ import annotations

from typing import Final

ENTRY: Final = "kernel"
"""What every text calls its kernel: a hash must not depend on names."""

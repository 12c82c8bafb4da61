"""Loops that carry state, in one kernel: small values in registers, chain by chain."""

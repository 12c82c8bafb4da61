"""Hands the benchmarks of this folder to asv, which looks for classes."""

from steelyard.plugins import asv

globals().update(asv.families(__file__))

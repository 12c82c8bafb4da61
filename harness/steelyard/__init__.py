"""steelyard weighs compute kernels: the kernel, and nothing else.

A benchmark is a function over handles, decorated with ``benchmark``; see README.md.
"""

from __future__ import annotations

from steelyard import moved
from steelyard.declare.axes import Axis, axis
from steelyard.declare.benchmark import Benchmark, Case, benchmark
from steelyard.declare.handles import Builder, Handle
from steelyard.errors import BenchmarkError, SteelyardError, StoreError

__all__ = [
    "Axis",
    "Benchmark",
    "BenchmarkError",
    "Builder",
    "Case",
    "Handle",
    "SteelyardError",
    "StoreError",
    "axis",
    "benchmark",
]
__version__ = "0.1.0"
moved.install()

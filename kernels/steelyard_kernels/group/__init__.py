"""Many candidates built at once: compiled together, in threads or processes."""

from steelyard_kernels.group.batch import Batch, Candidate, Progress, Stage
from steelyard_kernels.group.build import build_all, candidates_of
from steelyard_kernels.group.run import Group

__all__ = [
    "Batch",
    "Candidate",
    "Group",
    "Progress",
    "Stage",
    "build_all",
    "candidates_of",
]

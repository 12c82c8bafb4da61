"""Many candidates built at once: compiled together, in threads or processes."""

from steelyard_kernels.group.batch import Batch as Batch
from steelyard_kernels.group.batch import Candidate as Candidate
from steelyard_kernels.group.batch import Progress as Progress
from steelyard_kernels.group.batch import Stage as Stage
from steelyard_kernels.group.build import build_all as build_all
from steelyard_kernels.group.build import candidates_of as candidates_of
from steelyard_kernels.group.run import Group as Group

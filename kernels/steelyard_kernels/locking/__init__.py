"""What every kernel's code takes, in a file that is reviewed: `steelyard lock`.

Case* x target --trace, schedule, emit--> text --compile--> Entry* --> kernels.lock
"""

from steelyard_kernels.locking.run import compare

__all__ = ["compare"]

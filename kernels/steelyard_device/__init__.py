"""Run anyone's compiled kernel: memory, threads, load, launch, probes.

``llvm`` turns LLVM IR into loaded machine code, ``cpu`` launches it on this
machine's cores. Nothing here knows about tensors, schedules or statistics.
"""

"""Mathematical functions as operations of the loop IR, for every emitter.

Each takes what statements are appended to and values of float32 or float64; `ops` has a
row that names it, with the errors seen.
"""

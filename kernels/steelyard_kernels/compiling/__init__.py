"""Behind `steelyard compile`: what to build, building it, and saying what came of it."""

"""`steelyard compile` and `steelyard lock`: where the compiler and the harness meet."""

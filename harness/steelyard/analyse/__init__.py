"""What samples say: estimates, doubts, rows, comparisons. Pure functions of values."""

"""What a case works on, preallocated, checked."""

"""What a case works on: inputs, buffers, other libraries' arrays, checked results."""

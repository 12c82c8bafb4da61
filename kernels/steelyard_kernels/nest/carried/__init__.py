"""Programs that carry state, and small values of any shapes, in registers."""

"""The normalization strategy: rows reduced and used again in one kernel."""

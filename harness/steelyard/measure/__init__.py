"""The sampling loop: windows, stopping, cache flushes, ledger, audit."""

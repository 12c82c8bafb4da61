"""What is measured: benchmarks, axes, modes, settings, and where they are found."""

"""A commit against another: both sides measured in turn, and judged."""

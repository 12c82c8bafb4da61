"""Schedules: the knobs of each strategy, its model, and its lowering to loops."""

"""Recipes: functions that propose schedules of a nest, for one kind of program each."""

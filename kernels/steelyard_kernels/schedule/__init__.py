"""Schedules as data, the recipes that propose them, and the models that rank them."""

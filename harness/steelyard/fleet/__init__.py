"""Many commits and many machines."""

"""Reports: rows are what trials say, each other file is one way to show them."""

"""Tables, pages and files that show results."""

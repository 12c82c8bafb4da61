"""The site: `make docs` builds it, and any warning fails."""

project = "steelyard"
author = "the authors of steelyard"
copyright = "the authors of steelyard"  # noqa: A001 # Sphinx's own name

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3  # headings can be linked to as on GitHub
autodoc_member_order = "bysource"  # as a reader of the file meets them
autodoc_typehints = "signature"
default_role = "code"  # docstrings put names in single backticks

html_theme = "furo"
html_title = "steelyard"

"""What is measured; a package because asv finds nothing in a plain folder."""

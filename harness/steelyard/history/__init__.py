"""Cases over the stored runs of a branch."""

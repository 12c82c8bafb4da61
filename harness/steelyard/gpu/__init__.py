"""Cases on a GPU: what differs there from what the host's clock reads."""

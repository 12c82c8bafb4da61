"""What the gate tells on this machine, measured on the gate itself."""

"""From a program to launches, and buffers between them."""

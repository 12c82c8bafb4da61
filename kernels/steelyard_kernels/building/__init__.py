"""From a program to a build, or the one that was kept."""

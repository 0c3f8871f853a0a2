"""A cluster of child processes on this machine."""

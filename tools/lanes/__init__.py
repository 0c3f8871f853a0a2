"""Runs tests and other checks in lanes side by side."""

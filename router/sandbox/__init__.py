"""Processes that do for a router what no thread could be stopped doing."""

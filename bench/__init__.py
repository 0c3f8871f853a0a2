"""Benchmarks; each prints its figures and says whether a target was missed."""

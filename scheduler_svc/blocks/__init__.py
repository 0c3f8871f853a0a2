"""Blocks of the KV cache: allocated, shared, cached, swapped."""

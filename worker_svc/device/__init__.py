"""The device that computes: CPU or CUDA."""

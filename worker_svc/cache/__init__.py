"""The KV cache on device and host."""

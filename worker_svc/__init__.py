"""Worker service: runs a model with paged attention on one device."""

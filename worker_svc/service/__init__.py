"""The gRPC face of a worker."""

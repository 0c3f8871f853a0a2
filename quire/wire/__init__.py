"""Domain types to and from protobuf."""

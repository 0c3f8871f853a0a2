"""Native models, one file a family."""

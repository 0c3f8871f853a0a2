"""Native models, one file for each family."""

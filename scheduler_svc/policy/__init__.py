"""Who runs in a step."""

"""A request from its validation to its last token."""

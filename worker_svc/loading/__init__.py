"""A model directory to weights in memory."""

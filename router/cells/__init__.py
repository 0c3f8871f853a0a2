"""The cells, their load, and which of them a request goes to."""

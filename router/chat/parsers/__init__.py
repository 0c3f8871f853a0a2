"""What the text of an assistant means: reasoning, tool calls, and what is left to be read."""

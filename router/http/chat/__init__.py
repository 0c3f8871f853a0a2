"""/v1/chat/completions of OpenAI's API."""

"""/v1/completions of OpenAI's API."""

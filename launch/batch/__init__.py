"""Files of requests, answered offline: OpenAI's batch format."""

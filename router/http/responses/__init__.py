"""/v1/responses of OpenAI's API."""

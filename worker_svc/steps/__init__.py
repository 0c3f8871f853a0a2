"""A step: from its orders to the model's inputs."""

"""What models are built of; each layer takes its own slice of the weights when it is made."""

"""The parts that models are built of; each reads its slice of the weights when it is made."""

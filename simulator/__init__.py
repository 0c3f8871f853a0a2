"""Many cells under load, simulated: routing policy and scheduler core are the real ones."""

"""`quire bench`: what a server, or the engine without one, does under load."""

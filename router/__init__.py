"""The router: takes requests, turns text into tokens and back, carries streams over failures."""

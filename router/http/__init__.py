"""HTTP APIs of the router: each translates to the same requests, and their events back."""

"""Services of other protocols: each translates to and from the same requests."""

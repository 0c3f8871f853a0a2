"""`make bench-peers`: Quire beside other engines, on the same machine, models and requests."""

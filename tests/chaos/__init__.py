"""`make chaos`: kills and freezes processes of a cluster at random, and compares every answer."""

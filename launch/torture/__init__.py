"""`quire torture`: the same questions under every kind of trouble, and which answers change."""

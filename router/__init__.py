"""Router: takes generate RPCs, validates, tokenizes, and streams text back."""

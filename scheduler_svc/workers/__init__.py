"""The workers of a cell: their addresses, their clients, their formation."""

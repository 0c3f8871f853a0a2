"""What `quire replay` does: reads what a scheduler recorded, runs it again, and compares."""

"""The policy: what each step computes."""

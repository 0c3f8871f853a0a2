"""Conversations: what a model's chat template makes of them, and what an answer means in one."""

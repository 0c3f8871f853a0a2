"""Sequences, their groups, beams and preemption."""

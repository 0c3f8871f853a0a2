"""Tensor parallel ranks and what they exchange."""

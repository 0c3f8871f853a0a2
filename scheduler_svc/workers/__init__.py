"""The workers of a cell, and how they are formed into one."""

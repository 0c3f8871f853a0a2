"""One client for each API that is measured."""

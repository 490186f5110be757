"""Writes the pages of docs/reference from the code; `scripts.generate_reference` runs it."""

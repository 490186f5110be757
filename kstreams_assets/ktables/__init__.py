"""Decoded contents of state stores at the end of windows, in Delta tables."""

"""Benchmarks: `make bench`, or `python -m bench windows|backup`."""

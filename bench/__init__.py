"""Benchmarks: `make bench`, or `python -m bench plain windows ...`."""

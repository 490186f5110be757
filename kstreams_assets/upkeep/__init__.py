"""Maintenance of a warehouse: verify, expire, copy, repair."""

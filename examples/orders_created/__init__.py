"""The orders of `orders.created.v1`, which two of the examples read."""

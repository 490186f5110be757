"""Counts the orders of each customer; two versions run side by side."""

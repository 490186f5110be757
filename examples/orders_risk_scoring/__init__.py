"""Sorts orders by risk, poison records included, and scores customers."""

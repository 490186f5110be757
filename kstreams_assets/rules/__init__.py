"""Completeness rules: their views, SQL and balances, checked before anything runs."""

"""What rules say: views that they name, their SQL and balances, checked before anything runs."""

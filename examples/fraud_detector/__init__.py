"""Bursts of large transactions of users at risk: a global table, session windows, alerts."""

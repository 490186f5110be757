"""Comparison of the declaration of an application with its cluster; findings include remedies."""

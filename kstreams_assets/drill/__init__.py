"""Restore drills: an application restored into a throwaway cluster, started and judged."""

"""Restore drills: restore an application to a throwaway cluster, start it and evaluate it."""

"""`make demo`: a live application, backed up window by window; `make dev`: the same in the UI."""

"""State as tables: what a store held at the end of a window, decoded, in Delta."""

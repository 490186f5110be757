"""Values that modules exchange: points, windows, spans, restores. Without I/O."""

"""Values that modules exchange: points, windows, spans, restores. Without input and output."""

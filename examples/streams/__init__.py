"""What the example applications share: how they are started, fed and asked."""

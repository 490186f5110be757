"""What keeps a warehouse in order: verify, expire, copy, repair."""

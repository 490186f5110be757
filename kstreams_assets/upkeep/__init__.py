"""What keeps a warehouse in order: verify, expire, copy, repair, and what it holds at a glance."""

"""A warehouse that looks after itself."""

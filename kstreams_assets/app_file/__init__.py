"""The YAML of an application: its blocks, what they say together, and how files are read."""

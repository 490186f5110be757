"""The YAML of an application: its blocks, the settings they produce, and the reader."""

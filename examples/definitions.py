"""The code location of the examples: every application below `examples/defs/`."""

from kstreams_assets.orchestration.location import load_applications

defs = load_applications(__file__)

"""Places of a warehouse that a test keeps on a disk."""

from pathlib import Path

from kstreams_assets.store import StorePath


def on_disk(path: StorePath) -> Path:
    """The file or folder itself, for what only a disk has."""
    assert isinstance(path, Path)
    return path

"""Fixtures of the components' tests."""

from pathlib import Path

import pytest

import kstreams_assets
from tests.components.project import project

__all__ = ["order_processor", "project"]


@pytest.fixture(scope="session")
def order_processor() -> str:
    """The topology text of the worked example."""
    folder = Path(kstreams_assets.__file__).parent / "defs" / "order_processor"
    return (folder / "topology.txt").read_text("utf-8")

"""Fixtures of the components' tests."""

from pathlib import Path

import pytest

import examples
from tests.components.project import project

__all__ = ["order_processor", "project"]


@pytest.fixture(scope="session")
def order_processor() -> str:
    """The topology text of the worked example."""
    folder = Path(examples.__file__).parent / "defs" / "order_processor"
    return (folder / "topology.txt").read_text("utf-8")

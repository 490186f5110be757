"""Fixtures of the tests of Dagster's assets and components."""

from pathlib import Path

import pytest

import examples
from tests.orchestration.project import project
from tests.orchestration.restoring import shop
from tests.restore.restored_app import backed_up, requests, restored_app

__all__ = ["backed_up", "order_processor", "project", "requests", "restored_app", "shop"]


@pytest.fixture(scope="session")
def order_processor() -> str:
    """The topology text of the worked example."""
    folder = Path(examples.__file__).parent / "defs" / "order_processor"
    return (folder / "topology.txt").read_text("utf-8")

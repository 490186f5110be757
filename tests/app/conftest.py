"""Topology texts written by the real Kafka Streams (DescribeTopologies.java beside them)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kstreams_assets.app.topology import Topology, parse_topology

_TEXTS = Path(__file__).parent / "topologies"


@pytest.fixture(scope="session")
def topology_text() -> Callable[[str], str]:
    """Reads a text by the name of its file."""
    return lambda name: (_TEXTS / f"{name}.txt").read_text()


@pytest.fixture(scope="session")
def topology(topology_text: Callable[[str], str]) -> Callable[[str], Topology]:
    """Reads and parses a text by the name of its file."""
    return lambda name: parse_topology(topology_text(name))

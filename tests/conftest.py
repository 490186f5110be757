"""Fixtures for all tests."""

from tests.streams.cluster import kafka_cluster
from tests.streams.spark import pytest_configure, pytest_unconfigure, spark
from tests.streams.workbench import closed_in_order, workbench

__all__ = [
    "closed_in_order",
    "kafka_cluster",
    "pytest_configure",
    "pytest_unconfigure",
    "spark",
    "workbench",
]

"""Fixtures for all tests."""

from tests.streams.cluster import kafka_cluster
from tests.streams.spark import spark
from tests.streams.workbench import workbench

__all__ = ["kafka_cluster", "spark", "workbench"]

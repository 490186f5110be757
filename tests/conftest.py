"""Fixtures for all tests."""

from tests.streams.cluster import kafka_cluster
from tests.streams.spark import (
    pytest_addoption,
    pytest_configure,
    pytest_unconfigure,
    spark,
    spark_cluster,
)
from tests.streams.workbench import closed_in_order, workbench

__all__ = [
    "closed_in_order",
    "kafka_cluster",
    "pytest_addoption",
    "pytest_configure",
    "pytest_unconfigure",
    "spark",
    "spark_cluster",
    "workbench",
]

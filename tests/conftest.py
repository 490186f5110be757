"""Fixtures for all tests."""

from hypothesis import HealthCheck, settings

from tests.streams.cluster import kafka_cluster
from tests.streams.spark import (
    pytest_addoption,
    pytest_configure,
    pytest_unconfigure,
    spark,
    spark_cluster,
)
from tests.streams.workbench import closed_in_order, workbench

# How long an example takes says nothing on a busy machine; the timeout of a test holds.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

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

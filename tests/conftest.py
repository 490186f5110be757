"""Fixtures for all tests."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from kstreams_assets import secret
from tests.streams.cluster import cluster, kafka_cluster
from tests.streams.guarded import guarded_cluster
from tests.streams.spark import (
    pytest_addoption,
    pytest_configure,
    pytest_unconfigure,
    spark,
    spark_cluster,
)
from tests.streams.workbench import closed_in_order, on_spark, workbench

# How long an example takes says nothing on a busy machine; the timeout of a test holds.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Nothing is synced: a killed process loses no file, and `test_power_cut` has its own one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_children() -> None:
    """Shells start `make test &` with SIGINT ignored, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _secrets_of_one_test() -> Iterator[None]:
    """A secret that a test reads masks nothing in the next: properties make up secrets like `C`."""
    before = set(secret._read)
    yield
    secret._read.intersection_update(before)


__all__ = [
    "closed_in_order",
    "cluster",
    "guarded_cluster",
    "kafka_cluster",
    "on_spark",
    "pytest_addoption",
    "pytest_configure",
    "pytest_unconfigure",
    "spark",
    "spark_cluster",
    "workbench",
]

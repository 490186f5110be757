"""Shared state of the phases of a restore."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from spark_resources.work import Spark


@dataclass(frozen=True)
class RunContext:
    """The application, the target, Spark, the run's id; the warehouse is opened once.

    `clock` returns seconds; only differences matter.
    """

    settings: ApplicationSettings
    target: KafkaConnection
    spark: Spark
    run_id: str
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def repo(self) -> Repository:
        """The warehouse of the application."""
        return Repository.open(self.settings)

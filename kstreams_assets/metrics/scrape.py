"""One scrape: every source of every application, asked side by side and within a time."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from kstreams_assets.drill.evidence import Evidence
from kstreams_assets.errors import ConfigurationError
from kstreams_assets.metrics.cluster import read_cluster, read_group
from kstreams_assets.metrics.proofs import (
    completeness_samples,
    drill_samples,
    governance_samples,
    readiness_samples,
    restore_samples,
)
from kstreams_assets.metrics.reading import Reading
from kstreams_assets.metrics.sample import Sample, Source, families
from kstreams_assets.metrics.warehouse import backup_samples, point_samples, store_samples
from kstreams_assets.settings import ApplicationSettings

_REQUEST_SHARE: Final = 0.8
_PARTS: Final = (
    point_samples,
    backup_samples,
    store_samples,
    restore_samples,
    completeness_samples,
    governance_samples,
    drill_samples,
    readiness_samples,
)


class Scrape(Collector):
    """What Prometheus' client collects at each scrape; usable from several threads.

    A scrape takes `timeout_s` seconds at most. A source that does not answer by then, or with an
    error, has `kstreams_up` 0; what the others said is there all the same.
    """

    def __init__(self, settings: Iterable[ApplicationSettings], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._readings = [
            reading for of_one in settings for reading in _readings(of_one, timeout_s)
        ]

    def collect(self) -> list[MetricFamily]:
        """Every metric of every application."""
        deadline = time.monotonic() + self._timeout_s
        asked = [(reading, reading.start()) for reading in self._readings]
        samples: dict[str, list[Sample]] = {}
        for reading, answer in asked:
            found = reading.finish(answer, deadline=deadline)
            samples.setdefault(reading.application_id, []).extend(found)
        return families(samples)


def _readings(settings: ApplicationSettings, timeout_s: float) -> list[Reading]:
    # Before the scrape ends, so that the broker's own reason is told and not just a timeout.
    request_s = min(settings.connection.request_timeout_seconds, _REQUEST_SHARE * timeout_s)
    read: dict[Source, Callable[[], Sequence[Sample]]] = {
        Source.CLUSTER: partial(read_cluster, settings, timeout_s=request_s),
        Source.GROUP: partial(read_group, settings, timeout_s=request_s),
        Source.WAREHOUSE: partial(read_warehouse, settings),
    }
    return [
        Reading(settings.application_id, source, ask, timeout_s) for source, ask in read.items()
    ]


def read_warehouse(settings: ApplicationSettings) -> list[Sample]:
    """Everything that the tables tell.

    Raises NewerLayoutError, and ConfigurationError where the folder is not there (not mounted).
    """
    if not settings.warehouse.root.is_dir():
        raise ConfigurationError(
            f"The warehouse {settings.warehouse.root} is not there.",
            remedy="Check the path and whether the disk is mounted.",
        )
    evidence = Evidence(settings)
    return [sample for part in _PARTS for sample in part(evidence)]

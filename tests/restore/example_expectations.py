"""What several examples' tests expect: where Kafka puts a key, how long a changelog keeps rows."""

from collections.abc import Mapping
from typing import Final

from kafka.partitioner.default import murmur2

from kstreams_assets.model.point import Guarantee, RecoveryPoint
from kstreams_assets.repository.ledger import TopicFactsTable
from tests.restore.example_trial import LIVE, PARTITIONS, ExampleRun

_ADDITIONAL_MS: Final = 86_400_000
"""What Kafka Streams adds to the retention of a store (windowstore.changelog.additional...)."""


def partition_of(key: bytes) -> int:
    """The partition that Kafka's own producers, and so repartition topics, give a key."""
    return (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def retention_differences(run: ExampleRun) -> Mapping[str, tuple[int | None, int | None]]:
    """Stores whose declared retention is not what their changelog's configs said when backed up."""
    settings, (_, last) = run.settings, run.windows
    facts = TopicFactsTable(settings.warehouse, settings.application_id).before(last.end_ms)
    found: dict[str, tuple[int | None, int | None]] = {}
    for store in settings.application.stores:
        if store.changelog is None or store.is_global:
            continue
        noted = dict(facts[store.changelog].configs).get("retention.ms")
        kept_ms = None if noted is None else int(noted) - _ADDITIONAL_MS
        declared_ms = settings.store_formats[store.name].retention_ms
        if kept_ms != declared_ms:
            found[store.name] = (declared_ms, kept_ms)
    return found


def assert_live_and_exact(run: ExampleRun) -> Mapping[str, RecoveryPoint]:
    """Every live point is exact, and something was fed after it; returns the points."""
    points = run.source.points
    assert {point.guarantee for point in points.values()} == {Guarantee.EXACT}
    for label in LIVE:
        assert any(run.after(points[label]).values()), label
    return points

"""What the stores of a running example answer, through its HTTP endpoint."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from examples.streams.application import ExampleApplication
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from tests.restore.control import read
from tests.restore.trial import Source

QUERYABLE: Final = frozenset(
    {StoreKind.KEY_VALUE, StoreKind.WINDOW, StoreKind.SESSION, StoreKind.VERSIONED}
)

Rows = Sequence[Mapping[str, Any]]
"""Entries of a store, as its HTTP endpoint gives them."""


def queried_stores(settings: ApplicationSettings) -> Mapping[str, StoreFormat]:
    """The stores with a log that can be queried, with their formats."""
    formats = settings.store_formats
    return {
        store.name: formats[store.name]
        for store in settings.application.stores
        if store.changelog is not None
        and store.name not in settings.without_ktable
        and store.name in formats
        and formats[store.name].kind in QUERYABLE
    }


def answers_at_rest(source: Source, application: ExampleApplication) -> Mapping[str, Rows]:
    """What each of these stores answers, whole; fails when something is written meanwhile."""
    counts = source.cluster.topics()
    partitions = [
        TopicPartitionId(topic.name, number)
        for topic in source.settings.application.topics
        for number in range(counts[topic.name])
    ]
    before = source.cluster.high_watermarks(partitions)
    answers = _answers(source.settings, application)
    assert source.cluster.high_watermarks(partitions) == before
    return answers


def _answers(settings: ApplicationSettings, application: ExampleApplication) -> dict[str, Rows]:
    logs = {store.name: store.changelog for store in settings.application.stores}
    found: dict[str, Rows] = {}
    for store, form in queried_stores(settings).items():
        topic, keys = logs[store], list[str]()
        if form.kind is StoreKind.VERSIONED and topic is not None:
            records = read(settings.connection.bootstrap_servers, [topic])[topic]
            keys = sorted({record.key.decode() for record in records if record.key is not None})
        found[store] = application.query(store, keys=keys)
    return found

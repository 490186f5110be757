"""What is read from the ledger and from the table of snapshots."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.app_file.read import application_model
from kstreams_assets.governance import run as gather_module
from kstreams_assets.governance.facts import BackedUpRecords, StoreRows
from kstreams_assets.governance.run import backed_up, store_rows
from kstreams_assets.model.snapshot import SnapshotPartition
from kstreams_assets.model.spans import SpanContent, SpanResult
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.repository import Repository
from kstreams_assets.settings import ApplicationSettings
from tests.backup.samples import backup, span, window
from tests.ktables.samples import snapshot
from tests.orchestration.project import attributes


@pytest.fixture
def settings(tmp_path: Path) -> ApplicationSettings:
    """An application with an empty warehouse."""
    said = attributes(warehouse=str(tmp_path))
    return application_model(said).settings(tmp_path)


def back_up(settings: ApplicationSettings, index: int, *contents: tuple[int, int]) -> None:
    """Record a window of the topic `in` with (records, tombstones) of each partition."""
    spans = tuple(
        SpanResult(
            span(0, 100, index=index, topic="in", partition=number),
            SpanContent(records=records, tombstones=tombstones),
            (),
        )
        for number, (records, tombstones) in enumerate(contents)
    )
    made = backup(*spans, index=index, topic="in")
    Ledger(settings.warehouse, "shop").record([made], run_id="run")


def test_nothing_is_there_yet(settings: ApplicationSettings) -> None:
    assert backed_up(settings, ["in"]) == {}
    assert store_rows(settings) == {}


def test_the_newest_windows_are_summed(
    settings: ApplicationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_module, "_NEWEST_WINDOWS", 2)
    for index, contents in enumerate([((900, 9), (1, 0)), ((10, 3), (20, 0)), ((30, 4), (40, 1))]):
        back_up(settings, index, *contents)
    assert backed_up(settings, ["in", "out"]) == {
        TopicPartitionId("in", 0): BackedUpRecords(40, 7),
        TopicPartitionId("in", 1): BackedUpRecords(60, 1),
    }
    assert backed_up(settings, ["out"]) == {}


def test_the_two_newest_snapshots_of_each_store(settings: ApplicationSettings) -> None:
    (settings.warehouse.ktable("shop", "s") / "_delta_log").mkdir(parents=True)
    (settings.warehouse.ktable("shop", "t") / "_delta_log").mkdir(parents=True)
    made = [
        replace(
            snapshot(store="s"),
            window=window(index),
            partitions=(SnapshotPartition(0, "life", 0, 9, rows=rows),),
        )
        for index, rows in enumerate((5, 7, 8))
    ]
    Repository.open(settings).snapshots.record([*made, snapshot(store="t")])
    assert store_rows(settings) == {"s": StoreRows("w0001", 7, "w0002", 8)}

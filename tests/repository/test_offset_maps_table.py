"""Stored offset maps: they come back as they were, a million runs too."""

from pathlib import Path

import numpy as np
import pytest

from kstreams_assets.errors import OffsetMapError, StoredDataError
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.restores import PartitionProduced, StoredMap
from kstreams_assets.model.tables import CONTROL_TABLES
from kstreams_assets.offsets import OffsetMap, OffsetRun, TopicPartitionId, runs_of
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import OffsetMapsTable
from tests.repository.forging import forge_column
from tests.timing import processor_time

APPLICATION_ID = "shop"
MILLION = 1_000_000
RUNS = (OffsetRun(4, 0, 3), OffsetRun(9, 3, 1), OffsetRun(11, 4, 2))


def produced(
    partition: int, *runs: OffsetRun, end: int = 6, topic: str = "orders", prefix: str = "eu."
) -> PartitionProduced:
    """A partition of which these runs were produced."""
    return PartitionProduced(
        source=TopicPartitionId(topic, partition),
        target=TopicPartitionId(prefix + topic, partition),
        runs=runs,
        records=sum(run.length for run in runs),
        resumed=0,
        end=end,
    )


def stored(partition: PartitionProduced) -> StoredMap:
    """What has to come back of it."""
    return StoredMap(partition.target, OffsetMap(partition.runs, partition.end))


@pytest.fixture
def table(tmp_path: Path) -> OffsetMapsTable:
    """The table in an empty warehouse."""
    return Repository(Warehouse(tmp_path), APPLICATION_ID).offset_maps


def test_nothing_stored(table: OffsetMapsTable, tmp_path: Path) -> None:
    table.record("r1", [])
    assert table.load("r1") == {}
    assert not list(tmp_path.iterdir())
    assert "offset_maps" in CONTROL_TABLES


def test_maps_come_back_as_they_were(table: OffsetMapsTable) -> None:
    partitions = [
        produced(11, *RUNS),
        produced(2, *RUNS[:1], end=3),
        produced(2, *RUNS[1:], topic="a'b", prefix=""),
        produced(0, OffsetRun(2**62, 2**62, 1), end=2**62 + 1),
    ]
    table.record("r1", partitions)
    found = table.load("r1")
    assert found == {partition.source: stored(partition) for partition in partitions}
    assert list(found) == sorted(found)
    assert found[TopicPartitionId("orders", 11)].map.map(7) == 3


def test_a_partition_without_records_has_its_end(table: OffsetMapsTable) -> None:
    table.record("r1", [produced(0, end=17), produced(1, *RUNS)])
    assert table.load("r1")[TopicPartitionId("orders", 0)].map.map(5) == 17
    table.record("r2", [produced(0, end=3)])
    assert table.load("r2")[TopicPartitionId("orders", 0)].map == OffsetMap([], 3)


def test_maps_of_some_topics(table: OffsetMapsTable) -> None:
    orders, totals = produced(0, *RUNS), produced(0, *RUNS, topic="totals")
    table.record("r1", [orders, totals])
    found = table.load("r1", topics=["totals", "unknown"])
    assert found == {totals.source: stored(totals)}
    assert table.load("r1", topics=[]) == {}


def test_restores_and_applications_are_apart(table: OffsetMapsTable) -> None:
    one, other = produced(0, *RUNS), produced(0, *RUNS[:1])
    of_eu, of_us = (Repository(table._warehouse, f"shop-{place}") for place in ("eu", "us"))
    table.record("r1", [one])
    table.record("r2", [other])
    of_eu.offset_maps.record("r1", [other])
    assert table.load("r1") == {one.source: stored(one)}
    assert table.load("r2") == {other.source: stored(other)}
    assert of_eu.offset_maps.load("r1") == {other.source: stored(other)}
    assert of_us.offset_maps.load("r1") == table.load("r") == {}


def test_recorded_again(table: OffsetMapsTable) -> None:
    """A resumed restore tells the same runs, in other pieces; nothing is there twice."""
    whole = produced(0, *RUNS)
    pieces = produced(0, OffsetRun(4, 0, 1), OffsetRun(5, 1, 2), *RUNS[1:])
    for attempt in (whole, pieces):
        table.record("r1", [attempt, produced(1)])
        assert table.load("r1")[whole.source] == stored(whole)
    rows = table._table.read()
    assert rows.num_rows == len(RUNS) + 2
    table.record("r1", [produced(1)])
    assert list(table.load("r1")) == [TopicPartitionId("orders", 1)]


def test_a_map_that_cannot_be_is_not_stored(table: OffsetMapsTable) -> None:
    table.record("r1", [produced(0, *RUNS)])
    before = table.load("r1")
    for bad in (produced(7, *RUNS, end=5), produced(7, OffsetRun(0, 0, 2), OffsetRun(1, 5, 1))):
        with pytest.raises(OffsetMapError) as caught:
            table.record("r1", [produced(0, *RUNS), bad])
        assert caught.value.partition == "orders-7"
    assert table.load("r1") == before


def test_a_stored_map_that_was_changed(table: OffsetMapsTable, tmp_path: Path) -> None:
    table.record("r1", [produced(7, *RUNS)])
    starts = table._table.of_all.read()["source_start"].to_pylist()
    forge_column(
        tmp_path / "offset_maps",
        "target_start",
        lambda found: [2 if start == 9 else t for start, t in zip(starts, found, strict=True)],
    )
    with pytest.raises(StoredDataError, match="offset map of orders-7 in restore r1"):
        table.load("r1")
    # One of an earlier release has no digest; then only what contradicts itself is noticed.
    forge_column(tmp_path / "offset_maps", "digest", lambda found: [None] * len(found))
    with pytest.raises(OffsetMapError, match="later in the target") as caught:
        table.load("r1")
    error = caught.value
    assert (error.partition, error.source_offset, error.target_offset) == ("orders-7", 9, 2)


def test_a_million_runs(table: OffsetMapsTable, tmp_path: Path) -> None:
    """Compacted changelogs of 4 partitions, of which every second record survived."""
    source, target = np.arange(0, MILLION // 2, 2), np.arange(MILLION // 4)
    runs = tuple(runs_of(source, target))
    name = "shop-totals-by-customer-store-changelog"
    partitions = [
        PartitionProduced(
            TopicPartitionId(name, number),
            TopicPartitionId(f"eu-{name}", number),
            runs,
            records=len(source),
            resumed=0,
            end=len(source),
        )
        for number in range(4)
    ]
    with processor_time() as recorded:
        table.record("r1", partitions)
    with processor_time() as loaded:
        found = table.load("r1")
    assert found[TopicPartitionId(name, 3)].map == OffsetMap(runs, len(source))
    assert sum(len(each.map.runs) for each in found.values()) == MILLION
    assert loaded.seconds < 3
    assert recorded.seconds < 10
    files = (tmp_path / "offset_maps").rglob("*.parquet")
    assert sum(file.stat().st_size for file in files) < 10 * MILLION

"""Rows of KTable snapshots as files that tasks restore from."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kstreams_assets.errors import KStreamsAssetsError, StoredDataError
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.plan import RestorePlan, SnapshotSource
from kstreams_assets.restore.produce import stage_snapshots, staged_saved_records
from kstreams_assets.restore.request import ChangelogSource, RestoreRequest
from kstreams_assets.store import StorePath
from spark_resources.partition_records import work_records
from spark_resources.resource import SparkSessionResource
from tests.repository.disk import on_disk
from tests.restore.outcomes import TOPICS, TOTALS, plan
from tests.restore.snapshot_tables import Row, write_snapshot
from tests.restore.span_files import work_of

pytestmark = pytest.mark.spark

ROWS = (
    Row(0, 70, b"a", b"7", headers=[("h", None), ("h", b"")]),
    Row(2, 5, b"b", b""),
    Row(0, 3, b"c", b"3", timestamp_ms=5),
    Row(0, 31, b"d", b"31"),
    Row(0, 40, None, b"without a key"),
    Row(2, 9, b"e", None),
    Row(0, 1, b"f", b"another window", window="w2"),
)
"""Of three partitions; the second one has none."""
RECORDS = (3, 0, 1)


def _planned(records: tuple[int, ...] = RECORDS, *, keeps_deletions: bool = False) -> RestorePlan:
    made = plan(RestoreRequest(changelog_source=ChangelogSource.SNAPSHOT), topics=TOPICS[2:])
    (topic,) = made.topics
    (partition,) = topic.partitions
    source = SnapshotSource("totals", "w1", 9, 90, keeps_deletions=keeps_deletions)
    partitions = tuple(
        replace(partition, source=TopicPartitionId(TOTALS, number), records=count)
        for number, count in enumerate(records)
    )
    return replace(made, topics=(replace(topic, partitions=partitions, snapshot=source),))


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """With the table in two files, in no order."""
    made = Warehouse(tmp_path)
    table = on_disk(made.ktable("shop", "totals"))
    write_snapshot(table, ROWS[:3])
    write_snapshot(table, ROWS[3:])
    return made


@contextmanager
def _staged(
    spark: SparkSessionResource, warehouse: Warehouse, planned: RestorePlan
) -> Iterator[dict[TopicPartitionId, StorePath]]:
    assert planned.point is not None
    with staged_saved_records(
        Repository(warehouse, planned.application_id), planned.restore_id, planned.point, ()
    ):
        yield stage_snapshots(spark.spark_session, warehouse, planned)


def _records(files: dict[TopicPartitionId, StorePath], number: int, count: int) -> list[object]:
    """As a task gets them."""
    source = TopicPartitionId(TOTALS, number)
    work = work_of(source, [files[source]], [(0, 100)], count)
    return [record for batch in work_records(work) for record in batch.to_pylist()]


def test_a_file_for_each_partition_in_order_of_offsets(
    spark: SparkSessionResource, warehouse: Warehouse
) -> None:
    with _staged(spark, warehouse, _planned()) as files:
        assert sorted(id_.partition for id_ in files) == [0, 2]
        assert _records(files, 0, 3) == [ROWS[2].record, ROWS[3].record, ROWS[0].record]
        assert _records(files, 2, 1) == [ROWS[1].record]
    assert not any(path.exists() for path in files.values())


def test_the_same_files_again(spark: SparkSessionResource, warehouse: Warehouse) -> None:
    tables = []
    for _ in range(2):
        with _staged(spark, warehouse, _planned()) as files:
            tables.append({id_: pq.ParquetFile(path).read() for id_, path in files.items()})
    assert tables[0] == tables[1]


def test_deletions_of_a_versioned_store_are_records(
    spark: SparkSessionResource, warehouse: Warehouse
) -> None:
    planned = _planned((3, 0, 2), keeps_deletions=True)
    with _staged(spark, warehouse, planned) as files:
        assert _records(files, 2, 2) == [ROWS[1].record, ROWS[5].record]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ((2, 0, 1), f"{TOTALS}-0 cannot be restored: its KTable snapshot has 3 records, the plan"),
        ((3, 1, 1), f"{TOTALS}-1 cannot be restored: its KTable snapshot has 0 records, the plan"),
        ((3, 0), f"{TOTALS}-2 cannot be restored: its KTable snapshot has 1 records, the plan"),
    ],
)
def test_other_rows_than_planned(
    records: tuple[int, ...], words: str, spark: SparkSessionResource, warehouse: Warehouse
) -> None:
    with (
        pytest.raises(KStreamsAssetsError, match=words),
        _staged(spark, warehouse, _planned(records)),
    ):
        pytest.fail("it was staged")


def test_a_table_that_is_gone(spark: SparkSessionResource, tmp_path: Path) -> None:
    with (
        pytest.raises(StoredDataError, match="store totals, window w1"),
        _staged(spark, Warehouse(tmp_path), _planned()),
    ):
        pytest.fail("it was staged")

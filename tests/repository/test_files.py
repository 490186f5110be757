"""The files of the records table, and what another engine reads from them."""

from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from kstreams_assets.model.spans import SpanId
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.delta_log import delta_table
from kstreams_assets.store import store_at
from spark_resources.resource import SparkSessionResource
from tests.backup.reading import stored
from tests.backup.writing import producer
from tests.repository.spans_on_disk import span_files
from tests.streams.workbench import Workbench

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("on_spark")]

WINDOWS, TOPICS, PARTITIONS, RECORDS = 8, 2, 2, 200


@pytest.fixture
def bench(workbench: Workbench) -> Workbench:
    """Eight windows of two topics with two partitions, backed up as one range."""
    topics = [workbench.topic(f"t{number}", partitions=PARTITIONS) for number in range(TOPICS)]
    sender = producer(workbench.bootstrap_servers, linger_ms=5)
    for _ in range(WINDOWS):
        for number in range(RECORDS):
            for topic in topics:
                for partition in range(PARTITIONS):
                    # equal values: a dictionary would pay, if one were tried
                    sender.produce(topic, b"same value " * 20, b"k%d" % number, partition)
        assert sender.flush(20) == 0
        workbench.close_window()
    workbench.back_up()
    return workbench


def test_deltalake_sees_what_spark_wrote(bench: Workbench, spark: SparkSessionResource) -> None:
    frame = spark.spark_session.read.format("delta").load(str(bench.records_path))
    by_spark = {
        (row.window, row.topic, row.partition): (row.records, row.first, row.last)
        for row in frame.groupBy("window", "topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        .collect()
    }
    by_deltalake = {
        (window.key, topic, partition): (len(found), found[0], found[-1])
        for window in bench.windows
        for topic in bench.roles
        for partition in range(PARTITIONS)
        for found in [
            [
                record.offset
                for record in stored(bench, topic, {window.key})
                if record.partition == partition
            ]
        ]
    }
    by_ledger = {
        (entry.result.plan.window.key, partition.topic, partition.partition): (
            content.records,
            content.first_offset,
            content.last_offset,
        )
        for entry in bench.ledger.entries()
        for partition, content in [(entry.result.partition, entry.result.content)]
    }
    assert by_spark == by_deltalake == by_ledger
    assert by_spark == {
        (window.key, topic, partition): (RECORDS, RECORDS * number, RECORDS * (number + 1) - 1)
        for number, window in enumerate(bench.windows)
        for topic in bench.roles
        for partition in range(PARTITIONS)
    }


def test_each_file_is_one_span_in_offset_order(bench: Workbench) -> None:
    actions = pa.table(delta_table(bench.records_path).get_add_actions(flatten=True)).to_pylist()
    assert len(actions) == WINDOWS * TOPICS * PARTITIONS
    for action in actions:
        assert action["min.partition"] == action["max.partition"]
        with store_at(bench.records_path / unquote(action["path"])).fetched() as file:
            records = pq.read_table(file, partitioning=None)  # pyright: ignore[reportArgumentType]
            offsets = records["offset"].to_pylist()
            assert offsets == [*range(action["min.offset"], action["max.offset"] + 1)]
            _assert_compressed_well(file)
    topic = min(bench.roles)
    span = SpanId(bench.windows[3].key, TopicPartitionId(topic, 1))
    (found,) = span_files(bench.records_path, span)
    assert (found.records, found.first_offset) == (RECORDS, 3 * RECORDS)
    assert found.path.exists()


def _assert_compressed_well(file: Path) -> None:
    footer = pq.read_metadata(file)
    for group in range(footer.num_row_groups):
        columns = {
            (column := footer.row_group(group).column(index)).path_in_schema: column
            for index in range(footer.num_columns)
        }
        assert {column.compression for column in columns.values()} == {"ZSTD"}
        for payload in ("key", "value"):
            assert not columns[payload].has_dictionary_page
            assert not any("DICTIONARY" in encoding for encoding in columns[payload].encodings)

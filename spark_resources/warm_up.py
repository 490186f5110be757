"""Queries that a new engine runs, so that its JVM has compiled the code that users need.

The first rules on a cold engine take 21 s, on one that ran such queries before 7 s [measured: six
rules over 280,000 records]. Most of that is Spark's planning, for any query.
"""

import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kstreams_assets.app.rules import RuleLimits
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import SparkJobError
from kstreams_assets.offsets import OffsetRange
from spark_resources.data_files import FILE
from spark_resources.rules import Views, run_rule, tune
from spark_resources.session import cores_of
from spark_resources.work import LoggedRows, LogSource

_log = logging.getLogger(__name__)

_ROUNDS: Final = 6
"""Later ones would gain little."""
_AT_MOST_S: Final = 30.0
_RECORDS: Final = 2_000
_KEYS: Final = 100
_LIMITS: Final = RuleLimits(timeout_seconds=60.0)
_FORMAT: Final = StoreFormat(
    key=Format(Encoding.STRING),
    value=Format(Encoding.JSON, schema="id STRING, amount BIGINT"),
)
_RULES: Final = (
    "SELECT * FROM (SELECT (SELECT count(*) FROM sent) AS `left`,"
    " (SELECT count(*) + count_if(_in_flight) FROM kept) AS `right`) WHERE `left` = `right`",
    "SELECT * FROM (SELECT (SELECT sum(amount) FROM sent) AS `left`,"
    " (SELECT sum(amount) FROM kept) AS `right`) WHERE `left` = `right`",
    "SELECT _key, count(*) AS times FROM sent GROUP BY _key HAVING count(*) < 1",
    "SELECT kept._key, kept.amount, newest.amount FROM kept FULL OUTER JOIN"
    " (SELECT _key, max_by(_value, _offset) AS newest FROM sent GROUP BY _key) AS sent"
    " ON kept._key = sent._key WHERE NOT (kept.amount <=> sent.newest.amount)",
)


def warm_up(spark: SparkSession, *, shares_files: bool) -> None:
    """Run small jobs and rules for some 20 s; `shares_files`: the server sees this host's files."""
    _tasks(spark)
    if shares_files:
        _rules(spark)


def _tasks(spark: SparkSession) -> None:
    """Start Python workers, and exchange rows with them."""

    def handed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    numbers = spark.range(0, 1_000, 1, cores_of(spark)).withColumn("part", F.col("id") % 7)
    numbers.mapInArrow(handed_on, numbers.schema).groupBy("part").agg(F.max("id")).collect()


def _rules(spark: SparkSession) -> None:
    """Run rules over views of a topic and of a store, like an evaluation."""
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-warm-up-") as folder:
        source = _source(Path(folder))
        began = time.monotonic()
        for _ in range(_ROUNDS):
            try:
                _evaluate(spark, source)
            except SparkJobError as error:  # the machine is too busy: the engine works anyway
                _log.warning("The engine is not warm: %s", error.problem)
                return
            if time.monotonic() - began > _AT_MOST_S:
                return


def _evaluate(spark: SparkSession, source: LogSource) -> None:
    ranges = {0: (OffsetRange(0, _RECORDS),)}
    sent, kept = (
        LoggedRows(_FORMAT, is_store, source, ranges, in_flight_from={0: 10}, records=_RECORDS)
        for is_store in (False, True)
    )
    views = Views(spark, {})
    try:
        tune(views.session, _RECORDS)
        for sql in _RULES:
            views.define("sent", "sent", sent, is_shared=True)
            views.define("kept", "kept", kept, is_shared=True)
            run_rule(views.session, sql, _LIMITS)
    finally:
        views.forget(source.root)
        views.close()


def _source(folder: Path) -> LogSource:
    """Return span files of one topic, in the folders of the table of records."""
    table = pa.table(
        {
            "partition": pa.repeat(pa.scalar(0, pa.int32()), _RECORDS),
            "offset": pa.array(range(_RECORDS), pa.int64()),
            "timestamp_ms": pa.array(range(_RECORDS), pa.int64()),
            "headers": pa.array([[]] * _RECORDS, FILE.field("headers").type),
            "key": pa.array([b"key-%d" % (n % _KEYS) for n in range(_RECORDS)], pa.binary()),
            "value": pa.array(
                [b'{"id": "%d", "amount": %d}' % (n, n) for n in range(_RECORDS)], pa.binary()
            ),
        }
    )
    root = folder / "records"
    root.mkdir(parents=True)
    path = root / "0.parquet"
    pq.write_table(table, path)
    return LogSource("sent", root, (path,), _RECORDS, is_whole=True, windows=("none",))

"""Completeness rules on Spark: their session, their views, the run of one rule."""

import re
import threading
import uuid
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kstreams_assets.app.rules import RuleLimits
from kstreams_assets.app.store_columns import as_text, key_parts_of, value_columns
from kstreams_assets.app.store_format import StoreFormat
from kstreams_assets.errors import RuleLimitError, SparkJobError, SparkLostError
from kstreams_assets.model.rule_results import Sample
from kstreams_assets.store import StorePath
from spark_resources.failures import SPARK_FAILURES, free, spark_failures
from spark_resources.ktable_columns import with_decoded_columns, with_decoded_record
from spark_resources.ktable_rows import (
    RECORD,
    RECORD_COLUMNS,
    Newest,
    chosen_rows,
    from_offset,
    newest_rows,
    numbered,
    rows_inside,
)
from spark_resources.session import close_at_exit, configure, cores_of, end_session
from spark_resources.stored_files import read_files, read_table
from spark_resources.work import Content, LoggedRows, LogSource, SnapshotRows, SnapshotWork

if TYPE_CHECKING:
    from kstreams_assets.model.schemas import RegisteredSchema


_OWN: Final = {
    "spark.sql.session.timeZone": "UTC",
    # One job for the first rows of a result, instead of one for a partition, then for four more.
    "spark.sql.limit.initialNumPartitions": "100000",
    # Otherwise many files are listed by a separate job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # The text of a rule runs unchanged: `${env:HOME}` in it is not replaced, a path is not a table.
    "spark.sql.variable.substitute": "false",
    "spark.sql.runSQLOnFiles": "false",
}
_FEW_RECORDS: Final = 300_000
_BY_SIZE: Final = {
    # For few records, compiling the code of a query takes longer than running it uncompiled, and
    # planning it again after each of its stages does too [measured: 3.3 s CPU instead of 10 for
    # the six rules of the order processor over 20,000 records].
    "spark.sql.codegen.wholeStage": ("false", "true"),
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
    "spark.sql.adaptive.enabled": ("false", "true"),
}


class _Clonable(Protocol):
    """A method of Spark Connect sessions that the type of pyspark's sessions does not declare."""

    def cloneSession(self) -> SparkSession: ...


def new_session(spark: SparkSession) -> SparkSession:
    """Return a session beside another one: the same JVM, its own temp views and settings."""
    session = cast("_Clonable", spark).cloneSession()
    close_at_exit(session)
    configure(session, _OWN)
    return session


def tune(session: SparkSession, records: int) -> None:
    """Configure the session for a query over about this many records."""
    few = records <= _FEW_RECORDS
    with spark_failures():
        configure(session, {name: values[not few] for name, values in _BY_SIZE.items()})


_SHARED_RECORDS: Final = 2_000_000
"""With at most this many records, a view used by several rules is cached meanwhile."""
_LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; Spark raises for timestamps far beyond."""


class Views:
    """Temp views in their own session, for one evaluation after the other."""

    def __init__(self, spark: SparkSession, schemas: "Mapping[int, RegisteredSchema]") -> None:
        with spark_failures():
            self.session = new_session(spark)
        self._schemas = schemas
        self._kept: dict[tuple[LogSource, StoreFormat | None], DataFrame] = {}
        self._frames: dict[Hashable, DataFrame] = {}
        self._named: dict[str, Hashable] = {}
        self._meanwhile: list[DataFrame | Newest] = []
        self._by_files = False

    def define(self, name: str, view: Hashable, content: Content, *, is_shared: bool) -> None:
        """Define the rows of a name in SQL; `is_shared`: several rules of this evaluation use them.

        `view` identifies rows within one evaluation.

        Raises:
            SparkJobError: They cannot be read.
        """
        if self._named.get(name) == view:
            return
        with spark_failures():
            if view not in self._frames:
                rows = self._decoded(content)
                if is_shared and _is_small_enough_to_keep(content):
                    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
                    self._meanwhile.append(rows)
                self._frames[view] = _viewed(rows, content)
            self._frames[view].createOrReplaceTempView(f"`{name}`")
        self._named[name] = view

    def end_evaluation(self) -> None:
        """Drop what belongs to one recovery point."""
        for kept in self._meanwhile:
            free(kept)
        self._meanwhile.clear()
        self._frames.clear()
        self._named.clear()

    def read_files(self) -> None:
        """Read tables by lists of their files from now on; the views have to be defined again."""
        self._by_files = True
        self.end_evaluation()
        self._forget_all()

    def forget(self, root: StorePath) -> None:
        """Free the cache of files below this folder."""
        for key in [key for key in self._kept if key[0].root == root]:
            free(self._kept.pop(key))

    def close(self) -> None:
        """Free the memory, end the session."""
        self.end_evaluation()
        self._forget_all()
        end_session(self.session)

    def _forget_all(self) -> None:
        for rows in self._kept.values():
            free(rows)
        self._kept.clear()

    def _decoded(self, content: Content) -> DataFrame:
        """Return the rows of a view before they have its columns, which would need more memory."""
        if isinstance(content, SnapshotRows):
            return self._snapshot(content)
        return self._store(content) if content.is_store else self._records(content)

    def _records(self, content: LoggedRows) -> DataFrame:
        if content.format.needs_registry:
            # All records together determine the newest schema, which is that of the column.
            return _slim(with_decoded_record(self._raw(content), content.format, self._schemas))
        rows = rows_inside(self._source(content.source, content.format), content.ranges)
        if content.saved_file is None:
            return rows
        saved = rows_inside(self._saved(content.saved_file), content.ranges)
        decoded = with_decoded_record(saved, content.format, self._schemas)
        return rows.unionByName(_slim(decoded))

    def _store(self, content: LoggedRows) -> DataFrame:
        """Return the newest row of each key, by the code of KTable snapshots."""
        work = SnapshotWork(
            window="",
            format=content.format,
            partitions=tuple(content.ranges),
            base_files=(),
            base_ranges=None,
            whole_files=(),
            cut_files=(),
            ranges=content.ranges,
            records=content.records,
        )
        rows = self._raw(content, work)
        newest = newest_rows(rows, work)
        self._meanwhile.append(newest)
        chosen = chosen_rows(rows, newest).where(F.col("value").isNotNull())
        decoded = with_decoded_columns(chosen, content.format, self._schemas)
        return _of_store(decoded, content)

    def _snapshot(self, content: SnapshotRows) -> DataFrame:
        if content.files:
            rows = read_files(self.session, content.files).where(F.col("value").isNotNull())
        else:
            nothing = self.session.createDataFrame([], RECORD)
            rows = with_decoded_columns(nothing, content.format, self._schemas)
            rows = rows.withColumn("valid_to_ms", F.lit(None).cast("bigint"))
        return _of_store(rows, content)

    def _raw(self, content: LoggedRows, work: SnapshotWork | None = None) -> DataFrame:
        """Return unchanged records; for stores numbered, to detect duplicate records."""
        rows = rows_inside(self._source(content.source, None), content.ranges)
        if work is not None:
            rows = numbered(rows, work)
        if content.saved_file is None:
            return rows
        saved = rows_inside(self._saved(content.saved_file), content.ranges)
        return rows.unionByName(saved if work is None else numbered(saved, work, saved=True))

    def _source(self, source: LogSource, said: StoreFormat | None) -> DataFrame:
        """Return the records of span files, decoded if a format is given."""
        known = self._kept.get((source, said))
        if known is not None:
            return known
        if source.scan is not None and not self._by_files:
            rows = read_table(self.session, source.scan, RECORD_COLUMNS, with_windows=True)
        elif source.files:
            rows = read_files(
                self.session,
                source.files,
                RECORD,
                windows=source.windows,
                renumbering=source.renumbering,
            )
        else:
            rows = self.session.createDataFrame([], RECORD)
        if not source.windows:
            rows = _without_window(rows)
        if source.is_whole:
            rows = rows.coalesce(cores_of(self.session))
        if said is not None:
            rows = _slim(with_decoded_record(rows, said, self._schemas))
        if source.is_whole:
            self._kept[source, said] = rows.persist(StorageLevel.MEMORY_AND_DISK)
        return rows

    def _saved(self, path: StorePath) -> DataFrame:
        return _without_window(read_files(self.session, [path], RECORD))


def _without_window(rows: DataFrame) -> DataFrame:
    return rows.withColumn("window", F.lit(None).cast("string"))


def _is_small_enough_to_keep(content: Content) -> bool:
    if isinstance(content, SnapshotRows):
        return False
    if content.source.is_whole:
        return content.is_store
    return content.records <= _SHARED_RECORDS


def _of_store(rows: DataFrame, content: Content) -> DataFrame:
    return _slim(rows.withColumn("window", F.lit(content.window).cast("string")))


def _slim(decoded: DataFrame) -> DataFrame:
    """Drop columns that no view shows."""
    return decoded.drop("key", "value", "in_base", "row")


def _viewed(rows: DataFrame, content: Content) -> DataFrame:
    view = _shaped(rows, content.format)
    if isinstance(content, SnapshotRows) or content.is_store:
        return view
    in_flight = from_offset(content.in_flight_from, partition="_partition", offset="_offset")
    return view.withColumn("_in_flight", F.expr(in_flight))


def _shaped(rows: DataFrame, said: StoreFormat) -> DataFrame:
    """Return the columns of a view; `_in_flight` is false."""
    parts = key_parts_of(said.kind)
    value = rows.schema["decoded_value"].dataType
    fields = value.names if isinstance(value, StructType) else []
    timestamp = F.when(F.abs("timestamp_ms") <= _LATEST_MS, F.timestamp_millis("timestamp_ms"))
    return rows.select(
        F.col("decoded_key").alias("_key"),
        F.col("decoded_value").alias("_value"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        timestamp.alias("_timestamp"),
        F.col("timestamp_ms").alias("_timestamp_ms"),
        F.col("window").alias("_window"),
        F.col("headers").alias("_headers"),
        F.lit(False).alias("_in_flight"),
        F.col("decode_error").alias("_decode_error"),
        *parts,
        *(F.col("decoded_value").getField(n).alias(n) for n in value_columns(fields, parts)),
    )


_INTERRUPT_EVERY_S: Final = 1.0
_MIB: Final = 1024**2
_BROADCAST: Final = "spark.sql.maxBroadcastTableSize"
_NO_MEMORY: Final = re.compile(
    r"Java heap space|OutOfMemory|GC overhead limit|exceeds VM limit|UNABLE_TO_ACQUIRE_MEMORY"
    r"|bigger than (?:local )?(?:spark\.driver\.)?maxResultSize",
    re.IGNORECASE,
)
"""Spark's messages if a query needs more than the heap; the engine and the session continue."""
_TOO_LARGE_A_TABLE: Final = re.compile(r"Cannot broadcast the table", re.IGNORECASE)
SAMPLE_ROWS: Final = 20
"""Number of shown rows in violation."""


@dataclass(frozen=True, slots=True)
class ReturnedRows:
    """How many rows a rule returned, and the first of them; `is_more`: it returned more."""

    count: int
    sample: Sample
    is_more: bool = False


def run_number(session: SparkSession, sql: str, limits: RuleLimits) -> int:
    """Return the single number that SQL returns, 0 for NULL; `limits` as in `run_rule`.

    Raises:
        SparkJobError: As `run_rule`.
    """
    with _limited(session, limits):
        return int(session.sql(sql).take(1)[0][0] or 0)


def run_rule(session: SparkSession, sql: str, limits: RuleLimits) -> ReturnedRows:
    """Run the SQL of a rule over the session's views, and end it at the limits.

    Raises:
        RuleLimitError: It took too long or too much memory.
        SparkJobError: Spark refused it, or it failed while running.
    """
    with _limited(session, limits):
        rows = session.sql(sql)
        found = _first_rows(rows, limits)
        sample = _sample(rows, found[:SAMPLE_ROWS])
        count = len(found)
        if count > SAMPLE_ROWS:
            count = rows.limit(limits.max_rows + 1).count()
        return ReturnedRows(min(count, limits.max_rows), sample, is_more=count > limits.max_rows)


def _first_rows(rows: DataFrame, limits: RuleLimits) -> list[tuple[Any, ...]]:
    """Return the first rows; a row that is too large never leaves Spark."""
    names = [f"c{position}" for position in range(len(rows.columns))]
    named = rows.toDF(*names)  # in SQL several columns may have the same name
    size = F.octet_length(F.struct(*names).cast("string"))
    most = limits.memory_bytes // (SAMPLE_ROWS + 1)
    shown = [F.when(size <= most, F.col(name)).alias(name) for name in names]
    found = [tuple(row) for row in named.select(*shown, size).take(SAMPLE_ROWS + 1)]
    largest = max((row[-1] for row in found), default=0)
    if largest > most:
        raise RuleLimitError(
            f"a row that it returns takes {largest / _MIB:,.0f} MiB, more than"
            f" {most / _MIB:,.1f} MiB, the {SAMPLE_ROWS + 1}st part of max_memory_mib"
            f" ({limits.memory_bytes / _MIB:,.0f}).",
            remedy="Let the rule return only the columns that identify the violating records, or"
            " raise max_memory_mib.",
        )
    return [row[:-1] for row in found]


@contextmanager
def _limited(session: SparkSession, limits: RuleLimits) -> Iterator[None]:
    """End the session's queries in the block at the limits of a rule, with an error."""
    tag = f"rule-{uuid.uuid4().hex}"
    ended, over = threading.Event(), threading.Event()

    def end() -> None:
        if ended.wait(limits.timeout_seconds):
            return
        over.set()
        with suppress(*SPARK_FAILURES):  # else the query fails too, with the reason
            session.interruptTag(tag)
            # A query that is still being planned has no job yet that could be ended.
            while not ended.wait(_INTERRUPT_EVERY_S):
                session.interruptTag(tag)

    watch = threading.Thread(target=end, name=tag, daemon=True)
    with spark_failures():
        _set_memory(session, limits)
        session.addTag(tag)
    watch.start()
    try:
        with spark_failures():
            yield
    except SparkJobError as error:
        if over.is_set() and not isinstance(error, SparkLostError):
            raise RuleLimitError(
                f"its query took longer than {limits.timeout_seconds:g} s (timeout_seconds).",
                remedy="Have the rule read less (scope: window), or raise timeout_seconds.",
            ) from error
        if _TOO_LARGE_A_TABLE.search(error.problem):
            raise RuleLimitError(
                "a table that Spark holds in memory for a join in its query takes more than"
                f" {limits.memory_bytes / _MIB:,.0f} MiB (max_memory_mib).",
                remedy="Join by equal columns, or on fewer rows, or raise max_memory_mib.",
            ) from error
        if _NO_MEMORY.search(error.problem):
            raise RuleLimitError(
                "its query needs more memory than the engine has"
                " (KSTREAMS_ASSETS_SPARK_DRIVER_MEMORY, 2g by default).",
                remedy="Have the rule collect less (collect_list, long texts), or raise that and"
                " run kstreams-assets engine stop.",
            ) from error
        raise
    finally:
        ended.set()
        watch.join()
        session.removeTag(tag)


def _set_memory(session: SparkSession, limits: RuleLimits) -> None:
    """Limit the memory of joins; rules of one evaluation may have different limits."""
    configure(session, {_BROADCAST: f"{limits.memory_bytes}b"})


def _sample(rows: DataFrame, found: Sequence[tuple[Any, ...]]) -> Sample:
    return Sample(
        columns=tuple(rows.columns),
        rows=tuple(tuple(None if v is None else as_text(_plain(v)) for v in row) for row in found),
    )


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever Spark gives
    """Return a value as `as_text` writes it: rows by field, times in UTC."""
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    return value

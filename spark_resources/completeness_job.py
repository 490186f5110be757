"""Runs one completeness rule and brings back what it returned."""

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from kstreams_assets.completeness.content import Content, ViewPart
from kstreams_assets.completeness.result import Sample
from kstreams_assets.ktables.as_text import as_text
from spark_resources.backup_job import SparkJobError, innermost_cause
from spark_resources.completeness_views import Views

_INTERRUPT_EVERY_S: Final = 1.0
SAMPLE_ROWS: Final = 20
"""How many rows in violation are shown."""


@dataclass(frozen=True, slots=True)
class ReturnedRows:
    """How many rows a rule returned, and the first of them."""

    count: int
    sample: Sample


def define_view(
    views: Views, name: str, asked: ViewPart, content: Content, *, is_shared: bool
) -> None:
    """Let rules find a view under a name, see `Views.define`.

    Raises:
        SparkJobError: It cannot be read.
    """
    with _told():
        views.define(name, asked, content, is_shared=is_shared)


def run_number(session: SparkSession, sql: str, timeout_s: float) -> int:
    """The one number that SQL returns, 0 for NULL; `timeout_s` as in `run_rule`.

    Raises:
        SparkJobError: As `run_rule`.
    """
    with _told(), _limited(session, timeout_s):
        return int(session.sql(sql).take(1)[0][0] or 0)


def run_rule(session: SparkSession, sql: str, timeout_s: float) -> ReturnedRows:
    """Run the SQL of a rule over the session's views; its jobs are ended after `timeout_s` seconds.

    Raises:
        SparkJobError: Spark refused it, it failed on the way, or it took too long.
    """
    with _told(), _limited(session, timeout_s):
        rows = session.sql(sql)
        found = rows.take(SAMPLE_ROWS + 1)
        count = len(found) if len(found) <= SAMPLE_ROWS else rows.count()
        return ReturnedRows(count, _sample(rows, found[:SAMPLE_ROWS]))


@contextmanager
def _limited(session: SparkSession, timeout_s: float) -> Iterator[None]:
    """End what the session runs in the block when its time is up, and say so."""
    # Not by tags of the session: those of one made by newSession() do not reach its jobs.
    group, context = f"rule-{uuid.uuid4().hex}", session.sparkContext
    ended, over = threading.Event(), threading.Event()

    def end() -> None:
        if ended.wait(timeout_s):
            return
        over.set()
        context.cancelJobGroup(group)
        # A query that is still being planned has no job yet that could be ended.
        while not ended.wait(_INTERRUPT_EVERY_S):
            context.cancelJobGroup(group)

    watch = threading.Thread(target=end, name=group, daemon=True)
    context.setJobGroup(group, "completeness rule", interruptOnCancel=True)
    watch.start()
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if over.is_set():
            raise SparkJobError(
                f"its query took longer than {timeout_s:g} s (timeout_seconds of the rule) and was"
                " ended"
            ) from error
        raise
    finally:
        ended.set()
        watch.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # pyright: ignore[reportArgumentType]


@contextmanager
def _told() -> Iterator[None]:
    """What Spark raises, without its Java stack."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(innermost_cause(str(error))) from error


def _sample(rows: DataFrame, found: Sequence[Row]) -> Sample:
    return Sample(
        columns=tuple(rows.columns),
        rows=tuple(tuple(None if v is None else as_text(_plain(v)) for v in row) for row in found),
    )


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever Spark gives
    """A value as `as_text` writes it: rows by field, times in UTC."""
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

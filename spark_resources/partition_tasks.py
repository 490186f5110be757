"""Runs a Python function as Spark tasks, one per item, without any rows through the JVM."""

import fcntl
import logging
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from kstreams_assets.errors import (
    KStreamsAssetsError,
    OvertakenError,
    SparkJobError,
    StoreKeysEndedError,
    TaskOutageError,
)
from kstreams_assets.store import ended_keys_reason, forget_keys
from kstreams_assets.store.locks import try_to_lock
from spark_resources.failures import SPARK_FAILURES, spark_failure
from spark_resources.outages import is_outage, outage_reason

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

_RESULT = "position BIGINT, outcome BINARY"
_SCHEMA = pa.schema([("position", pa.int64()), ("outcome", pa.binary())])
_END_WAIT_S = 15.0
"""Spark kills the workers of a failed job after two seconds."""
_POLL_S = 0.05
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _Signals:
    """Two files for signals between the tasks of one machine and their client.

    A task holds a shared lock on `lock` while it runs, which ends with its process. `stop` exists
    when the others should end. A task on another machine does not see `stop`, and sees `lock` only
    in a shared folder; it runs to its end.
    """

    lock: str
    stop: str


class _TaskStoppedError(Exception):
    """A task ended early because another one had failed."""


_signals: _Signals | None = None
"""The signals of the task in this process; a Spark worker runs one at a time."""


def run_partition_tasks(
    spark: SparkSession,
    items: Sequence[T],
    task: Callable[[T], R],
    *,
    lock: Path | None = None,
    at_a_time: int | None = None,
) -> list[R]:
    """Call `task` with each item, each call in its own Spark task; results in order of items.

    Items start in the given order, as many at a time as Spark has cores, or `at_a_time` at most:
    then there are that many Spark tasks, and each processes its share of items one after the
    other. Items, function and results are pickled; functions of modules by name, so the workers
    must have the same packages.
    After the first failure no further items start, and `check_stop` ends the running ones. All of
    them have ended when it is raised (on other machines they may still run). Tasks that see `lock`
    hold it, shared, while they run: its next exclusive holder waits for those of a killed run.

    If an executor is lost, Spark runs its tasks again on another one. The lost ones may still run,
    unknown to Spark: a task must tolerate a second one beside it.

    Items have the keys of an object store that are valid when their job starts. A task that ends
    because its keys expire is repeated with new ones; the others continue.

    Raises:
        KStreamsAssetsError: What a task raised, with its attributes.
        SparkJobError: A task raised anything else, or its worker died.
        SparkLostError: The server does not answer, or has ended the session.
    """
    if not items:
        return []
    with tempfile.TemporaryDirectory(prefix="kstreams-assets-tasks-") as folder:
        signals = _Signals(str(lock or f"{folder}/lock"), f"{folder}/stop")
        Path(signals.lock).touch()
        try:
            outcomes = _all(spark, items, task, signals, at_a_time)
        except SPARK_FAILURES as error:
            _stop(signals)
            failure = spark_failure(error)
            if failure is None:
                raise
            raise failure from None
        except BaseException:
            _stop(signals)
            raise
    failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
    if failures:
        raise min(failures, key=lambda failure: failure.rank).error()
    return cast(list[R], outcomes)


def _all(
    spark: SparkSession,
    items: Sequence[T],
    task: Callable[[T], R],
    signals: _Signals,
    at_a_time: int | None,
) -> list[object]:
    """Return the outcomes of all items.

    The abandoned task of a lost executor may fail and stop the others: stopped items are run
    again. So are items with expired keys: pickling an item again uses the current keys.
    """
    outcomes: dict[int, object] = {}
    for rounds_left in reversed(range(_ROUNDS)):
        missing = [position for position in range(len(items)) if position not in outcomes]
        sent = [cloudpickle.dumps(items[position]) for position in missing]
        found = _run(spark, sent, task, signals, at_a_time)
        outcomes |= dict(zip(missing, found, strict=True))
        failures = [one for one in outcomes.values() if isinstance(one, _Failure)]
        may_repeat = all(one.is_stopped or one.ended_keys for one in failures)
        if not (failures and may_repeat and rounds_left):
            break
        Path(signals.stop).unlink(missing_ok=True)
        if any(failure.ended_keys for failure in failures):
            _log.info("Tasks are repeated with new keys of the object store.")
            forget_keys()
        outcomes = {n: one for n, one in outcomes.items() if not isinstance(one, _Failure)}
    return [outcomes[position] for position in range(len(items))]


def check_stop() -> None:
    """End this task if another task of its job has failed; tasks call it regularly."""
    if _signals is not None and os.path.exists(_signals.stop):
        raise _TaskStoppedError


def _run(
    spark: SparkSession,
    items: Sequence[bytes],
    task: Callable[[T], R],
    signals: _Signals,
    at_a_time: int | None,
) -> list[object]:
    count = min(len(items), at_a_time or len(items))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (number,) = batch.column(0).to_pylist() or (len(items),)
            for position in range(number, len(items), count):
                outcome = _outcome(items[position], task, signals)
                yield pa.RecordBatch.from_pylist(
                    [{"position": position, "outcome": outcome}], schema=_SCHEMA
                )

    numbers = spark.range(0, count, 1, numPartitions=count)
    rows = numbers.mapInArrow(run, _RESULT).collect()
    by_position = {row["position"]: cloudpickle.loads(bytes(row["outcome"])) for row in rows}
    return [by_position[position] for position in range(len(items))]


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way to the driver: exceptions with keyword arguments do not pickle."""

    at: float
    kind: type[BaseException]
    args: tuple[object, ...]
    facts: dict[str, object]
    trace: str
    ended_keys: str | None = None
    """Why its keys of an object store are not valid any more."""
    outage: str | None = None
    """What did not answer, if that is the cause. The causes of an error stay in its worker."""

    @property
    def is_stopped(self) -> bool:
        """Whether it ended early because another one had failed."""
        return self.kind is _TaskStoppedError

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """The least is reported: what ended the job, not what alone would have been repeated."""
        return self.is_stopped, self.ended_keys is not None, self.at

    def error(self) -> Exception:
        """Return the task's own error if it belongs to this project, else a SparkJobError.

        An outage is a TaskOutageError, or has one as its cause.
        """
        if self.ended_keys is not None:
            return StoreKeysEndedError(self.ended_keys)
        if issubclass(self.kind, KStreamsAssetsError):
            error = self.kind.__new__(self.kind)
            error.args = self.args
            error.__dict__.update(self.facts)
            if self.outage is not None and not is_outage(error):
                error.__cause__ = TaskOutageError(self.outage)
            return error
        if self.outage is not None:
            failed = TaskOutageError(self.outage)
        else:
            arguments = ", ".join(str(arg) for arg in self.args)
            failed = SparkJobError(
                f"{self.kind.__name__}: {arguments}" if arguments else self.kind.__name__
            )
        failed.add_note(self.trace)
        return failed


def _outcome(item: bytes, task: Callable[[T], R], signals: _Signals) -> bytes:
    """Return the pickled result of one task, or its `_Failure`. Runs in a Spark worker."""
    try:
        with _running(signals):
            check_stop()
            return cloudpickle.dumps(task(cloudpickle.loads(item)))
    # Any error of a task is data here: the driver raises it, without Spark's Java stack.
    except Exception as error:  # noqa: BLE001
        ended_keys = _ended_keys(error)
        if ended_keys is None and not isinstance(error, _TaskStoppedError | OvertakenError):
            with suppress(FileNotFoundError):  # the driver is on another machine, or gone
                Path(signals.stop).touch()
        failure = _Failure(
            time.time(),
            type(error),
            error.args,
            error.__dict__,
            traceback.format_exc(),
            ended_keys,
            outage_reason(error),
        )
        return cloudpickle.dumps(failure)


def _ended_keys(error: BaseException | None) -> str | None:
    """Return why keys are not valid any more, if that is the cause of an error."""
    while error is not None:
        if (reason := ended_keys_reason(str(error))) is not None:
            return reason
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def _running(signals: _Signals) -> Iterator[None]:
    """Hold the lock that shows the driver of this machine that the task runs."""
    global _signals
    try:
        lock = open(signals.lock, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        yield  # the driver is on another machine
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        _signals = signals
        try:
            yield
        finally:
            _signals = None


def _stop(signals: _Signals) -> None:
    """Signal the tasks to end, and wait until none runs (bounded)."""
    Path(signals.stop).touch()
    deadline = time.monotonic() + _END_WAIT_S
    with open(signals.lock, "ab") as lock:  # NFS locks only writable files
        while not try_to_lock(lock) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

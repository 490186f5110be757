"""Rules and snapshots read tables through Delta Lake, at the version of their plan."""

import logging
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.app.rules import CompletenessRule
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.completeness.evaluate import Evaluator
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.rule_results import Outcome
from kstreams_assets.model.store_states import StoreState
from kstreams_assets.repository import contents
from kstreams_assets.repository.records import ensure_records, tidy_records
from kstreams_assets.repository.store_states import StoreStates
from spark_resources import stored_files
from spark_resources.resource import SparkSessionResource
from tests.completeness.stored_topics import ORDERS, TOTALS, StoredTopics, order, total, window_of
from tests.ktables.stored_log import APPLICATION_ID, Change, StoredLog
from tests.repository.disk import on_disk

pytestmark = pytest.mark.spark

_HOURS = 2


def _counts(topic: str, count: int) -> CompletenessRule:
    """A rule that is violated unless a topic has so many records, all in windows of the ledger."""
    return CompletenessRule(
        name=topic,
        query=f"SELECT n, w FROM (SELECT count(*) n, count(DISTINCT _window) w FROM {topic})"
        f" WHERE n <> {count} OR w <> 1",
        views=(topic,),
    )


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "FEWEST_SCANNED", 1)


@pytest.fixture
def stored(tmp_path: Path) -> StoredTopics:
    """A window of three orders and two totals."""
    rules = (_counts(ORDERS, 3), _counts(TOTALS, 2))
    stored = StoredTopics(Warehouse(tmp_path / "warehouse"), rules)
    orders = [order(n, "anna", 10) for n in range(3)]
    totals = [total(n, "anna", n + 1, 10) for n in range(2)]
    stored.close(0, {ORDERS: orders, TOTALS: totals}, {ORDERS: 3})
    return stored


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are read through Delta, by the names of their folders."""
    read, seen = stored_files.read_table, list[str]()

    def reading(spark, scan, *args, **more):
        seen.append(Path(str(scan.table)).parent.name)
        return read(spark, scan, *args, **more)

    for module in ("rules", "ktable_rows"):
        monkeypatch.setattr(f"spark_resources.{module}.read_table", reading)
    return seen


def test_a_rule_does_not_see_rows_that_no_row_of_the_ledger_names(
    stored: StoredTopics, spark: SparkSessionResource, scans: list[str]
) -> None:
    records = _records(stored.warehouse)
    for topic in (ORDERS, TOTALS):
        _append(records, topic)  # as a backup that was killed before its rows of the ledger
    with Evaluator(stored.settings, spark=spark, run_id="run") as evaluator:
        results = evaluator.window(window_of(0))
    assert [result.outcome for result in results] == [Outcome.PASSED, Outcome.PASSED]
    assert set(scans) == {"records"}


def test_a_rule_outlives_the_log_of_its_version(
    stored: StoredTopics,
    spark: SparkSessionResource,
    scans: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Evaluator(stored.settings, spark=spark, run_id="run") as evaluator:
        assert evaluator.window(window_of(0), rules=[ORDERS])[0].outcome is Outcome.PASSED
        _hours_later(_records(stored.warehouse))
        (result,) = evaluator.window(window_of(0), rules=[TOTALS])
    assert result.outcome is Outcome.PASSED, result.explanation
    assert scans
    assert "reads lists of files instead" in caplog.text


def test_a_snapshot_outlives_the_log_of_its_version(
    tmp_path: Path,
    spark: SparkSessionResource,
    scans: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = Format(Encoding.STRING)
    log = StoredLog(Warehouse(tmp_path / "warehouse"), spark, StoreFormat(key=text, value=text))
    changes = [Change(n, key, b"%d" % n) for n, key in enumerate((b"a", b"b", b"a", b"c"))]
    for window, end in enumerate((2, 4)):
        log.point(window, {0: end})
        log.back_up(window, {0: (end - 2, end)}, changes)
    log.snapshot(0)
    assert scans == ["records"]
    check = StoreStates.require_unchanged

    def check_for_hours(states: StoreStates, state: StoreState) -> None:
        check(states, state)
        _hours_later(on_disk(log.warehouse.records(APPLICATION_ID)))

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(StoreStates, "require_unchanged", check_for_hours)
        log.snapshot(1)
    assert {(row["offset"], row["value"]) for row in log.rows(1)} == {
        (1, b"1"),
        (2, b"2"),
        (3, b"3"),
    }
    assert set(scans) == {"records"}
    assert len(scans) > 1
    assert "made again from the list of its files" in caplog.text


def _records(warehouse: Warehouse) -> Path:
    return on_disk(warehouse.records("app"))


def _append(records: Path, topic: str) -> None:
    row = {
        "window": "never-recorded",
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "timestamp_ms": 1_000,
        "timestamp_type": 0,
        "headers": None,
        "key": b"never",
        "value": b'{"amount": 1}',
    }
    schema = pa.schema(DeltaTable(records).schema())
    write_deltalake(records, pa.Table.from_pylist([row], schema=schema), mode="append")


def _hours_later(records: Path) -> None:
    """Other runs have committed, and dropped what is older than an hour of the log."""
    ensure_records(records)  # its retention
    then = time.time() - _HOURS * 3_600
    for entry in (records / "_delta_log").iterdir():
        os.utime(entry, (then, then))
    _append(records, "another")
    tidy_records(records)
    _append(records, "another")
    versions = [int(entry.stem) for entry in (records / "_delta_log").glob("*.json")]
    assert min(versions) > 1

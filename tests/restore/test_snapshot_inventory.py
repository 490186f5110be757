"""What snapshots give a restore in place of raw logs, from a warehouse written by hand."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.model import Store
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.snapshot import Snapshot, SnapshotPartition
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.restore.snapshots import (
    FromSnapshots,
    SnapshotState,
    from_snapshots,
    snapshot_state,
)
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from kstreams_assets.warehouse.contents import Holding
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.ledger import Ledger
from tests.backup.samples import backup, result, span
from tests.restore.planning_samples import application, findings, noted, partition_of, point
from tests.restore.snapshot_samples import CHANGELOG, snapshot
from tests.restore.snapshot_tables import Row, write_snapshot

RAW = Holding(records=9, bytes=900)
ROWS = (Row(0, 12), Row(0, 55), Row(0, 34))


class Written:
    """The application `shop` with store `sums`, and what its warehouse holds."""

    def __init__(self, folder: Path, *formats: tuple[str, StoreFormat], **changes: Any) -> None:
        stores = (Store("sums", CHANGELOG), Store("names", "names"))
        app = replace(application(), stores=stores)
        self.settings = ApplicationSettings(
            application=app,
            topics=app.topics,
            connection=KafkaConnection(bootstrap_servers="source:1"),
            warehouse=Warehouse(folder),
            windows=WindowSchedule.every("minute", start="2026-11-21"),
            **{"store_formats": dict(formats), **changes},
        )

    def note(self, made: Snapshot, *rows: Row) -> None:
        """A snapshot with its rows and the backup of its window."""
        write_snapshot(self.settings.warehouse.ktable("shop", made.store), rows)
        SnapshotsTable(self.settings.warehouse).record([made])
        of_window = replace(span(10, 100, topic=CHANGELOG), window=made.window)
        of_topic = replace(
            backup(result(of_window), topic=CHANGELOG),
            window=made.window,
            recovery_point_id=made.point_id,
        )
        Ledger(self.settings.warehouse, "shop").record([of_topic], run_id="run")

    def state(self) -> SnapshotState:
        """What is found of it."""
        return snapshot_state(self.settings, excluded=frozenset(), topics_at=lambda _ids: {})

    def given(
        self,
        *,
        raw: Holding = RAW,
        configs: Mapping[str, str] = {},
    ) -> FromSnapshots:
        """What a restore of the point gets of it."""
        return from_snapshots(
            self.settings,
            self.state(),
            point(),
            findings().selection.topics,
            raw={partition_of(CHANGELOG): raw},
            facts={CHANGELOG: noted(CHANGELOG, configs)},
        )


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Three rows, noted as three."""
    made = Written(tmp_path, ("sums", StoreFormat()))
    made.note(snapshot(), *ROWS)
    return made


class TestState:
    def test_of_the_warehouse(self, written: Written) -> None:
        state = written.state()
        assert state.missing(point().id) == ""
        assert state.first_closing([point().id]) == point().id

    def test_where_a_store_is_read_otherwise_now(self, written: Written) -> None:
        sessions = StoreFormat(kind=StoreKind.SESSION)
        written.settings = replace(written.settings, store_formats={"sums": sessions})
        assert "the format of the store was another one" in written.state().missing(point().id)

    def test_a_store_without_tables_is_not_missed(self, tmp_path: Path) -> None:
        without = Written(tmp_path, without_ktable=frozenset({"sums"}))
        assert without.state().missing(point().id) == ""
        given = without.given()
        assert (given.sources, given.holdings) == ({}, {})
        assert any("No tables are made of the stores of" in note for note in given.notes)


class TestGiven:
    def test_rows_and_bytes_of_the_ledger_beside_those_of_the_raw_log(
        self, written: Written
    ) -> None:
        given = written.given(raw=Holding(records=9, bytes=900, saved_records=4, lost=2))
        assert given.refusals == ()
        assert given.holdings == {
            partition_of(CHANGELOG): Holding(records=3, bytes=30, lost=2, windows=frozenset({"w1"}))
        }
        source = given.sources[CHANGELOG]
        assert (source.store, source.window) == ("sums", "w1")
        assert (source.raw_records, source.raw_bytes) == (9, 900)
        assert not source.keeps_deletions
        assert any(
            "3 records, about 30 B; its raw log has 9, about 900 B" in n for n in given.notes
        )
        assert any("raw log: names" in note for note in given.notes)
        assert set(given.sources) == {CHANGELOG}

    def test_rows_without_a_key_are_left_out_others_not(self, tmp_path: Path) -> None:
        written = Written(tmp_path, ("sums", StoreFormat()))
        rows = (*ROWS, Row(0, 56, key=None, value=b"1234"))
        part = SnapshotPartition(0, f"{CHANGELOG}-id", 10, 100, rows=4, bytes=40)
        written.note(snapshot(partitions=(part,), problem_rows=3), *rows)
        given = written.given()
        held = given.holdings[partition_of(CHANGELOG)]
        assert (held.records, held.bytes) == (3, 30)
        assert (given.sources[CHANGELOG].keyless, given.sources[CHANGELOG].undecoded) == (1, 2)
        assert any("1 row(s) of store sums without a key are left out" in n for n in given.notes)
        assert any("2 row(s) of store sums do not decode" in n for n in given.notes)

    def test_timestamps_that_a_producer_replaces(self, tmp_path: Path) -> None:
        written = Written(tmp_path, ("sums", StoreFormat()))
        written.note(snapshot(), Row(0, 12, timestamp_ms=0), Row(0, 13), Row(0, 14))
        given = written.given(raw=Holding(records=9, odd_timestamps=5))
        assert given.holdings[partition_of(CHANGELOG)].odd_timestamps == 1

    def test_deletions_of_versioned_stores_are_records(self, tmp_path: Path) -> None:
        versioned = StoreFormat(kind=StoreKind.VERSIONED)
        written = Written(tmp_path, ("sums", versioned))
        written.note(snapshot(fingerprint=versioned.fingerprint), *ROWS)
        assert written.given().sources[CHANGELOG].keeps_deletions

    def test_a_table_with_other_rows_than_noted(self, written: Written) -> None:
        write_snapshot(written.settings.warehouse.ktable("shop", "sums"), [Row(0, 77)])
        (refusal,) = written.given().refusals
        assert "store sums: Its table has 4 rows of window w1, noted are 3" in str(refusal)

    def test_other_cuts_and_too_short_retentions(self, tmp_path: Path) -> None:
        windowed = StoreFormat(kind=StoreKind.WINDOW, retention_ms=1_000)
        written = Written(tmp_path, ("sums", windowed))
        part = SnapshotPartition(0, f"{CHANGELOG}-id", 10, 99, rows=3, bytes=30)
        written.note(snapshot(partitions=(part,), fingerprint=windowed.fingerprint), *ROWS)
        cuts, retention = written.given(configs={"retention.ms": "86402000"}).refusals
        assert "as the point has it" in str(cuts)
        assert "says that the store keeps 2000" in str(retention)

    def test_a_declared_store_that_may_be_versioned_is_told(self, written: Written) -> None:
        given = written.given(configs={"min.compaction.lag.ms": "5"})
        assert given.refusals == ()
        assert any("declare its kind, or its history is lost" in note for note in given.notes)

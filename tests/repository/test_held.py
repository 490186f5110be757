"""How far backups of changelogs reach, read from the ledger."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.recordings import BackedUpTopic, LedgerEntry
from kstreams_assets.model.spans import Gap, GapCause, Position, SpanResult
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.rows import rows_of
from kstreams_assets.store.locks import LockHandle
from tests.backup.held_records import hold_records
from tests.backup.samples import APPLICATION_ID, application, backup, result, span
from tests.timing import processor_time

APPLICATION = application(
    AppTopic("in", TopicRoles({TopicRole.INPUT})),
    AppTopic("log", TopicRoles({TopicRole.CHANGELOG})),
    AppTopic("other-log", TopicRoles({TopicRole.CHANGELOG})),
)
LOG = TopicPartitionId("log", 0)


class _HeldLedger(Ledger):
    """A ledger whose records are there."""

    def __init__(self, warehouse: Warehouse) -> None:
        super().__init__(warehouse, APPLICATION_ID)
        self._warehouse = warehouse

    def record(
        self,
        backups: Sequence[BackedUpTopic],
        *,
        run_id: str,
        writer: LockHandle | None = None,
        kept: Sequence[LedgerEntry] = (),
    ) -> None:
        """Also the records table then holds them."""
        super().record(backups, run_id=run_id, writer=writer, kept=kept)
        hold_records(self._warehouse, APPLICATION_ID, files=False)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of an application in an empty warehouse."""
    return _HeldLedger(Warehouse(tmp_path))


def _of(
    start: int,
    end: int,
    *,
    index: int = 0,
    topic: str = "log",
    partition: int = 0,
    topic_id: str = "life-1",
    hole: int | None = None,
) -> SpanResult:
    plan = span(
        start,
        end,
        index=index,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        continues=start > 0,
    )
    return replace(result(plan), first_hole=hole, contiguity_known=True)


def _record(ledger: Ledger, *spans: SpanResult) -> None:
    for one in spans:
        made = backup(one, index=one.plan.window.start_ms // 10, topic=one.partition.topic)
        ledger.record([made], run_id="run-1")


class TestHeldPositions:
    """The newest life of each changelog partition, as far as its chain reaches."""

    def test_an_empty_ledger(self, ledger: Ledger) -> None:
        assert ledger.held_positions(APPLICATION) == {}

    def test_changelogs_only_up_to_the_first_missing_window(self, ledger: Ledger) -> None:
        _record(
            ledger,
            _of(0, 10),
            _of(10, 20, index=1),
            _of(30, 40, index=3),
            _of(0, 99, topic="in"),
            _of(0, 7, topic="other-log", partition=2),
        )
        assert ledger.held_positions(APPLICATION) == {
            LOG: Position("life-1", 20),
            TopicPartitionId("other-log", 2): Position("life-1", 7),
        }
        _record(ledger, _of(20, 30, index=2))
        assert ledger.held_positions(APPLICATION)[LOG] == Position("life-1", 40)

    def test_the_newest_life(self, ledger: Ledger) -> None:
        older, newer = _of(0, 50), _of(0, 5, index=1, topic_id="life-2")
        for spans in ((older, newer), (newer, older)):
            _record(ledger, *spans)
            assert ledger.held_positions(APPLICATION) == {LOG: Position("life-2", 5)}

    def test_a_life_whose_begin_is_not_backed_up(self, ledger: Ledger) -> None:
        _record(ledger, _of(10, 20, index=1))
        assert ledger.held_positions(APPLICATION) == {}

    def test_records_missing_for_no_known_cause_end_the_chain(self, ledger: Ledger) -> None:
        doubtful = _of(10, 20, index=1)
        unexplained = (Gap(GapCause.COMPACTED, 10, 20, 2), Gap(GapCause.UNEXPLAINED, 10, 20, 1))
        _record(ledger, _of(0, 10), replace(doubtful, gaps=unexplained), _of(20, 30, index=2))
        assert ledger.held_positions(APPLICATION) == {LOG: Position("life-1", 10)}


class TestProvenRanges:
    """What backups hold without a hole."""

    def test_up_to_the_first_hole(self, ledger: Ledger) -> None:
        _record(
            ledger,
            _of(0, 10, hole=0),
            _of(10, 20, index=1, hole=14),
            _of(20, 30, index=2),
            _of(0, 9, topic="in"),
        )
        assert ledger.proven_ranges(APPLICATION) == {LOG: [("life-1", 10, 14), ("life-1", 20, 30)]}

    def test_nothing_where_nobody_looked(self, ledger: Ledger) -> None:
        _record(ledger, replace(_of(0, 10), contiguity_known=False))
        assert ledger.proven_ranges(APPLICATION) == {}


def test_rows_of_an_earlier_release_count_as_not_looked_at(tmp_path: Path) -> None:
    """Their table has no column for holes."""
    ledger = Ledger(Warehouse(tmp_path), APPLICATION_ID)
    _record(ledger, _of(0, 10))
    table = tmp_path / "windows"
    rows = pa.Table.from_pylist(_rows(tmp_path), schema=rows_of(LedgerEntry).schema)
    older = rows.drop_columns(["first_hole", "contiguity_known"])
    shutil.rmtree(table)
    write_deltalake(table, older, partition_by=["application_id"])
    (found,) = ledger.stored_spans({"log"})
    assert found.first_hole == 0
    (entry,) = ledger.entries()
    assert (entry.result.first_hole, entry.result.contiguity_known) == (None, False)


def _rows(warehouse: Path) -> list[dict[str, object]]:
    return DeltaTable(warehouse / "windows").to_pyarrow_table().to_pylist()


def test_a_month_of_hourly_windows_of_forty_partitions(ledger: Ledger, tmp_path: Path) -> None:
    spans = [
        _of(100 * index, 100 * index + 100, index=index, partition=partition)
        for index in range(720)
        for partition in range(40)
    ]
    made = [
        backup(*spans[40 * index : 40 * index + 40], index=index, topic="log")
        for index in range(720)
    ]
    ledger.record(made, run_id="run-1")
    with processor_time() as took:
        held = ledger.held_positions(APPLICATION)
    assert {position.offset for position in held.values()} == {72_000}
    assert len(held) == 40
    assert took.seconds < 2

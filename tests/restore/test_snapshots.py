"""Changelogs from KTable snapshots: which points have them, and what they give a restore."""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kstreams_assets.app.model import Store
from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.checks import Finding
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.repository.ktable_files import window_files
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.records import largest_batch
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.plan import SnapshotSource
from kstreams_assets.restore.planner import plan_topics
from kstreams_assets.restore.preconditions import Facts, blockers
from kstreams_assets.restore.selection import WantedTopic
from kstreams_assets.restore.snapshots import (
    ChosenSnapshot,
    FromSnapshots,
    SnapshotState,
    from_raw_logs,
    from_snapshots,
    keyless_rows,
    may_be_versioned,
    non_positive_timestamps,
    other_cuts,
    retention_blocker,
    snapshot_state,
)
from kstreams_assets.settings import ApplicationSettings, WindowSchedule
from tests.backup.samples import backup, result, span
from tests.repository.disk import on_disk
from tests.restore.planning_samples import (
    application,
    findings,
    noted,
    partition_of,
    point,
    stored,
    stored_topic,
    target,
    there,
)
from tests.restore.snapshot_samples import CHANGELOG, snapshot, store
from tests.restore.snapshot_tables import Row, write_snapshot


def test_the_files_of_one_window(tmp_path: Path) -> None:
    table = tmp_path / "sums"
    write_snapshot(table, [Row(0, 5), Row(1, 2), Row(0, 7, window="2026-11-21-10:00")])
    write_snapshot(table, [Row(0, 9)])
    files = window_files(table).get("w1", [])
    assert sorted((f.records, f.first_offset, f.last_offset) for f in files) == [
        (1, 9, 9),
        (2, 2, 5),
    ]
    (other,) = window_files(table).get("2026-11-21-10:00", [])
    assert other.path.exists()
    assert largest_batch([other], (), above=1) is None
    assert window_files(table).get("w2", []) == []


def test_no_table(tmp_path: Path) -> None:
    assert window_files(tmp_path / "sums").get("w1", []) == []


def test_rows_without_a_key_are_counted_by_partition(tmp_path: Path) -> None:
    rows = [
        Row(0, 1),
        Row(0, 2, key=None, value=b"12345", headers=[("h", b"678")]),
        Row(2, 1, key=None, value=b""),
        Row(2, 3, key=b""),
        Row(2, 4, key=None, window="w2"),
    ]
    write_snapshot(tmp_path / "sums", rows)
    found = keyless_rows(window_files(tmp_path / "sums").get("w1", []))
    assert found == {0: 1, 2: 1}


def test_timestamps_that_a_producer_replaces(tmp_path: Path) -> None:
    rows = [
        Row(0, 1, timestamp_ms=0),
        Row(0, 2, timestamp_ms=-1),
        Row(0, 3, timestamp_ms=1),
        Row(1, 1, timestamp_ms=0, key=None),
    ]
    write_snapshot(tmp_path / "sums", rows)
    assert non_positive_timestamps(window_files(tmp_path / "sums").get("w1", [])) == {0: 2}


P = point().id
CLOSED = {P: "w1", "other": "w2"}


def _state(
    stores: Iterable[TableStore],
    snapshots: Iterable[Snapshot],
    *,
    excluded: Set[str] = frozenset(),
    topics: Mapping[str, Set[str]] | None = None,
) -> SnapshotState:
    def topics_at(ids: Collection[str]) -> Mapping[str, Set[str]]:
        assert topics is not None, f"looked up {ids} for nothing"
        return topics

    return SnapshotState(
        stores, snapshots, closed_by=CLOSED, excluded=excluded, topics_at=topics_at
    )


class TestMissing:
    def test_nothing(self) -> None:
        state = _state([store()], [snapshot()])
        assert state.missing(P) == ""
        assert state.of(P) == {CHANGELOG: ChosenSnapshot(store(), snapshot())}

    def test_none_was_made(self) -> None:
        state = _state([store("counts", "shop-counts-changelog"), store()], [])
        text = state.missing(P)
        assert "counts (none was made), sums (none was made)" in text
        assert state.of(P) == {}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"proved": False, "reason": "Not sealed."}, "sums (not proved: Not sealed)"),
            ({"fingerprint": "another"}, "sums (the store had another format)"),
            ({"topic": "renamed"}, "sums (none was made)"),
            ({"point_id": "other"}, "sums (none was made)"),
        ],
    )
    def test_one_that_will_not_do(self, changes: Mapping[str, object], words: str) -> None:
        made = replace(snapshot(), **changes)  # pyright: ignore[reportArgumentType]
        state = _state([store()], [made], topics={P: {CHANGELOG}})
        assert words in state.missing(P)
        assert state.of(P) == {}

    def test_only_changelogs_that_are_wanted_and_nothing_else_count(self) -> None:
        stores = [
            store("names", "names", is_changelog_only=False),
            store("left-out", "shop-left-out-changelog"),
            store(),
        ]
        state = _state(stores, [snapshot()], excluded={"shop-left-out-changelog"})
        assert state.missing(P) == ""
        assert list(state.of(P)) == [CHANGELOG]

    def test_a_store_that_came_later(self) -> None:
        late = store("late", "shop-late-changelog")
        state = _state([late, store()], [snapshot()], topics={P: {CHANGELOG}})
        assert state.missing(P) == ""
        there_already = {P: {CHANGELOG, late.topic}}
        state = _state([late, store()], [snapshot()], topics=there_already)
        assert "late (none was made)" in state.missing(P)

    def test_a_point_that_closes_no_window(self) -> None:
        state = _state([store()], [snapshot()])
        assert "It closes no window that is backed up" in state.missing("between")
        assert _state([], []).missing("between") == ""

    @pytest.mark.parametrize("changes", [{"proved": False}, {"fingerprint": "another"}])
    def test_of_two_windows_that_a_point_closes_the_one_that_will_do_counts(
        self, changes: Mapping[str, Any]
    ) -> None:
        other = snapshot(window=Window(60_000, 120_000, "w2"), **changes)
        for order in ([other, snapshot()], [snapshot(), other]):
            assert _state([store()], order).missing(P) == ""

    def test_many(self) -> None:
        stores = [store(f"s{number}", f"t{number}") for number in range(5)]
        assert "and 2 more" in _state(stores, []).missing(P)


def test_the_remedy_names_the_window() -> None:
    state = _state([store()], [])
    assert state.first_closing(["x", P, "other"]) == P
    assert "kstreams-assets ktables make --window w1, or set changelog_source" in state.remedy(P)
    assert "closes a window" in state.remedy("x")


def _wanted() -> WantedTopic:
    return next(t for t in findings().selection.topics if t.source == CHANGELOG)


class TestCuts:
    def _blockers(self, *partitions: SnapshotPartition) -> list[str]:
        made = snapshot(partitions=partitions)
        return [str(r) for r in other_cuts(_wanted(), ChosenSnapshot(store(), made))]

    def test_as_the_point_has_them(self) -> None:
        assert self._blockers(*snapshot().partitions) == []

    @pytest.mark.parametrize(
        "changes",
        [{"end": 99}, {"topic_id": "another"}, {"excluded": (OffsetRange(20, 30),)}],
    )
    def test_others(self, changes: Mapping[str, object]) -> None:
        (part,) = snapshot().partitions
        (text,) = self._blockers(replace(part, **changes))  # pyright: ignore[reportArgumentType]
        assert "store sums: Its KTable snapshot of window w1 was not made from partition 0" in text
        assert "ktables make --window w1" in text

    def test_a_partition_that_it_does_not_know(self) -> None:
        assert len(self._blockers()) == 1


def test_changelogs_that_come_from_the_raw_log_all_the_same() -> None:
    mixed, without = from_raw_logs(findings().selection.topics, {})
    assert "Source topics that serve as changelog come from the raw log: names." in mixed
    assert f"The stores of {CHANGELOG} have no tables" in without
    assert len(from_raw_logs(findings().selection.topics, {CHANGELOG: object()})) == 1


def _begun(found: Facts) -> list[Finding]:
    return blockers(found, plan_topics(found)[0], largest={}, writers={})


class TestBegun:
    def _found(self, records: int) -> Facts:
        return findings(
            target=target(there(CHANGELOG)),
            stored=stored(stored_topic(CHANGELOG, records=records)),
            snapshots={CHANGELOG: SnapshotSource("sums", "w1", raw_records=9, raw_bytes=90)},
        )

    def test_with_the_same_rows(self) -> None:
        found = self._found(5)
        assert list(_begun(found)) == []

    def test_with_other_ones(self) -> None:
        found = self._found(4)
        (blocker,) = _begun(found)
        assert f"topic {CHANGELOG}: This restore started with 4 records" in str(blocker)


def test_a_format_decides_which_snapshots_count() -> None:
    versioned = StoreFormat(kind=StoreKind.VERSIONED, retention_ms=1)
    stores = [store(format=versioned)]
    made = snapshot(fingerprint=versioned.fingerprint)
    assert _state(stores, [made]).missing(P) == ""
    assert _state(stores, [snapshot()], topics={P: {CHANGELOG}}).missing(P) != ""


DAY = 86_400_000


def _blocker(kind: StoreKind, retention_ms: int | None, configs: Mapping[str, str]) -> str | None:
    declared = store(format=StoreFormat(kind=kind, retention_ms=retention_ms))
    blocker = retention_blocker(declared, configs)
    return None if blocker is None else str(blocker)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (StoreKind.WINDOW, "retention.ms"),
        (StoreKind.JOIN_WINDOW, "retention.ms"),
        (StoreKind.SESSION, "retention.ms"),
        (StoreKind.VERSIONED, "min.compaction.lag.ms"),
    ],
)
def test_a_shorter_retention_would_lose_rows(kind: StoreKind, config: str) -> None:
    configs = {config: str(DAY + 60_000)}
    text = _blocker(kind, 59_999, configs)
    assert text is not None
    assert text.startswith("store sums: Its declared retention_ms is 59999, but")
    assert (
        f"{config}={DAY + 60_000} of shop-sums-changelog shows that the store keeps 60000" in text
    )
    assert "Declare retention_ms: 60000" in text
    assert _blocker(kind, 60_000, configs) is None
    assert _blocker(kind, None, configs) is None


def test_configs_that_tell_nothing() -> None:
    assert _blocker(StoreKind.WINDOW, 1, {}) is None
    assert _blocker(StoreKind.WINDOW, 1, {"retention.ms": "-1"}) is None
    assert _blocker(StoreKind.WINDOW, 1, {"min.compaction.lag.ms": str(9 * DAY)}) is None
    assert _blocker(StoreKind.VERSIONED, 1, {"retention.ms": str(9 * DAY)}) is None


def test_a_store_of_no_declared_kind_may_be_versioned() -> None:
    configs = {"min.compaction.lag.ms": str(DAY)}
    undeclared = store(format=StoreFormat(undeclared=True))
    blocker = retention_blocker(undeclared, configs)
    assert blocker is not None
    assert "Its kind is not declared" in str(blocker)
    assert retention_blocker(undeclared, {"min.compaction.lag.ms": "0"}) is None
    assert retention_blocker(undeclared, {}) is None
    assert retention_blocker(store(), configs) is None
    assert may_be_versioned(store(), configs)
    assert not may_be_versioned(store(format=StoreFormat(kind=StoreKind.VERSIONED)), configs)


RAW = PartitionContents(records=9, bytes=900)
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
        write_snapshot(on_disk(self.settings.warehouse.ktable("shop", made.store)), rows)
        Repository.open(self.settings).snapshots.record([made])
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
        raw: PartitionContents = RAW,
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
        assert "the store had another format" in written.state().missing(point().id)

    def test_a_store_without_tables_is_not_missed(self, tmp_path: Path) -> None:
        without = Written(tmp_path, without_ktable=frozenset({"sums"}))
        assert without.state().missing(point().id) == ""
        given = without.given()
        assert (given.sources, given.holdings) == ({}, {})
        assert any("have no tables: these changelogs come from" in note for note in given.notes)


class TestGiven:
    def test_rows_and_bytes_of_the_ledger_beside_those_of_the_raw_log(
        self, written: Written
    ) -> None:
        given = written.given(raw=PartitionContents(records=9, bytes=900, saved_records=4, lost=2))
        assert given.blockers == ()
        assert given.holdings == {
            partition_of(CHANGELOG): PartitionContents(
                records=3, bytes=30, lost=2, windows=frozenset({"w1"})
            )
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
        given = written.given(raw=PartitionContents(records=9, non_positive_timestamps=5))
        assert given.holdings[partition_of(CHANGELOG)].non_positive_timestamps == 1

    def test_deletions_of_versioned_stores_are_records(self, tmp_path: Path) -> None:
        versioned = StoreFormat(kind=StoreKind.VERSIONED)
        written = Written(tmp_path, ("sums", versioned))
        written.note(snapshot(fingerprint=versioned.fingerprint), *ROWS)
        assert written.given().sources[CHANGELOG].keeps_deletions

    def test_a_table_with_other_rows_than_noted(self, written: Written) -> None:
        write_snapshot(on_disk(written.settings.warehouse.ktable("shop", "sums")), [Row(0, 77)])
        (blocker,) = written.given().blockers
        assert "store sums: Its table has 4 rows of window w1; 3 were recorded" in str(blocker)

    def test_other_cuts_and_too_short_retentions(self, tmp_path: Path) -> None:
        windowed = StoreFormat(kind=StoreKind.WINDOW, retention_ms=1_000)
        written = Written(tmp_path, ("sums", windowed))
        part = SnapshotPartition(0, f"{CHANGELOG}-id", 10, 99, rows=3, bytes=30)
        written.note(snapshot(partitions=(part,), fingerprint=windowed.fingerprint), *ROWS)
        cuts, retention = written.given(configs={"retention.ms": "86402000"}).blockers
        assert "as it is in the point" in str(cuts)
        assert "shows that the store keeps 2000" in str(retention)

    def test_a_declared_store_that_may_be_versioned_is_told(self, written: Written) -> None:
        given = written.given(configs={"min.compaction.lag.ms": "5"})
        assert given.blockers == ()
        assert any("declare its kind, or its history is lost" in note for note in given.notes)

"""What the warehouse holds of a point: which files, and exactly how many records."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from kstreams_assets.app.model import AppTopic, TopicRole, TopicRoles
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, WantedPartition
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.model.spans import Gap, GapCause, SpanContent, SpanResult, TopicFacts
from kstreams_assets.offsets import OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.repository.contents import PartitionContents, View
from kstreams_assets.repository.ledger import Ledger, TopicFactsTable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.restore.request import InputsExtent, RestoreRequest
from kstreams_assets.restore.selection import reduced
from tests.backup.samples import APPLICATION_ID, STEP_MS, application, backup, point, span, window
from tests.repository.disk import on_disk

LIFE = "life-1"
_SCHEMA = pa.schema(
    [
        pa.field("window", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        pa.field("value", pa.binary()),
    ]
)


class Backups:
    """Files and ledger rows written by hand; records have 10 bytes."""

    def __init__(self, root: Path) -> None:
        self.warehouse = Warehouse(root)
        self.path = on_disk(self.warehouse.records(APPLICATION_ID))

    def file(
        self,
        offsets: Sequence[int],
        *,
        index: int = 0,
        topic: str = "t",
        partition: int = 0,
        timestamps_ms: dict[int, int] | None = None,
    ) -> None:
        """One file of a window."""
        rows = [
            {
                "window": window(index).key,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp_ms": (timestamps_ms or {}).get(offset, 1_000 + offset),
                "value": b"v",
            }
            for offset in offsets
        ]
        write_deltalake(
            self.path,
            pa.Table.from_pylist(rows, schema=_SCHEMA),
            mode="append",
            partition_by=["window", "topic"],
        )

    def span(
        self,
        start: int,
        end: int,
        *,
        records: int,
        index: int = 0,
        topic: str = "t",
        topic_id: str = LIFE,
        read_start: int | None = None,
        gaps: Sequence[Gap] = (),
    ) -> SpanResult:
        """A row of the ledger."""
        plan = span(start, end, index=index, topic=topic, topic_id=topic_id, read_start=read_start)
        return SpanResult(plan, SpanContent(records=records, bytes=10 * records), tuple(gaps))

    def record(self, *spans: SpanResult, index: int = 0, topic: str = "t") -> None:
        """Put the rows of a window into the ledger."""
        ledger = Ledger(self.warehouse, APPLICATION_ID)
        ledger.record([backup(*spans, index=index, topic=topic)], run_id="run")

    def back_up(self, offsets: Sequence[int], *, index: int = 0, start: int, end: int) -> None:
        """One file with its row."""
        self.file(offsets, index=index)
        self.record(self.span(start, end, records=len(offsets), index=index), index=index)

    def holding(
        self, *ranges: tuple[int, int], saved_from: int | None = None, topic_id: str = LIFE
    ) -> PartitionContents:
        """What is found of partition 0 of topic `t`."""
        taken, wanted = _wanted(ranges, saved_from=saved_from, topic_id=topic_id)
        return _contents(self.warehouse).contents(taken, wanted)[TopicPartitionId("t", 0)]

    def save(self, offsets: Iterable[int], *, odd: Iterable[int] = ()) -> None:
        """Save records with a point: 3 bytes of payload each."""
        bad = set(odd)
        records = [
            RawRecord(offset, 0 if offset in bad else 1_000, 0, b"k", b"vv", ())
            for offset in offsets
        ]
        tail = SavedTail(TopicPartitionId("t", 0), LIFE, records)
        Repository(self.warehouse, APPLICATION_ID).saved_records.append("point-1", [tail])


def _wanted(
    ranges: Sequence[tuple[int, int]], *, saved_from: int | None, topic_id: str
) -> tuple[RecoveryPoint, list[WantedPartition]]:
    wanted = tuple(OffsetRange(*each) for each in ranges)
    end = wanted[-1].end
    bad = RangeSet.of(0, end, without=wanted)
    inner = tuple(each for each in bad if each.start >= wanted[0].start)
    cut = PartitionCut("t", 0, topic_id, 0, end, TopicRoles(), inner, saved_from)
    return point(10**6, cut, point_id="point-1"), [WantedPartition(cut, wanted)]


def _contents(warehouse: Warehouse) -> View:
    topic = AppTopic("t", TopicRoles({TopicRole.CHANGELOG}))
    return Repository.of(warehouse, APPLICATION_ID).reading(application(topic))


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    """An empty warehouse."""
    return Backups(tmp_path)


def _names(holding: PartitionContents) -> list[tuple[int, int]]:
    return [(file.first_offset, file.last_offset) for file in holding.files]


class TestFiles:
    def test_nothing_backed_up(self, backups: Backups) -> None:
        assert backups.holding((0, 10)) == PartitionContents(lost=10)

    def test_in_order_of_offsets_whatever_the_order_of_writing(self, backups: Backups) -> None:
        for index in (2, 0, 1):
            backups.file(range(10 * index + 5, 10 * index + 10), index=index)
            backups.file(range(10 * index, 10 * index + 5), index=index)
            row = backups.span(10 * index, 10 * index + 10, records=10, index=index)
            backups.record(row, index=index)
        found = backups.holding((0, 30))
        assert _names(found) == [(i, i + 4) for i in range(0, 30, 5)]
        assert (found.records, found.bytes, len(found.windows)) == (30, 300, 3)
        assert all(file.path.exists() for file in found.files)

    def test_files_outside_the_ranges_are_left_out(self, backups: Backups) -> None:
        for index in range(4):
            lines = range(10 * index, 10 * index + 10)
            backups.back_up(lines, index=index, start=10 * index, end=10 * index + 10)
        found = backups.holding((10, 20))
        assert (_names(found), found.windows) == ([(10, 19)], {window(1).key})

    def test_files_of_another_life_of_the_topic_do_not_count(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        backups.file(range(4), index=1)
        row = backups.span(0, 4, records=4, index=1, topic_id="life-2")
        backups.record(row, index=1)
        assert _names(backups.holding((0, 10))) == [(0, 9)]
        assert _names(backups.holding((0, 10), topic_id="life-2")) == [(0, 3)]

    def test_nor_do_files_of_windows_that_the_ledger_does_not_have(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        backups.file(range(10, 20), index=1)
        assert backups.holding((0, 20)).records == 10

    def test_nor_those_of_other_topics_and_partitions(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        backups.file(range(10), topic="other")
        backups.file(range(10), partition=1)
        assert backups.holding((0, 10)).records == 10

    def test_the_log_is_read_once_for_many_windows(
        self, backups: Backups, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for index in range(5):
            backups.back_up([index], index=index, start=index, end=index + 1)
        reads: list[object] = []
        original = deltalake.DeltaTable.get_add_actions

        def noted(table, **arguments):
            if "/records/" in table.table_uri:
                reads.append(table)
            return original(table, **arguments)

        monkeypatch.setattr(deltalake.DeltaTable, "get_add_actions", noted)
        taken, wanted = _wanted([(0, 5)], saved_from=None, topic_id=LIFE)
        found = _contents(backups.warehouse).contents(taken, wanted)
        assert found[TopicPartitionId("t", 0)].records == 5
        assert len(reads) == 1


class TestCounts:
    def test_whole_files_are_not_opened(
        self, backups: Backups, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backups.back_up(range(10), start=0, end=10)
        monkeypatch.delattr(pq, "ParquetFile")
        assert backups.holding((0, 10)).records == 10

    def test_files_cut_by_an_edge_are_counted(self, backups: Backups) -> None:
        backups.back_up([0, 1, 4, 5, 9], start=0, end=10)
        found = backups.holding((1, 5))
        assert (found.records, found.bytes) == (2, 20)

    def test_files_cut_by_an_excluded_range(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        assert backups.holding((0, 3), (6, 10)).records == 7

    def test_a_file_that_lies_in_a_hole_between_ranges(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        backups.back_up([12, 13], index=1, start=10, end=20)
        found = backups.holding((0, 11), (15, 20))
        assert (_names(found), found.records) == ([(0, 9)], 10)

    def test_the_epoch_itself_counts(self, backups: Backups) -> None:
        backups.file(range(3), timestamps_ms={2: 0})
        backups.record(backups.span(0, 3, records=3))
        assert backups.holding((0, 3)).non_positive_timestamps == 1

    def test_timestamps_at_or_before_the_epoch(self, backups: Backups) -> None:
        backups.file(range(10), timestamps_ms={2: 0, 3: -1, 8: -5})
        backups.record(backups.span(0, 10, records=10))
        assert backups.holding((0, 10)).non_positive_timestamps == 3
        assert backups.holding((0, 3), (4, 8)).non_positive_timestamps == 1


class TestSavedRecords:
    def test_only_saved_ones(self, backups: Backups) -> None:
        backups.save(range(5, 10))
        found = backups.holding((5, 10), saved_from=5)
        assert found == PartitionContents(records=5, bytes=15, saved_records=5)

    def test_what_is_in_a_file_too_counts_once(self, backups: Backups) -> None:
        backups.back_up([0, 1, 2, 3, 6, 7], start=0, end=8)
        backups.save([3, 4, 5, 6, 8])
        found = backups.holding((0, 9), saved_from=3)
        # 4, 5 and 8 were saved only
        assert (found.records, found.saved_records, found.bytes) == (9, 3, 69)

    def test_a_file_that_no_saved_record_touches_is_not_opened(
        self, backups: Backups, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backups.back_up(range(10), start=0, end=10)
        backups.save(range(10, 15))
        monkeypatch.setattr("kstreams_assets.repository.contents.pq", None)
        found = backups.holding((0, 15), saved_from=10)
        assert (found.records, found.saved_records) == (15, 5)

    def test_outside_the_ranges_they_do_not_count(self, backups: Backups) -> None:
        backups.save(range(20), odd=[3, 12])
        found = backups.holding((5, 8), (12, 15), saved_from=0)
        assert (found.saved_records, found.non_positive_timestamps) == (6, 1)


class TestLost:
    def test_what_kafka_no_longer_had(self, backups: Backups) -> None:
        gap = Gap(GapCause.RETENTION, 0, 6, 6)
        backups.file([6, 7])
        backups.record(backups.span(0, 10, records=2, read_start=6, gaps=[gap]))
        assert backups.holding((0, 10)).lost == 6
        assert backups.holding((3, 10)).lost == 3
        assert backups.holding((6, 10)).lost == 0

    def test_what_no_window_holds(self, backups: Backups) -> None:
        backups.back_up(range(5), start=0, end=5)
        backups.back_up(range(8, 10), index=1, start=8, end=10)
        assert backups.holding((0, 12)).lost == 5

    def test_what_was_saved_with_points_is_not_lost(self, backups: Backups) -> None:
        backups.back_up(range(5), start=0, end=5)
        backups.save([5, 7])
        assert backups.holding((0, 9), saved_from=5).lost == 0


@settings(max_examples=25, deadline=None)
@given(
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 31), min_size=2),
)
def test_counts_are_those_of_sets(
    tmp_path_factory: pytest.TempPathFactory,
    filed: set[int],
    saved: set[int],
    edges: set[int],
) -> None:
    backups = Backups(tmp_path_factory.mktemp("any"))
    for index in range(4):
        own = [offset for offset in sorted(filed) if offset // 8 == index]
        if own:
            backups.back_up(own, index=index, start=8 * index, end=8 * index + 8)
    backups.save(sorted(saved))
    ordered = sorted(edges)
    ranges = list(zip(ordered[::2], ordered[1::2], strict=False))
    found = backups.holding(*ranges, saved_from=0)
    inside = {offset for start, end in ranges for offset in range(start, end)}
    assert found.records == len((filed | saved) & inside)
    assert found.saved_records == len((saved - filed) & inside)


class TestFacts:
    def _note(self, backups: Backups, index: int, partitions: int, topic_id: str = LIFE) -> None:
        noted = TopicFacts(topic_id, partitions, 1, (("retention.ms", str(index)),))
        made = replace(backup(index=index), facts=noted)
        TopicFactsTable(backups.warehouse, APPLICATION_ID).record([made])

    def _facts(self, backups: Backups, at_ms: int) -> tuple[int, bool] | None:
        found = _contents(backups.warehouse).facts(point(at_ms), {"t": LIFE}).get("t")
        return None if found is None else (found.facts.partitions, found.later)

    def test_the_last_before_the_point(self, backups: Backups) -> None:
        for index in (3, 1, 2):
            self._note(backups, index, partitions=index)
        assert self._facts(backups, window(2).end_ms + 1) == (2, False)
        assert self._facts(backups, window(2).end_ms) == (2, False)

    def test_else_the_first_after_it(self, backups: Backups) -> None:
        for index in (3, 1, 2):
            self._note(backups, index, partitions=index)
        assert self._facts(backups, STEP_MS) == (1, True)

    def test_of_the_life_of_the_point(self, backups: Backups) -> None:
        self._note(backups, 1, partitions=1, topic_id="life-0")
        self._note(backups, 5, partitions=5)
        assert self._facts(backups, window(2).end_ms) == (5, True)

    def test_never_noted(self, backups: Backups) -> None:
        assert self._facts(backups, 5) is None


_ROLES = st.sampled_from(
    [
        TopicRoles({TopicRole.INPUT}),
        TopicRoles({TopicRole.OUTPUT}),
        TopicRoles({TopicRole.INPUT, TopicRole.OUTPUT}),
        TopicRoles({TopicRole.CHANGELOG}),
        TopicRoles({TopicRole.REPARTITION}),
        TopicRoles(),
    ]
)


@pytest.fixture(scope="module")
def two_windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with two windows of eight records, to be copied."""
    folder = tmp_path_factory.mktemp("two-windows")
    backups = Backups(folder)
    backups.back_up(range(8), start=0, end=8)
    backups.back_up(range(8, 16), index=1, start=8, end=16)
    return folder


class TestBeyond:
    """Points that need what no backup reaches yet are told without loading them."""

    def _beyond(self, backups: Backups, *points: RecoveryPoint) -> frozenset[str]:
        Repository(backups.warehouse, APPLICATION_ID).points.append_many(points)
        topic = AppTopic("t", TopicRoles({TopicRole.INPUT}))
        contents = Repository.of(backups.warehouse, APPLICATION_ID).reading(application(topic))
        found = contents.beyond([point.id for point in points], lambda *_: True)
        # Whatever is told, the whole look says the same, also of a restore of tails.
        tail = RestoreRequest(inputs=InputsExtent.TAIL)
        roles = {"t": TopicRoles({TopicRole.INPUT})}
        for given_ in (points, [reduced(each, roles, tail, set()) for each in points]):
            assert not any(one.covered for one in contents.statuses(given_) if one.id in found)
        return found

    def test_those_behind_the_last_window(self, backups: Backups) -> None:
        backups.back_up(range(10), start=0, end=10)
        cut = PartitionCut("t", 0, LIFE, 0, 10, TopicRoles({TopicRole.INPUT}))
        points = [
            point(STEP_MS + end, replace(cut, end=end), point_id=f"{end}") for end in (9, 10, 11)
        ]
        assert self._beyond(backups, *points) == {"11"}

    def test_not_where_the_application_has_read_all_or_kafka_has_none_left(
        self, backups: Backups
    ) -> None:
        backups.back_up(range(10), start=0, end=10)
        cut = PartitionCut("t", 0, LIFE, 0, 15, TopicRoles({TopicRole.INPUT}))
        read = point(STEP_MS, cut, group_offsets=[GroupOffset("t", 0, 15, "")], point_id="read")
        gone = point(STEP_MS + 1, replace(cut, log_start=15), point_id="gone")
        assert self._beyond(backups, read, gone) == set()

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.integers(0, 12),
                st.integers(0, 30),
                st.sampled_from([LIFE, "life-2"]),
                _ROLES,
                st.integers(0, 40) | st.none(),
                st.none() | st.integers(0, 30),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_never_one_that_is_covered(
        self,
        two_windows: Path,
        tmp_path_factory: pytest.TempPathFactory,
        cuts: list[tuple[int, int, str, TopicRoles, int | None, int | None]],
    ) -> None:
        folder = tmp_path_factory.mktemp("any")
        shutil.copytree(two_windows, folder, dirs_exist_ok=True)
        backups = Backups(folder)
        self._beyond(
            backups,
            *(
                point(
                    STEP_MS + number,
                    PartitionCut("t", 0, life, log_start, log_start + more, roles, (), saved_from),
                    group_offsets=(
                        [] if committed is None else [GroupOffset("t", 0, committed, "")]
                    ),
                    point_id=f"p{number}",
                )
                for number, (log_start, more, life, roles, committed, saved_from) in enumerate(cuts)
            ),
        )

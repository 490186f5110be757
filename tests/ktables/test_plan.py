"""What a snapshot is made from."""

from dataclasses import replace

import pytest

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.point import PartitionCut
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.model.store_states import (
    PartitionPlan,
    choose_base,
    plan_partitions,
    saved_cuts,
    state_cuts,
    with_saved,
)
from kstreams_assets.offsets import OffsetRange
from tests.backup.samples import cut, point, window

STORE = TableStore("totals", "t", StoreFormat())
VERSIONED = TableStore("totals", "t", StoreFormat(StoreKind.VERSIONED))


def _range(start: int, end: int) -> OffsetRange:
    return OffsetRange(start, end)


def _stood(end: int, *excluded: OffsetRange, partition: int = 0) -> SnapshotPartition:
    return SnapshotPartition(partition, "life-1", 0, end, excluded)


def _snapshot(
    index: int, *partitions: SnapshotPartition, store: TableStore = STORE, of: Window | None = None
) -> Snapshot:
    return Snapshot(
        application_id="shop",
        store=store.store,
        topic=store.topic,
        window=of or window(index),
        point_id=f"point-{index}",
        taken_at_ms=index,
        proved=True,
        reason="",
        base_window=None,
        fingerprint=store.format.fingerprint,
        partitions=partitions,
        records=0,
    )


def _cut(end: int, *excluded: OffsetRange, partition: int = 0) -> PartitionCut:
    return replace(cut(partition, end), excluded=excluded)


class TestBase:
    def test_the_last_that_does_not_stand_further_on(self) -> None:
        known = [_snapshot(index, _stood(10 * index)) for index in (3, 0, 2, 1)]
        assert choose_base(STORE, [_cut(25)], known) == known[2]
        assert choose_base(STORE, [_cut(15)], known) == known[3]
        assert choose_base(STORE, [_cut(0)], known[2:]) is None

    @pytest.mark.parametrize(
        "other",
        [
            _snapshot(0, replace(_stood(10), topic_id="life-0")),
            _snapshot(0, replace(_stood(10), log_start=5)),
            _snapshot(0, _stood(26)),
            _snapshot(0, _stood(10), _stood(10, partition=1)),
            replace(_snapshot(0, _stood(10)), fingerprint="another"),
            replace(_snapshot(0, _stood(10)), topic="another"),
        ],
        ids=["recreated", "began later", "stands further on", "partition gone", "format", "topic"],
    )
    def test_not_one_that_does_not_fit(self, other: Snapshot) -> None:
        assert choose_base(STORE, [_cut(25)], [other]) is None
        fitting = _snapshot(0, _stood(10))
        assert choose_base(STORE, [_cut(25)], [fitting]) == fitting

    def test_another_format_is_another_fingerprint(self) -> None:
        text = TableStore("totals", "t", StoreFormat(key=Format(Encoding.STRING)))
        assert choose_base(text, [_cut(25)], [_snapshot(0, _stood(10))]) is None

    def test_a_new_partition_begins_at_its_log_start(self) -> None:
        base = _snapshot(0, _stood(10))
        cuts = [_cut(25), _cut(7, partition=1)]
        assert choose_base(STORE, cuts, [base]) == base
        assert plan_partitions(cuts, base)[1] == PartitionPlan(cuts[1], (_range(0, 7),))

    def test_what_is_excluded_now_must_not_be_in_it(self) -> None:
        inside, outside = _snapshot(0, _stood(10)), _snapshot(0, _stood(10, _range(4, 6)))
        now = [_cut(25, _range(4, 6), _range(20, 22))]
        assert choose_base(STORE, now, [inside]) is None
        assert choose_base(STORE, now, [outside]) == outside

    def test_versions_depend_on_all_records_before_them(self) -> None:
        whole = _snapshot(0, _stood(10), store=VERSIONED)
        holed = _snapshot(0, _stood(10, _range(4, 6)), store=VERSIONED)
        assert choose_base(VERSIONED, [_cut(25)], [whole]) == whole
        assert choose_base(VERSIONED, [_cut(25)], [holed]) is None
        moved = [replace(_cut(25), log_start=3)]
        assert choose_base(VERSIONED, moved, [whole]) is None


class TestRanges:
    def test_from_the_begin_without_a_base(self) -> None:
        now = replace(_cut(30, _range(10, 12)), log_start=4)
        assert plan_partitions([now], None) == [PartitionPlan(now, (_range(4, 10), _range(12, 30)))]

    def test_what_the_base_does_not_hold(self) -> None:
        (part,) = plan_partitions([_cut(30, _range(25, 26))], _snapshot(0, _stood(20)))
        assert part.ranges == (_range(20, 25), _range(26, 30))
        assert part.base_rows == _range(0, 20)

    def test_all_from_the_first_excluded_range_of_the_base_on(self) -> None:
        """Deletions above it are needed again: what they deleted may come back from the range."""
        base = _snapshot(0, _stood(20, _range(12, 14), _range(16, 17)))
        (part,) = plan_partitions([_cut(30, _range(16, 17))], base)
        assert part.ranges == (_range(12, 16), _range(17, 30))
        assert part.base_rows == _range(0, 12)

    def test_rows_below_the_log_start_have_left_the_log(self) -> None:
        now = replace(_cut(30), log_start=8)
        (part,) = plan_partitions([now], _snapshot(0, _stood(20)))
        assert part.base_rows == _range(8, 20)
        late = replace(_cut(30), log_start=25)
        (part,) = plan_partitions([late], _snapshot(0, _stood(20)))
        assert (part.ranges, part.base_rows) == ((_range(25, 30),), _range(25, 25))

    def test_nothing_new(self) -> None:
        (part,) = plan_partitions([_cut(20)], _snapshot(0, _stood(20)))
        assert part.ranges == ()


class TestStateCuts:
    def test_an_input_that_is_a_changelog_counts_up_to_the_committed_offset(self) -> None:
        both = TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG})
        now = replace(_cut(30, _range(5, 6), _range(18, 24)), roles=both)
        taken = point(5, now, group_offsets=[GroupOffset("t", 0, 20, "")])
        assert state_cuts(taken, "t") == [
            replace(now, end=20, excluded=(_range(5, 6), _range(18, 20)))
        ]

    def test_without_a_committed_offset_nothing_of_it_is_in_the_store(self) -> None:
        both = TopicRoles({TopicRole.INPUT, TopicRole.CHANGELOG})
        now = replace(_cut(30), roles=both, log_start=4)
        assert state_cuts(point(5, now), "t") == [replace(now, end=4)]

    def test_other_topics_count_up_to_their_ends(self) -> None:
        inputs = replace(_cut(30), roles=TopicRoles({TopicRole.GLOBAL}))
        taken = point(5, inputs, cut(0, 9, topic="u"), group_offsets=[GroupOffset("t", 0, 20, "")])
        assert state_cuts(taken, "t") == [inputs]


class TestSaved:
    def test_from_where_the_point_saved_and_where_backups_have_holes(self) -> None:
        now = replace(_cut(30), saved_from=25)
        part = with_saved(PartitionPlan(now, (_range(0, 10), _range(12, 30))), [_range(8, 15)])
        assert part.saved == (_range(8, 10), _range(12, 15), _range(25, 30))
        (found,) = saved_cuts([part]).values()
        assert (found.saved_from, found.end) == (8, 30)
        assert found.excluded == (_range(10, 12), _range(15, 25))

    def test_nothing_is_looked_up_where_nothing_was_saved(self) -> None:
        assert saved_cuts([with_saved(PartitionPlan(_cut(30), (_range(0, 30),)), [])]) == {}

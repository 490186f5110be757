"""The table of recovery points."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import ConsumerGroup, GroupOffset
from kstreams_assets.model.point import (
    CommitBoundary,
    Guarantee,
    Method,
    PointInstant,
    RecoveryPoint,
    effective_points,
)
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.points import RecoveryPointTable
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.rows import rows_of
from tests.backup.samples import APPLICATION_ID, cut, point
from tests.timing import processor_time

SCHEMA = rows_of(RecoveryPoint).schema


@pytest.fixture
def table(tmp_path: Path) -> RecoveryPointTable:
    """The table in an empty warehouse."""
    return Repository(Warehouse(tmp_path), APPLICATION_ID).points


def _of_eu(table: RecoveryPointTable) -> RecoveryPointTable:
    """The points of another application in the same warehouse."""
    return Repository(table._warehouse, "shop-eu").points


def test_a_point_comes_back_as_it_was(table: RecoveryPointTable) -> None:
    metadata = "AgAAAZM\x00é\u2028"  # Kafka Streams keeps partition time there: every character
    taken = replace(
        point(
            15,
            cut(0, 3, log_start=2),
            replace(cut(1, 2**62, topic_id="life-2~7"), leader_epoch=7),
            closes_window_end_ms=10,
            group_offsets=[GroupOffset("t", 0, 3, metadata), GroupOffset("t", 1, 0, "")],
            absent_topics=["gone"],
        ),
        sealed=True,
        sequence=3,
        ledger_version=41,
        undeclared_topics=("new",),
        cut_guarantee=Guarantee.EXACT,
    )
    table.append(taken)
    assert table.load([taken.id]) == [taken]
    assert table.newest() == [taken]


def test_other_groups_lie_beside_the_applications_own(table: RecoveryPointTable) -> None:
    """A point without others keeps the row, and with it the digest, of earlier releases."""
    alone = point(15, group_offsets=[GroupOffset("t", 0, 3, "AgAA")])
    reader = ConsumerGroup(
        "reader", (GroupOffset("out", 0, 7, "\u00e9"), GroupOffset("t", 0, 1, ""))
    )
    taken = replace(alone, id="point-16", other_groups=(reader, ConsumerGroup("empty")))
    table.append_many([alone, taken])
    assert RecoveryPointTable.plain(alone)["other_groups"] is None
    found = table.load([alone.id, taken.id])
    assert found == [alone, taken]
    own = ConsumerGroup(APPLICATION_ID, alone.group_offsets)
    assert [one.groups for one in found] == [(own,), (own, reader, ConsumerGroup("empty"))]
    assert found[1].group.offset_in(TopicPartitionId("t", 0)) == 3
    assert not found[1].damaged


def test_a_passive_cut_is_stored_with_its_proof(table: RecoveryPointTable) -> None:
    """A point of another method keeps the row, and with it the digest, of earlier releases."""
    other = point(15)
    commits = (CommitBoundary(0, "thread-1", 41, 0), CommitBoundary(1, "thread-2", 43, 7))
    passive = replace(point(16), method=Method.PASSIVE_COMMITS, repeats_bound=7, commits=commits)
    table.append_many([other, passive])
    plain = RecoveryPointTable.plain(other)
    assert (plain["repeats_bound"], plain["commits"]) == (None, None)
    assert table.load([other.id, passive.id]) == [other, passive]


def test_a_table_of_an_earlier_release_is_read_and_goes_on(
    table: RecoveryPointTable, tmp_path: Path
) -> None:
    """Its rows do not know what was not declared; those that are added do."""
    later = ("undeclared_topics", "cut_guarantee", "other_groups", "repeats_bound", "commits")
    schema = pa.schema([column for column in SCHEMA if column.name not in later])
    old = {
        name: value
        for name, value in RecoveryPointTable.plain(point(5)).items()
        if name not in later
    }
    write_deltalake(
        tmp_path / "recovery_points",
        pa.Table.from_pylist([old], schema=schema),
        partition_by=["application_id"],
    )
    (before,) = table.newest()
    assert (before.undeclared_topics, before.cut_guarantee) == (None, None)
    assert (before.repeats_bound, before.commits) == (None, ())
    assert before.groups == (ConsumerGroup(APPLICATION_ID, before.group_offsets),)
    table.append(replace(point(7), undeclared_topics=(), cut_guarantee=Guarantee.EXACT))
    table.drop({})
    found = table.load(["point-5", "point-7"])
    assert [p.undeclared_topics for p in found] == [None, ()]
    assert [p.guarantee_of_cut for p in found] == [before.guarantee, Guarantee.EXACT]


def test_instants_are_in_the_order_in_which_points_count(table: RecoveryPointTable) -> None:
    for taken in (point(25), point(5), point(14, closes_window_end_ms=10)):
        table.append(taken)
    assert table.instants() == [
        PointInstant("point-5", 5, 5, took_ms=7, cluster_id="cluster"),
        PointInstant("point-14", 14, 9, took_ms=7, cluster_id="cluster"),
        PointInstant("point-25", 25, 25, took_ms=7, cluster_id="cluster"),
    ]


def test_newest_goes_by_the_time_a_point_was_taken(table: RecoveryPointTable) -> None:
    for taken in (point(25), point(5), point(35, closes_window_end_ms=10)):
        table.append(taken)
    assert [p.taken_at_ms for p in table.newest(2)] == [35, 25]
    assert [p.taken_at_ms for p in table.load(["point-25", "point-5"])] == [5, 25]


def test_a_point_stamped_in_the_future_stands_where_it_was_taken(table: RecoveryPointTable) -> None:
    year_2030 = 1_900_000_000_000
    for sequence, at_ms in ((1, 5), (2, year_2030), (3, 15), (4, 25)):
        table.append(replace(point(at_ms), sequence=sequence, sealed=True))
    assert [p.taken_at_ms for p in table.newest(3)] == [25, 15, year_2030]
    newest_sealed = table.newest_sealed()
    assert newest_sealed is not None
    assert newest_sealed.taken_at_ms == 25
    instants = effective_points(table.instants())
    assert [i.taken_at_ms for i in instants] == [5, 15, 25]


def test_points_of_an_earlier_release_come_before_numbered_ones(table: RecoveryPointTable) -> None:
    table.append_many([point(50), replace(point(15), sequence=1)])
    assert [p.taken_at_ms for p in table.newest(2)] == [15, 50]


def test_instants_say_what_keeps_a_point(table: RecoveryPointTable) -> None:
    exact = replace(point(5), guarantee=Guarantee.EXACT, sealed=True)
    table.append_many([exact, point(14, closes_window_end_ms=10), point(20)])
    found = table.instants()
    assert [(i.sealed, i.exact, i.closes_window) for i in found] == [
        (True, True, False),
        (False, False, True),
        (False, False, False),
    ]


def test_the_newest_sealed(table: RecoveryPointTable) -> None:
    table.append_many([point(5), point(15)])
    assert table.newest_sealed() is None
    sealed = replace(point(8, cut(0, 3)), sealed=True)
    table.append_many([replace(point(7), sealed=True), sealed, point(30)])
    assert table.newest_sealed() == sealed
    assert _of_eu(table).newest_sealed() is None


def test_points_that_are_dropped(table: RecoveryPointTable) -> None:
    for at in (5, 9, 7, 30):
        table.append(point(at))
    table.append(point(6, application_id="shop-eu"))
    table.drop({"point-7": 7})
    assert [i.taken_at_ms for i in table.instants()] == [5, 9, 30]
    assert [(f.rows, f.low, f.high) for f in table.files()] == [(3, 5, 30)]
    assert len(_of_eu(table).instants()) == 1


class TestAtEdges:
    """One point for each edge."""

    INSTANTS = tuple(PointInstant(f"p{at}", at, at) for at in (3, 7, 12, 20))

    def test_the_last_before_each(self) -> None:
        assert at_edges(self.INSTANTS, [10, 20, 21]) == {"p7", "p12", "p20"}
        assert at_edges(self.INSTANTS, [0, 3]) == set()
        assert at_edges([], [10]) == set()

    def test_a_point_older_than_a_late_one_is_passed_over(self) -> None:
        late = PointInstant("late", 14, 9)
        assert at_edges([*self.INSTANTS, late], [10, 20]) == {"late"}


def test_ten_thousand_points(table: RecoveryPointTable) -> None:
    """As many as a recorder takes in half a day."""
    cuts = [cut(number, 5, topic=f"topic-{number // 4}") for number in range(20)]
    table.append(point(0, *cuts))
    rows = [RecoveryPointTable.plain(point(at, *cuts)) for at in range(1, 10_000)]
    table._table.append_table(pa.Table.from_pylist(rows, schema=SCHEMA))
    with processor_time() as took:
        instants = table.instants()
        ids = at_edges(instants, range(0, 10_000, 5))
        points = table.load([f"point-{at}" for at in (17, 4000, 9999)])
    assert (len(instants), len(ids)) == (10_000, 1999)
    assert [p.taken_at_ms for p in points] == [17, 4000, 9999]
    assert took.seconds < 2

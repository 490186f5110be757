"""What restores of a warehouse wrote on a cluster, by their stored states and offset maps."""

from dataclasses import replace
from pathlib import Path

import pytest

from kstreams_assets.layout import Warehouse
from kstreams_assets.model.groups import GroupOffset
from kstreams_assets.model.restored_ranges import RestoredRanges
from kstreams_assets.model.restores import (
    PartitionProduced,
    RestoreMode,
    RestoreState,
    StoredRestore,
    StoredTopic,
)
from kstreams_assets.offsets import OffsetRange, OffsetRun, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restored_ranges import restored_onto

CLUSTER = "cluster-2"
TARGET = TopicPartitionId("eu.totals", 0)
OFFSETS = (GroupOffset("eu.orders", 0, 7, "AgAB"),)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path)


def restore(application_id: str = "shop", restore_id: str = "r1") -> StoredRestore:
    """A verified restore of two partitions, the second one without a record."""
    return StoredRestore(
        application_id=application_id,
        restore_id=restore_id,
        state=RestoreState.VERIFIED,
        changed_at_ms=2000,
        created_at_ms=1000,
        run_id="run-1",
        point_id="point-1",
        group="shop-eu",
        target_cluster_id=CLUSTER,
        target_bootstrap_servers="b1:9092",
        mode=RestoreMode.STATE,
        request="{}",
        topics=(StoredTopic("totals", "eu.totals", "id-1", (10, 0), 5),),
        to_commit=OFFSETS,
        committed=OFFSETS,
    )


def record(warehouse: Warehouse, of: StoredRestore, end: int = 15) -> None:
    """Store the restore, and its offset map."""
    produced = [
        PartitionProduced(
            source=TopicPartitionId("totals", number),
            target=TopicPartitionId("eu.totals", number),
            runs=runs,
            records=sum(run.length for run in runs),
            resumed=0,
            end=end if number == 0 else 0,
        )
        for number, runs in enumerate([(OffsetRun(400, 10, end - 10),), ()])
    ]
    repo = Repository(warehouse, of.application_id)
    repo.offset_maps.record(of.restore_id, produced)
    repo.restores.append(of)


def test_a_warehouse_without_restores_loads_nothing(warehouse: Warehouse, tmp_path: Path) -> None:
    assert restored_onto(Repository.of(warehouse, "shop"), CLUSTER) == RestoredRanges(CLUSTER)
    assert not restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    assert not list(tmp_path.iterdir())


def test_what_a_restore_wrote(warehouse: Warehouse) -> None:
    record(warehouse, restore())
    found = restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    assert found.of(TARGET, "id-1") == [OffsetRange(10, 15)]
    (one,) = found.in_partition(TARGET, "id-1")
    assert (one.application_id, one.restore_id, one.point_id) == ("shop", "r1", "point-1")
    assert one.source == TopicPartitionId("totals", 0)
    (empty,) = found.in_partition(TopicPartitionId("eu.totals", 1), "id-1")
    assert len(empty.offsets) == 0
    assert found.of(TopicPartitionId("eu.totals", 1), "id-1") == []
    assert [one.group.offsets for one in found.committed_for("shop-eu")] == [OFFSETS]
    assert found.committed_for("shop") == []


def test_another_incarnation_or_cluster_has_nothing(warehouse: Warehouse) -> None:
    record(warehouse, restore())
    found = restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    assert found.of(TARGET, "id-2") == found.of(TARGET, "id-1~4") == []
    assert not restored_onto(Repository.of(warehouse, "shop"), "cluster-1")


def test_a_restore_that_was_given_up_counts_for_nothing(warehouse: Warehouse) -> None:
    record(warehouse, replace(restore(), state=RestoreState.FINISHED, committed=None))
    assert not restored_onto(Repository.of(warehouse, "shop"), CLUSTER)


@pytest.mark.parametrize("state", list(RestoreState))
def test_only_a_target_that_matched_the_backup_counts(
    warehouse: Warehouse, state: RestoreState
) -> None:
    record(warehouse, replace(restore(), state=state))
    found = restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    assert bool(found) is state.matches_backup
    assert bool(found.of_committed_restores) is (
        state in (RestoreState.COMMITTED, RestoreState.FINISHED)
    )


def test_a_restore_counts_as_it_stands(warehouse: Warehouse) -> None:
    record(warehouse, restore())
    assert restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    Repository(warehouse, "shop").restores.change(restore(), state=RestoreState.FAILED_VERIFICATION)
    assert not restored_onto(Repository.of(warehouse, "shop"), CLUSTER)


def test_restores_of_all_applications_count(warehouse: Warehouse) -> None:
    record(warehouse, restore())
    record(warehouse, replace(restore("billing"), created_at_ms=3000), end=17)
    found = restored_onto(Repository.of(warehouse, "shop"), CLUSTER)
    assert found.of(TARGET, "id-1") == [OffsetRange(10, 17)]
    assert [one.application_id for one in found.in_partition(TARGET, "id-1")] == [
        "shop",
        "billing",
    ]


def test_previous_offsets_that_were_committed_again_count(warehouse: Warehouse) -> None:
    before = (GroupOffset("eu.orders", 0, 3, ""),)
    record(warehouse, restore())
    committed = Repository(warehouse, "shop").restores.change(
        restore(), state=RestoreState.COMMITTED, former_offsets=before, committed=OFFSETS
    )
    assert [
        o.group.offsets
        for o in restored_onto(Repository.of(warehouse, "shop"), CLUSTER).committed_for("shop-eu")
    ] == [OFFSETS]
    Repository(warehouse, "shop").restores.change(committed, state=RestoreState.ROLLED_BACK)
    assert [
        o.group.offsets
        for o in restored_onto(Repository.of(warehouse, "shop"), CLUSTER).committed_for("shop-eu")
    ] == [
        before,
        OFFSETS,
    ]

"""Deletions on a real broker: a deleted key stays deleted, whatever compaction does."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstreams_assets.app.model import TopicRole
from kstreams_assets.app.store_format import Encoding, Format, StoreFormat
from kstreams_assets.errors import KStreamsAssetsError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.kafka.connection import KafkaConnection
from kstreams_assets.ktables.run import KTableRun
from kstreams_assets.layout import Warehouse
from kstreams_assets.local.cluster import LocalCluster
from kstreams_assets.model.snapshot import Snapshot, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.offsets import CommittedOffset, TopicPartitionId
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.settings import RecoveryPointSettings
from spark_resources.resource import SparkSessionResource
from tests.backup.reading import consume
from tests.backup.writing import producer
from tests.ktables.stored_log import table_rows
from tests.repository.disk import on_disk
from tests.streams.cluster import passing_cluster, unique_name
from tests.streams.workbench import Workbench

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.usefixtures("closed_in_order"),
]

TEXT = Format(Encoding.STRING)
AGGRESSIVE = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "0",
}
LIMIT_S = 90.0


@dataclass
class Bench:
    """A workbench with one store."""

    at: Workbench
    topic: str

    def put(self, **values: str | None) -> None:
        """Write records, each in a batch of its own; None deletes."""
        sender = producer(self.at.bootstrap_servers)
        for key, value in values.items():
            sender.produce(self.topic, value and value.encode(), key=key.encode())
            assert sender.flush(20) == 0

    def snapshot(self, *windows: Window) -> list[Snapshot]:
        """Make snapshots of these windows."""
        run = KTableRun(self.at.application, self.at.warehouse, self.at.spark, unique_name("run"))
        return run.execute([self.store], windows)

    @property
    def store(self) -> TableStore:
        """The store, of texts."""
        return TableStore("store", self.topic, StoreFormat(key=TEXT, value=TEXT))

    def content(self, window: Window) -> Mapping[str, str]:
        """What the table says that the store held."""
        path = on_disk(self.at.warehouse.ktable(self.at.application_id, "store"))
        rows = table_rows(path, window.key)
        return {str(row["decoded_key"]): str(row["decoded_value"]) for row in rows}


def _bench(at: Workbench, **configs: str) -> Bench:
    """With a group at rest, so that its points are exact."""
    orders = TopicPartitionId(at.topic("orders"), 0)
    at.cluster.commit_group_offsets(at.application_id, {orders: CommittedOffset(0, "")})
    return Bench(at, at.topic("log", role=TopicRole.CHANGELOG, configs=configs))


@pytest.fixture
def bench(workbench: Workbench) -> Bench:
    """On the shared broker."""
    return _bench(workbench)


def test_windows_in_any_order(bench: Bench) -> None:
    windows = []
    for changes in ({"a": "1", "b": "1"}, {"a": None, "c": "2"}, {"b": "3"}, {"c": None}):
        bench.put(**changes)
        windows.append(bench.at.close_window())
    bench.at.back_up(*windows[:3])
    with pytest.raises(KStreamsAssetsError, match="back up window w0003"):
        bench.snapshot(*windows)
    bench.at.back_up(windows[3])
    (newest,) = bench.snapshot(windows[2])
    backfilled = bench.snapshot(windows[0], windows[1])
    (last,) = bench.snapshot(windows[3])
    assert [s.base_window for s in (newest, *backfilled, last)] == [None, None, "w0000", "w0002"]
    assert all(s.proved for s in (newest, *backfilled, last))
    assert [bench.content(window) for window in windows] == [
        {"a": "1", "b": "1"},
        {"b": "1", "c": "2"},
        {"b": "3", "c": "2"},
        {"b": "3"},
    ]


@pytest.fixture(scope="module")
def cleaning_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker whose cleaner never rests."""
    properties = {"log.cleaner.backoff.ms": "100"}
    with passing_cluster(tmp_path_factory.mktemp("cleaning"), properties=properties) as cluster:
        yield cluster


@pytest.fixture
def thinned(
    cleaning_cluster: LocalCluster,
    spark: SparkSessionResource,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    """A key put in a first window; its deletion, in the second, was gone before the backup."""
    connection = KafkaConnection(bootstrap_servers=cleaning_cluster.bootstrap_servers)
    with KafkaCluster(connection) as cluster:
        warehouse = Warehouse(tmp_path / "warehouse")
        at = Workbench(cluster, warehouse, spark, unique_name("app"))
        made = _bench(at, **AGGRESSIVE)
        made.put(a="1", b="1")
        at.back_up(at.close_window())
        made.put(a=None, c="2")
        _close(at, sealed=request.param)
        _compact_away(made, offset=2)
        at.back_up(at.windows[1])
        made.put(d="4")
        at.close_window()
        at.back_up(at.windows[2])
        yield made


def _close(at: Workbench, *, sealed: bool) -> None:
    """Close a window with a point that saves what is in danger, or one that does not."""
    settings = RecoveryPointSettings(seal_mib=1 if sealed else 0)
    point = Recorder(at.application, at.cluster, at.warehouse, settings).take()
    assert point.sealed is sealed, point.unsealed_because
    start_ms = at.windows[-1].end_ms
    at.windows.append(Window(start_ms, point.taken_at_ms + 1, f"w{len(at.windows):04d}"))


def _compact_away(bench: Bench, offset: int) -> None:
    """Write on until the log does not hold a record any more."""
    deadline = time.monotonic() + LIMIT_S
    while any(r.offset == offset for r in consume(bench.at.bootstrap_servers, bench.topic)):
        assert time.monotonic() < deadline
        bench.put(filler="x")
        time.sleep(0.3)


@pytest.mark.parametrize("thinned", [True], indirect=True, ids=["sealed"])
def test_a_deletion_that_only_a_sealed_point_saved(thinned: Bench) -> None:
    windows = thinned.at.windows
    (backfilled,) = thinned.snapshot(windows[2])
    first, second = thinned.snapshot(*windows[:2])
    assert (backfilled.base_window, first.base_window, second.base_window) == (None, None, "w0000")
    assert [s.reason for s in (first, second, backfilled) if not s.proved] == []
    from_scratch = thinned.content(windows[2])
    assert thinned.content(windows[0]) == {"a": "1", "b": "1"}
    assert thinned.content(windows[1]) == {"b": "1", "c": "2"}
    assert from_scratch == {"b": "1", "c": "2", "d": "4", "filler": "x"}
    (again,) = thinned.snapshot(windows[2])
    assert (again.base_window, thinned.content(windows[2])) == ("w0001", from_scratch)


@pytest.mark.parametrize("thinned", [False], indirect=True, ids=["not sealed"])
def test_a_deletion_that_is_lost_leaves_the_snapshots_unproved(thinned: Bench) -> None:
    snapshots = thinned.snapshot(*thinned.at.windows)
    assert [s.proved for s in snapshots] == [True, False, False]
    for snapshot in snapshots[1:]:
        assert f"{thinned.topic}-0: compaction may have removed" in snapshot.reason
        assert "the log no longer had offset 2" in snapshot.reason

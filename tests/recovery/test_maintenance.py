"""Rounds of maintenance: small tables, nothing lost, whatever happens in the middle."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kstreams_assets.app.model import TopicRole, TopicRoles
from kstreams_assets.kafka.raw_batch import RawRecord
from kstreams_assets.layout import Warehouse
from kstreams_assets.lease import warehouse_lock
from kstreams_assets.model.point import PointInstant, RecoveryPoint
from kstreams_assets.model.point_bounds import at_edges
from kstreams_assets.model.saved_records import SavedTail
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery import maintenance
from kstreams_assets.recovery.maintenance import maintain, maintain_if_due
from kstreams_assets.recovery.retention import Retention
from kstreams_assets.repository.repository import Repository
from kstreams_assets.store.folders import FolderStore
from tests.backup.samples import APPLICATION_ID, cut, point
from tests.repository.disk import on_disk
from tests.timing import processor_time

START_MS = 1_795_000_000_000 // 3_600_000 * 3_600_000
SECOND_MS, HOUR_MS = 1000, 3_600_000
RATE = 5
"""Records per point and partition."""


def hours(low_ms: int, high_ms: int) -> Iterable[int]:
    """The edges of hourly windows."""
    return range(low_ms // HOUR_MS * HOUR_MS, high_ms + 1, HOUR_MS)


DAY = Retention(keep_all_s=86_400, edges_ms=hours)
NOTHING = Retention(keep_all_s=0, edges_ms=hours)


def point_id(taken_at_ms: int) -> str:
    """As new_point_id, without its random part."""
    return f"{datetime.fromtimestamp(taken_at_ms / 1000, tz=UTC):%Y%m%dT%H%M%S}.000Z"


def sealed_point(number: int, *, every_s: int = 10, saved_from: int | None = None) -> RecoveryPoint:
    """Point `number`: a changelog whose tail since the hour's beginning is saved, and an input."""
    at_ms = START_MS + number * every_s * SECOND_MS
    of_hour = number % (3600 // every_s)
    changelog = replace(
        cut(0, (number + 1) * RATE, topic="changelog"),
        roles=TopicRoles({TopicRole.CHANGELOG}),
        saved_from=(number - of_hour) * RATE if saved_from is None else saved_from,
    )
    taken = point(at_ms, changelog, cut(0, number), point_id=point_id(at_ms))
    return replace(taken, sealed=True)


def tail_of(number: int) -> SavedTail:
    """The records that point `number` saves."""
    offsets = range(number * RATE, (number + 1) * RATE)
    records = [RawRecord(o, o, 0, b"key", b"value", ()) for o in offsets]
    return SavedTail(TopicPartitionId("changelog", 0), "life-1", records)


def store(warehouse: Warehouse, points: Iterable[RecoveryPoint]) -> None:
    """Points with the records that belong to them, one commit each."""
    for taken in points:
        number = taken.partitions[1].end
        Repository(warehouse, APPLICATION_ID).saved_records.append(taken.id, [tail_of(number)])
        Repository(warehouse, taken.application_id).points.append(taken)


def is_whole(warehouse: Warehouse, taken: RecoveryPoint) -> bool:
    """Whether every record that a point has saved is found."""
    changelog = taken.partitions[0]
    found = (
        Repository(warehouse, APPLICATION_ID).saved_records.of_point(taken)["offset"].to_pylist()
    )
    return found == list(range(changelog.saved_from or 0, changelog.end))


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """An empty warehouse."""
    return Warehouse(tmp_path)


def test_an_empty_warehouse(warehouse: Warehouse) -> None:
    result = maintain(warehouse, APPLICATION_ID, DAY)
    assert (result.points_dropped, result.records_dropped, result.finished) == (0, 0, True)
    assert not list(warehouse.root.glob("*/_delta_log"))


def test_points_and_their_records_go_together(warehouse: Warehouse) -> None:
    points = [sealed_point(number, every_s=600) for number in range(30)]
    store(warehouse, points)
    now_ms = points[-1].taken_at_ms + HOUR_MS + 1
    retention = replace(NOTHING, named=lambda: [points[8].id])
    result = maintain(warehouse, APPLICATION_ID, retention, now_ms=now_ms)
    table = Repository(warehouse, APPLICATION_ID).points
    stays = table.newest(100)[::-1]
    assert [p.id for p in stays] == [points[n].id for n in (5, 8, 11, 17, 23, 29)]
    assert (result.points_dropped, result.finished) == (24, True)
    assert all(is_whole(warehouse, taken) for taken in stays)
    assert len(table.files()) == 1
    [file] = Repository(warehouse, APPLICATION_ID).saved_records.files()
    assert file.rows == 30 * RATE
    again = maintain(warehouse, APPLICATION_ID, retention, now_ms=now_ms)
    assert (again.points_dropped, again.records_dropped, again.ranges_rewritten) == (0, 0, 0)


def test_records_that_no_stored_point_needs(warehouse: Warehouse) -> None:
    """After backups have caught up, `saved_from` is further on; the rows before it may go."""
    early = [sealed_point(number, every_s=600) for number in range(6)]
    late = sealed_point(11, every_s=600, saved_from=8 * RATE)
    store(warehouse, [*early, *(sealed_point(n, every_s=600) for n in range(6, 11)), late])
    now_ms = START_MS + 10 * HOUR_MS
    retention = Retention(0, edges_ms=lambda *_: [])
    result = maintain(warehouse, APPLICATION_ID, retention, now_ms=now_ms)
    assert [p.id for p in Repository(warehouse, APPLICATION_ID).points.newest(9)] == [late.id]
    assert (result.points_dropped, result.records_dropped) == (11, 8 * RATE)
    assert is_whole(warehouse, late)


def test_records_without_a_point_go_after_an_hour(warehouse: Warehouse) -> None:
    store(warehouse, [sealed_point(0, saved_from=0)])
    saved = Repository(warehouse, APPLICATION_ID).saved_records
    at_ms = START_MS + 10 * SECOND_MS
    saved.append(point_id(at_ms), [tail_of(70)])  # killed before its point
    saved.append(point_id(at_ms + 5 * SECOND_MS), [tail_of(71)])
    for seconds, rows in ((3599, 3 * RATE), (3602, 2 * RATE), (3606, RATE)):
        maintain(warehouse, APPLICATION_ID, DAY, now_ms=at_ms + seconds * SECOND_MS)
        assert sum(file.rows for file in saved.files()) == rows


def test_records_that_a_backup_holds_without_holes(warehouse: Warehouse) -> None:
    points = [sealed_point(number, every_s=600) for number in range(6)]
    store(warehouse, points)
    changelog = TopicPartitionId("changelog", 0)
    proven = {changelog: [("life-1", 0, 4 * RATE), ("life-0", 0, 99)]}
    retention = replace(DAY, proven=lambda: proven)
    result = maintain(warehouse, APPLICATION_ID, retention, now_ms=START_MS + 2 * HOUR_MS)
    assert (result.points_dropped, result.records_dropped) == (0, 4 * RATE)
    left = (
        Repository(warehouse, APPLICATION_ID)
        .saved_records.of_point(points[-1])["offset"]
        .to_pylist()
    )
    assert left == list(range(4 * RATE, 6 * RATE))


def test_large_files_are_looked_at_in_turn(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are rewritten only for what most of their rows are."""
    monkeypatch.setattr(maintenance, "_ENOUGH_BYTES", 1)
    monkeypatch.setattr(maintenance, "_LOOKED_AT", 2)
    points = [sealed_point(n, every_s=600, saved_from=n * RATE) for n in range(6)]
    store(warehouse, points)
    retention = Retention(0, lambda *_: [], named=lambda: [point.id for point in points[:4]])
    left = []
    for number in range(3):
        now_ms = START_MS + 9 * HOUR_MS + number * 600 * SECOND_MS
        maintain(warehouse, APPLICATION_ID, retention, now_ms=now_ms)
        left.append(len(Repository(warehouse, APPLICATION_ID).saved_records.files()))
    assert left == [6, 6, 5]
    stays = Repository(warehouse, APPLICATION_ID).points.newest(9)
    assert [p.id for p in stays] == [points[n].id for n in (5, 3, 2, 1, 0)]
    assert all(is_whole(warehouse, taken) for taken in stays)


def test_no_file_is_rewritten_when_time_is_up(warehouse: Warehouse) -> None:
    store(warehouse, [sealed_point(number, every_s=600) for number in range(3)])
    now_ms = START_MS + 9 * HOUR_MS
    result = maintain(warehouse, APPLICATION_ID, NOTHING, now_ms=now_ms, deadline_s=0)
    assert (result.points_dropped, result.ranges_rewritten, result.finished) == (0, 0, False)
    assert maintain(warehouse, APPLICATION_ID, NOTHING, now_ms=now_ms).points_dropped == 2


class TestIfDue:
    """A round at most every ten minutes, and never at the cost of a point."""

    def test_every_ten_minutes(self, warehouse: Warehouse) -> None:
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is not None
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None
        assert maintain_if_due(warehouse, "other", DAY) is not None
        [mark] = on_disk(warehouse.root).glob(f".locks/maintenance/{APPLICATION_ID}*")
        for wrong_s in (-601, 601):  # a clock that was set back does not stop it for ever
            at_s = time.time() + wrong_s
            os.utime(mark, (at_s, at_s))
            assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is not None
            assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None

    def test_a_store_whose_clock_is_another(
        self, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every point would be followed by a round."""
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is not None
        [mark] = on_disk(warehouse.root).glob(f".locks/maintenance/{APPLICATION_ID}*")
        at_s = time.time() - 3 * 3600
        os.utime(mark, (at_s, at_s))
        monkeypatch.setattr(FolderStore, "now", lambda _: time.time() - 3 * 3600)
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None

    def test_only_what_has_come_since_is_judged_again(self, warehouse: Warehouse) -> None:
        """So that a round costs the same after years."""
        asked: list[int] = []

        def edges(low_ms: int, high_ms: int) -> Iterable[int]:
            asked.append(low_ms)
            return hours(low_ms, high_ms)

        mark = on_disk(warehouse.lock_file(f"maintenance/{APPLICATION_ID}"))
        points = [sealed_point(number, every_s=600) for number in range(30)]
        store(warehouse, points)
        maintain_if_due(warehouse, APPLICATION_ID, Retention(0, edges))
        mark.write_text(str(points[17].taken_at_ms), encoding="utf-8")
        os.utime(mark, (0, 0))
        late = [sealed_point(number, every_s=600) for number in range(30, 40)]
        store(warehouse, late)
        maintain_if_due(warehouse, APPLICATION_ID, Retention(0, edges))
        assert asked == [points[0].taken_at_ms, points[17].taken_at_ms]
        found = Repository(warehouse, APPLICATION_ID).points.newest(99)[::-1]
        every = [*points, *late]
        assert [p.id for p in found] == [every[n].id for n in (5, 11, 17, 23, 29, 35, 39)]
        assert int(mark.read_text(encoding="utf-8")) > late[-1].taken_at_ms

    def test_a_file_that_cannot_be_read(
        self, warehouse: Warehouse, caplog: pytest.LogCaptureFixture
    ) -> None:
        store(warehouse, [sealed_point(number) for number in range(3)])
        for file in warehouse.control("recovery_points").glob("application_id=*/*.parquet"):
            file.write_bytes(b"not Parquet")
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None
        assert "could not be deleted" in caplog.text

    def test_a_failure_is_told_and_not_raised(
        self,
        warehouse: Warehouse,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("kstreams_assets.repository.table._LOCK_WAIT_S", 0.0)
        store(warehouse, [sealed_point(number) for number in range(3)])
        lock = warehouse.root / ".locks" / "tables" / "recovery_points.lock"
        with warehouse_lock(lock, purpose="test", wait_s=0):
            assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None
        assert "could not be deleted" in caplog.text
        assert maintain_if_due(warehouse, APPLICATION_ID, DAY) is None  # not before ten minutes


@pytest.mark.e2e
def test_three_days_of_points(warehouse: Warehouse) -> None:
    """Every ten seconds, a round each six hours: a few files, and the edges of all points."""
    table = Repository(warehouse, APPLICATION_ID).points
    saved = Repository(warehouse, APPLICATION_ID).saved_records
    every: list[RecoveryPoint] = []
    now_ms = START_MS
    for begin in range(0, 72 * 360, 6 * 360):
        points = [sealed_point(number) for number in range(begin, begin + 6 * 360)]
        records = [r for n in range(begin, begin + 6 * 360) for r in tail_of(n).records]
        whole = SavedTail(TopicPartitionId("changelog", 0), "life-1", records)
        saved.append(points[0].id, [whole])
        table.append_many(points)
        every += points
        now_ms = every[-1].taken_at_ms
        assert maintain(warehouse, APPLICATION_ID, DAY, now_ms=now_ms, deadline_s=60).finished
    kept = table.instants()
    assert len(kept) == 24 * 360 + 48
    edges = list(hours(START_MS, now_ms + HOUR_MS))
    everything = [PointInstant(p.id, p.taken_at_ms, p.taken_at_ms) for p in every]
    assert at_edges(kept, edges) == at_edges(everything, edges)
    assert len(table.files()) <= 5
    assert len(saved.files()) == 1
    with processor_time() as took:
        [newest] = table.newest()
    assert newest == every[-1]
    assert took.seconds < 0.2
    for taken in (*table.load([i.id for i in kept[:3]]), newest):
        assert is_whole(warehouse, taken)


_ROUNDS = """
import sys
from pathlib import Path
from kstreams_assets.recovery.maintenance import maintain
from kstreams_assets.recovery.retention import Retention
from kstreams_assets.layout import Warehouse
from tests.recovery.test_maintenance import APPLICATION_ID, START_MS, hours
print("ready", flush=True)
for number in range(1000):
    now_ms = START_MS + int(sys.argv[2]) + number
    maintain(Warehouse(Path(sys.argv[1])), APPLICATION_ID, Retention(0, hours), now_ms=now_ms)
"""

_OTHER = """
import sys
from pathlib import Path
from kstreams_assets.layout import Warehouse
from kstreams_assets.repository.repository import Repository
from tests.backup.samples import cut, point
table = Repository(Warehouse(Path(sys.argv[1])), "other").points
for number in range(25):
    table.append(point(number, cut(0, 1), application_id="other"))
"""


@pytest.mark.e2e
def test_a_kill_at_any_moment_loses_nothing(warehouse: Warehouse) -> None:
    """SIGKILL in the middle of rounds, while another application writes the same tables."""
    table = Repository(warehouse, APPLICATION_ID).points
    other = subprocess.Popen([sys.executable, "-c", _OTHER, str(warehouse.root)])
    stays: set[str] = set()
    for number in range(4):
        points = [sealed_point(number * 12 + n, every_s=300) for n in range(12)]
        store(warehouse, points)
        stays.add(points[-1].id)
        process = subprocess.Popen(
            [sys.executable, "-c", _ROUNDS, str(warehouse.root), str(number * HOUR_MS + HOUR_MS)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 + 0.15 * number)
        process.kill()
        process.wait(10)
        process.stdout.close()
        found = table.newest(1000)
        assert stays <= {p.id for p in found}
        assert all(is_whole(warehouse, taken) for taken in found)
    assert other.wait(60) == 0
    assert len(Repository(warehouse, "other").points.instants()) == 25
    result = maintain(warehouse, APPLICATION_ID, NOTHING, now_ms=START_MS + 9 * HOUR_MS)
    assert result.finished
    assert {p.id for p in table.newest(1000)} == stays


def test_a_reader_of_an_earlier_version_is_not_disturbed(warehouse: Warehouse) -> None:
    points = [sealed_point(number, every_s=600) for number in range(8)]
    store(warehouse, points)
    opened = DeltaTable(on_disk(warehouse.control("recovery_points")))
    for number in range(3):
        maintain(warehouse, APPLICATION_ID, NOTHING, now_ms=START_MS + (3 + number) * HOUR_MS)
    assert opened.to_pyarrow_dataset().to_table(columns=["id"]).num_rows == 8

"""What a store held of a key at any covered point; the oracle is the application's own model."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.errors import KStreamsAssetsError, StateNotCoveredError, StoredDataError
from kstreams_assets.ktables.key_rows import KeyRows
from kstreams_assets.ktables.keys import Key
from kstreams_assets.ktables.plan import plan_snapshots
from kstreams_assets.ktables.state import KeyState, state_at
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.layout import Warehouse
from kstreams_assets.model.point import RecoveryPoint
from kstreams_assets.model.spans import Window
from kstreams_assets.model.store_states import StoreState
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import snapshot_written
from kstreams_assets.repository.store_states import StoreStates
from kstreams_assets.settings import ApplicationSettings, KeepSettings
from kstreams_assets.upkeep.expire import ExpireJob
from spark_resources.resource import SparkSessionResource
from tests.ktables.replayed import Included, replay
from tests.ktables.samples import write_window
from tests.ktables.stored_log import STORE, Change, StoredLog
from tests.repository.disk import on_disk
from tests.streams.workbench import NoSpark
from tests.upkeep.simulated_app import KEYS, MORE, PARTITIONS, RATES, STATE, TABLE, SimulatedApp

KEEP = KeepSettings(all="3h", daily="3d", minimum=2)


def _app(tmp_path: Path, *, seed: int = 7, windows: int = 4) -> SimulatedApp:
    return SimulatedApp.at(Warehouse(tmp_path / "warehouse"), seed=seed, windows=windows, keep=KEEP)


def _keys(seed: int, count: int = 4) -> list[bytes]:
    return [b"customer-%d" % number for number in random.Random(seed).sample(range(KEYS), count)]


def _ask(app: SimulatedApp, point: RecoveryPoint, key: bytes) -> KeyState | None:
    return _or_none(app.settings, "totals", Key(raw=key), point)


def _or_none(
    settings: ApplicationSettings, store: str, key: Key, point: RecoveryPoint
) -> KeyState | None:
    """None where the store did not hold the key."""
    try:
        return state_at(settings, store, key, point_id=point.id)
    except KStreamsAssetsError as error:
        if "holds no key" not in str(error):
            raise
        return None


def _held(app: SimulatedApp, point: RecoveryPoint, key: bytes) -> dict[int, bytes]:
    """By partition, the value that the application's store has."""
    return {number: of_it[key] for number, of_it in app.state(point).items() if key in of_it}


def _require_all(app: SimulatedApp, points: Sequence[RecoveryPoint]) -> list[KeyState]:
    """Of each point some keys; what was found."""
    answers: list[KeyState] = []
    for number, point in enumerate(points):
        for key in _keys(number):
            found = _ask(app, point, key)
            rows = {row.partition: row.value for row in found.rows} if found else {}
            assert rows == _held(app, point, key), (point.id, key)
            answers += [found] if found else []
    assert answers
    return answers


def _snapshot(app: SimulatedApp, window: Window) -> None:
    """What Spark would write for a window, from the application's model."""
    settings = app.settings
    (store,) = [one for one in table_stores(settings) if one.store == "totals"]
    states = (
        Repository.of(settings.warehouse, settings.application.application_id)
        .reading(settings.application)
        .states([store])
    )
    (plan,) = plan_snapshots(states, [store], [window])
    rows: list[dict[str, Any]] = []
    for number in range(PARTITIONS):
        cut = plan.state.point.cut(TopicPartitionId(STATE, number))
        assert cut is not None
        last = {row.key: row for row in app.log_of(cut) if cut.holds(row.offset)}
        rows += [
            {
                "partition": number,
                "offset": row.offset,
                "timestamp_ms": row.timestamp_ms,
                **dict.fromkeys(("key", "decoded_key"), row.key),
                **dict.fromkeys(("value", "decoded_value"), row.value),
            }
            for row in last.values()
            if row.value is not None
        ]
    write_window(settings, "totals", window.key, rows, key=pa.binary(), value=pa.binary())
    promised = plan.promised(settings.application_id)
    counts = [sum(row["partition"] == number for row in rows) for number in range(PARTITIONS)]
    parts = [replace(part, rows=counts[part.partition]) for part in promised.partitions]
    written = snapshot_written(settings.warehouse.ktable("shop", "totals"), window.key)
    made = replace(promised, partitions=tuple(parts), written=written)
    Repository.open(settings).snapshots.record([made])


@pytest.mark.parametrize("seed", [1, 2])
def test_points_between_windows_and_of_an_open_one_without_a_snapshot(
    tmp_path: Path, seed: int
) -> None:
    app = _app(tmp_path, seed=seed)
    *closed, last = app.windows
    app.run(closed, points_in_window=3)
    app.follow(last, increments=3)
    assert any(cut.excluded for point in app.points for cut in point.partitions)
    found = _require_all(app, app.points)
    assert {(one.window, one.base_window) for one in found} == {(None, None)}
    assert all(one.proved for one in found)


def test_they_build_on_the_snapshot_below_them(tmp_path: Path) -> None:
    app = _app(tmp_path)
    first, second, third, last = app.windows
    app.run([first, second, third], points_in_window=3)
    app.follow(last, increments=2)
    for window in (first, third):
        _snapshot(app, window)
    found = {one.point_id: one for one in _require_all(app, app.points)}
    of_windows = [app.points[index] for index in (2, 8)]
    assert [found[point.id].window for point in of_windows] == [first.key, third.key]
    between = [found[one.id] for one in app.points[3:8] if one.id in found]
    assert {(one.window, one.base_window) for one in between} == {(None, first.key)}
    above = [found[one.id] for one in app.points[9:] if one.id in found]
    assert {one.base_window for one in above} == {third.key}


def test_after_a_fail_over_restored_records_have_their_new_offsets(tmp_path: Path) -> None:
    app = _app(tmp_path)
    first, second, third, _ = app.windows
    app.run([first, second], points_in_window=2)
    app.fail_over(app.points[2], "standby")
    app.run([third], points_in_window=2)
    _require_all(app, app.points[:3] + app.points[4:])


def test_after_expire(tmp_path: Path) -> None:
    app = _app(tmp_path, windows=12)
    app.run(app.windows)
    done = ExpireJob(app.settings, run_id="one").run()
    kept = [point for point in app.points if point.id in set(done.plan.kept)]
    assert len(kept) < len(app.points)
    _require_all(app, kept)
    gone = next(point for point in app.points if point.id not in set(done.plan.kept))
    with pytest.raises(KStreamsAssetsError, match=f"no recovery point '{gone.id}'"):
        state_at(app.settings, "totals", Key(text="customer-1"), point_id=gone.id)


def test_a_point_that_is_not_covered(tmp_path: Path) -> None:
    app = _app(tmp_path)
    app.run(app.windows[:2])
    app.produce(app.windows[2])
    point = app.take(app.windows[2].start_ms + 60_000)
    with pytest.raises(StateNotCoveredError) as caught:
        state_at(app.settings, "totals", Key(text="customer-1"), point_id=point.id)
    assert point.id in str(caught.value)
    assert "kstreams-assets backup" in str(caught.value)


def test_of_a_source_that_serves_as_changelog_only_what_was_committed(tmp_path: Path) -> None:
    app = SimulatedApp.at(
        Warehouse(tmp_path / "warehouse"), seed=3, windows=3, keep=KEEP, more=MORE
    )
    app.run(app.windows, points_in_window=2)
    found = 0
    for point in app.points:
        committed = {offset.id: offset.offset for offset in point.group_offsets}
        for topic in (TABLE, RATES):
            held: dict[int, bytes | None] = {}
            for number in range(PARTITIONS):
                cut = point.cut(TopicPartitionId(topic, number))
                assert cut is not None
                end = committed.get(cut.id, cut.end)
                for row in app.log_of(cut):
                    if cut.holds(row.offset) and row.offset < end and row.key == b"master-1":
                        held[number] = row.value
            key = Key(text="master-1")
            expected = {number: value for number, value in held.items() if value is not None}
            state = _or_none(app.settings, f"{topic} table", key, point)
            rows = state.rows if state else ()
            assert {row.partition: row.value for row in rows} == expected
            found += len(rows)
    assert found


class TestAsOf:
    """The newest covered point that was complete at a time."""

    def test_a_time_between_windows(self, tmp_path: Path) -> None:
        app = _app(tmp_path)
        app.run(app.windows[:3], points_in_window=3)
        _snapshot(app, app.windows[0])
        point, later = app.points[4], app.points[5]
        key = next(key for key in _keys(4, KEYS) if _held(app, point, key))
        for as_of_ms in (point.ended_at_ms, later.ended_at_ms - 1):
            found = state_at(app.settings, "totals", Key(raw=key), as_of_ms)
            assert (found.point_id, found.base_window) == (point.id, app.windows[0].key)
            assert {row.partition: row.value for row in found.rows} == _held(app, point, key)

    def test_points_that_are_not_covered_are_passed_over(self, tmp_path: Path) -> None:
        app = _app(tmp_path)
        app.run(app.windows[:2])
        for minute in range(30):
            app.produce(app.windows[2])
            app.take(app.windows[2].start_ms + 60_000 * minute)
        key = next(key for key in _keys(1, KEYS) if _held(app, app.points[1], key))
        now_ms = round(datetime.now(UTC).timestamp() * 1000)
        found = state_at(app.settings, "totals", Key(raw=key), now_ms)
        assert found.point_id == app.points[1].id

    def test_a_snapshot_answers_where_no_later_point_was_complete(self, tmp_path: Path) -> None:
        app = _app(tmp_path)
        app.run(app.windows[:2], points_in_window=2)
        _snapshot(app, app.windows[0])
        point = app.points[1]
        key = next(key for key in _keys(1, KEYS) if _held(app, point, key))
        found = state_at(app.settings, "totals", Key(raw=key), point.ended_at_ms)
        assert (found.point_id, found.window) == (point.id, app.windows[0].key)

    def test_before_the_first_covered_point(self, tmp_path: Path) -> None:
        app = _app(tmp_path)
        app.run(app.windows[:1])
        with pytest.raises(KStreamsAssetsError, match="recovery point that was complete then"):
            state_at(app.settings, "totals", Key(text="customer-1"), 1_000)


def test_without_point_and_time_the_newest_snapshot(tmp_path: Path) -> None:
    app = _app(tmp_path)
    app.run(app.windows[:2])
    key = next(k for k in _keys(1, KEYS) if all(_held(app, one, k) for one in app.points))
    assert state_at(app.settings, "totals", Key(raw=key)).point_id == app.points[1].id
    _snapshot(app, app.windows[0])
    assert state_at(app.settings, "totals", Key(raw=key)).window == app.windows[0].key


def test_a_changed_file_of_the_backup_gives_no_answer(tmp_path: Path) -> None:
    app = _app(tmp_path)
    app.run(app.windows[:1], points_in_window=2)
    files = on_disk(app.settings.warehouse.records("shop")).rglob(f"{STATE}-*.parquet")
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(bytes(content))
    with pytest.raises(StoredDataError, match=STATE):
        state_at(app.settings, "totals", Key(text="customer-1"), point_id=app.points[0].id)


TEXT = Format(Encoding.STRING)
FORMATS = {
    "key_value": StoreFormat(key=TEXT, value=TEXT),
    "window": StoreFormat(StoreKind.WINDOW, TEXT, TEXT, window_size_ms=10, retention_ms=40),
    "session": StoreFormat(StoreKind.SESSION, TEXT, TEXT, retention_ms=50),
    "versioned": StoreFormat(StoreKind.VERSIONED, TEXT, TEXT, retention_ms=45),
    "versioned for ever": StoreFormat(StoreKind.VERSIONED, TEXT, TEXT),
}


def _changes(rng: random.Random, kind: StoreKind, count: int) -> list[Change]:
    """Records of two partitions, with gaps as markers leave them."""
    found: list[Change] = []
    for partition in (0, 1):
        offset = 0
        for index in range(count):
            offset += rng.choice((1, 1, 2))
            at = 3 * index + rng.randrange(60)
            key = rng.choice((b"a", b"b", b"dd"))
            if kind is StoreKind.WINDOW:
                key += (at // 10 * 10).to_bytes(8, "big") + bytes(4)
            elif kind is StoreKind.SESSION:
                key += (at + rng.randrange(20)).to_bytes(8, "big") + at.to_bytes(8, "big")
            value = None if rng.random() < 0.3 else b"%d" % offset
            found.append(Change(offset, key, value, at, partition))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_store_is_the_replay(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    store = FORMATS[name]
    log = StoredLog(Warehouse(tmp_path), NoSpark(), store)
    changes = _changes(rng, store.kind, 60)
    end = max(change.offset for change in changes) + 1
    log.back_up(0, {number: (0, end) for number in (0, 1)}, changes)
    settings = log.settings
    for index in range(4):
        excluded = {0: [OffsetRange(10 + index, 13 + index)]} if index % 2 else {}
        ends = {number: end * (index + 1) // 4 for number in (0, 1)}
        point = log.point(index, ends, excluded=excluded)
        rows = [
            row
            for number, at in ends.items()
            for row in replay(Included(0, at, excluded.get(number, ())).of(changes, number), store)
        ]
        for key in ("a", "b", "dd"):
            behind = {StoreKind.WINDOW: 12, StoreKind.SESSION: 16}.get(store.kind, 0)
            expected = {
                (partition, offset, value, valid_to)
                for partition, offset, raw, value, valid_to in rows
                if raw is not None and raw[: len(raw) - behind] == key.encode()
            }
            state = _or_none(settings, STORE, Key(text=key), point)
            found = state.rows if state else ()
            assert {
                (row.partition, row.offset, row.value, row.parts.get("valid_to_ms"))
                for row in found
            } == expected


def test_records_that_were_saved_with_points(tmp_path: Path) -> None:
    """The log had lost offset 37 when the window was read; the point has saved it."""
    log = StoredLog(Warehouse(tmp_path), NoSpark(), FORMATS["key_value"])
    changes = [Change(offset, b"k%d" % (offset % 5), b"%d" % offset) for offset in range(40)]
    log.point(0, {0: 30})
    log.back_up(0, {0: (0, 30)}, changes)
    point = log.point(1, {0: 40}, saved_from={0: 35}, sealed=True)
    log.save(1, changes[35:])
    held = [one for one in changes if one.offset not in (37, 38)]
    log.back_up(1, {0: (30, 40)}, held, first_holes={0: 37})
    for number in range(5):
        key = Key(text=f"k{number}")
        found = state_at(log.settings, STORE, key, point_id=point.id)
        assert [row.decoded_value for row in found.rows] == [str(35 + number)]
        assert found.proved


def test_a_point_that_does_not_know_the_topic(tmp_path: Path) -> None:
    log = StoredLog(Warehouse(tmp_path), NoSpark(), FORMATS["key_value"])
    log.point(0, {0: 5})
    log.back_up(0, {0: (0, 5)}, [Change(1, b"a", b"1")])
    point = log.point(1, {})
    with pytest.raises(KStreamsAssetsError, match=f"no key a at recovery point {point.id}"):
        state_at(log.settings, STORE, Key(text="a"), point_id=point.id)
    found = state_at(log.settings, STORE, Key(text="a"), 10**15)
    assert (found.point_id, found.rows[0].decoded_value) == ("point-0000", "1")


@pytest.mark.spark
@pytest.mark.parametrize("name", [*FORMATS, "json"])
def test_it_is_what_the_spark_job_makes(
    name: str, tmp_path: Path, spark: SparkSessionResource
) -> None:
    """Without a base, and on the snapshot that Spark made of the window before."""
    json = Format(Encoding.JSON, "n BIGINT, text STRING")
    store = FORMATS.get(name, StoreFormat(key=TEXT, value=json))
    log = StoredLog(Warehouse(tmp_path), spark, store)
    changes = _changes(random.Random(name), store.kind, 40)
    if name == "json":
        changes = [
            replace(one, value=one.value and b'{"n": %s, "text": [1]}' % one.value)
            for one in changes
        ]
    end = max(change.offset for change in changes) + 1
    for index, (start, stop) in enumerate([(0, end // 2), (end // 2, end)]):
        log.point(index, {0: stop, 1: stop}, excluded={1: [OffsetRange(5, 8)]})
        log.back_up(index, {number: (start, stop) for number in (0, 1)}, changes)
    point = log.point(9, {0: end, 1: end}, excluded={1: [OffsetRange(5, 8)]})
    (first,) = log.snapshot(0)
    states = (
        Repository.of(log.warehouse, log.application.application_id)
        .reading(log.application)
        .states([log.store])
    )
    found = [
        [*_all_rows(states, states.at(log.store, point, snapshots))] for snapshots in ((), [first])
    ]
    log.snapshot(1)
    columns = [*found[0][0]]
    expected = [{name: row[name] for name in columns} for row in log.rows(1)]
    assert found == [expected, expected]


def _all_rows(states: StoreStates, state: StoreState) -> Iterator[dict[str, Any]]:
    """Rows of a few keys as the table has them."""
    rows = KeyRows(states, state, {})
    found = [row for key in ("a", "b", "dd") for row in rows.of(Key(text=key))]
    for row in sorted(found, key=lambda row: (row.partition, row.offset)):
        yield {
            "partition": row.partition,
            "offset": row.offset,
            "timestamp_ms": row.timestamp_ms,
            **row.parts,
            "decoded_key": row.decoded_key,
            "decoded_value": row.decoded_value,
            "decode_error": row.decode_error,
            "key": row.key,
            "value": row.value,
        }

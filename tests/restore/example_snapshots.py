"""KTable snapshots of an example, held against its interactive queries and its changelogs."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from deltalake import DeltaTable

from kstreams_assets.app.store_format import WINDOWED, Encoding, StoreFormat, StoreKind
from kstreams_assets.ktables.run import make_snapshots
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.model.spans import Window
from spark_resources.work import Spark
from tests.restore.example_queries import Rows, queried_stores
from tests.restore.example_trial import LIVE, ExampleRun, holds
from tests.streams.cluster import unique_name
from tests.streams.feed import Record

_FEW: Final = 3
_LONG: Final = 8
_SEQUENCE: Final = 4

Row = Mapping[str, Any]


class Entry(NamedTuple):
    """An entry of a store as both sides tell it; `timestamp_ms` is None where nobody says it."""

    value: Any
    timestamp_ms: int | None


def assert_snapshots_equal_queries(run: ExampleRun, spark: Spark, *, sampled: bool = False) -> None:
    """Make the snapshots of both windows; they hold what the stores held at their ends.

    At the quiet point: every entry of every queried store is a row, and the other way round. At the
    live point: what the changelog's records of that point leave behind. With `sampled` there are
    fewer snapshots: at the quiet point of stores that can be queried, at the live point of the
    others and of one store of each kind.
    """
    first, last = run.windows
    stores = {store.store: store for store in table_stores(run.settings)}
    assert set(run.answers) == set(queried_stores(run.settings)) <= set(stores)
    at_live = _sample(stores, run.answers) if sampled else set(stores)
    at_rest = set(run.answers) if sampled else set(stores)
    run_id = unique_name("ktables")
    snapshots = [
        snapshot
        for window, names in ((first, at_live), (last, at_rest))
        for snapshot in make_snapshots(
            run.settings, [window], stores=names, spark=spark, run_id=run_id
        )
    ]
    assert [s.reason for s in snapshots if not s.proved] == []
    bases = {(s.store, s.window): s.base_window for s in snapshots}
    assert bases == {(s, first): None for s in at_live} | {
        (s, last): first.key if s in at_live else None for s in at_rest
    }
    wrong: list[str] = []
    for name, store in stores.items():
        rows = {
            window: rows_of(run, name, window)
            for window, names in ((first, at_live), (last, at_rest))
            if name in names
        }
        wrong += [
            f"{name}: {row['decode_error']}"
            for of_window in rows.values()
            for row in of_window
            if row["decode_error"] is not None
        ][:_FEW]
        if first in rows:
            wrong += _against_changelog(run, store, rows[first])
        if name in run.answers:
            wrong += _against_query(run, store, rows[last])
    # Modules beside the tests get no rewritten assertions: it has to say the list itself.
    assert not wrong, "\n".join(wrong)


def _sample(stores: Mapping[str, TableStore], queried: Iterable[str]) -> set[str]:
    """The stores that cannot be queried, and one of each kind of those that can."""
    of_kind = {stores[name].format.kind: name for name in sorted(queried, reverse=True)}
    return (stores.keys() - set(queried)) | set(of_kind.values())


def rows_of(run: ExampleRun, store: str, window: Window) -> list[Row]:
    """The rows of one snapshot."""
    table = DeltaTable(str(run.settings.warehouse.ktable(run.settings.application_id, store)))
    return table.to_pyarrow_table(filters=[("window", "=", window.key)]).to_pylist()


def _against_query(run: ExampleRun, store: TableStore, rows: Iterable[Row]) -> list[str]:
    """Where rows differ from what the running application answered."""
    form = store.format
    found = {_identity_of_row(form, row): _entry_of_row(row) for row in _with_value(form, rows)}
    expected = {
        _identity(form, answer["key"], answer): Entry(
            _comparable(_unwrapped(form, answer["value"])), answer.get("timestamp")
        )
        for answer in _within_history(run, store, run.answers[store.store])
    }
    expected = {
        identity: entry
        if entry.timestamp_ms is not None
        else entry._replace(timestamp_ms=found.get(identity, entry).timestamp_ms)
        for identity, entry in expected.items()
    }
    other = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
    texts = [
        f"{store.store} {key}: row {found.get(key)}, query {expected.get(key)}"
        for key in sorted(other)[:_FEW]
    ]
    return [*texts, f"{store.store}: {len(other)} of {len(expected)} entries"] if other else []


def _within_history(run: ExampleRun, store: TableStore, answers: Rows) -> Rows:
    """Without versions that had ended before the history that the store promises.

    `RocksDBVersionedStore.get(key, time)` of Kafka Streams gives none for such a time, though it
    may be there. `MultiVersionedKeyQuery` gives whatever is there, and old versions go by segments.
    """
    history_ms = store.format.retention_ms
    if store.format.kind is not StoreKind.VERSIONED or history_ms is None:
        return answers
    stream_time: dict[int, int] = {}
    partition: dict[str, int] = {}
    for record in run.source.written[store.topic]:
        partition[(record.key or b"").decode()] = record.partition
        seen = stream_time.get(record.partition, record.timestamp_ms)
        stream_time[record.partition] = max(seen, record.timestamp_ms)
    return [
        answer
        for answer in answers
        if answer.get("to") is None
        or answer["to"] > stream_time[partition[answer["key"]]] - history_ms
    ]


def _against_changelog(run: ExampleRun, store: TableStore, rows: Iterable[Row]) -> list[str]:
    """Where rows differ from what the records of the live point leave behind."""
    point = run.source.points[LIVE[-1]]
    # Of a source topic that serves as changelog the store has what was processed.
    processed = {(o.topic, o.partition): o.offset for o in point.group_offsets}
    held = [
        r
        for r in run.source.written[store.topic]
        if holds(point, store.topic, r)
        and r.offset < processed.get((store.topic, r.partition), r.offset + 1)
    ]
    newest = {(r.partition, *_identity_of_record(store.format, r)): r for r in held}
    expected = {
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value)
        for r in newest.values()
        if r.value is not None
    }
    found = {
        (row["partition"], row["offset"], row["timestamp_ms"], row["key"], row["value"])
        for row in _with_value(store.format, rows)
    }
    missing = expected - found - _expired(store.format, held)
    return [
        *(f"{store.store}: no row for {one}" for one in sorted(missing)[:_FEW]),
        *(f"{store.store}: a row too many {one}" for one in sorted(found - expected)[:_FEW]),
        *([] if found or not expected - _expired(store.format, held) else [f"{store}: no rows"]),
    ]


def _expired(form: StoreFormat, held: list[Record]) -> set[tuple[Any, ...]]:
    """Records that a store may have passed over; of versions all but the newest of each key."""
    if form.retention_ms is None:
        return set()
    stream_time: dict[int, int] = {}
    newest: dict[tuple[int, bytes | None], int] = {}
    for record in held:
        at_ms, key = _time_of(form, record), (record.partition, record.key)
        stream_time[record.partition] = max(at_ms, stream_time.get(record.partition, at_ms))
        newest[key] = max(at_ms, newest.get(key, at_ms))
    limits = {partition: at_ms - form.retention_ms for partition, at_ms in stream_time.items()}
    versioned = form.kind is StoreKind.VERSIONED
    return {
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value)
        for r in held
        if (versioned and _time_of(form, r) < newest[r.partition, r.key])
        or (not versioned and _time_of(form, r) <= limits[r.partition])
    }


def _time_of(form: StoreFormat, record: Record) -> int:
    """What retention is counted on: window start, session end, version timestamp."""
    key = record.key or b""
    if form.kind in WINDOWED:
        return int.from_bytes(key[-_LONG - _SEQUENCE : -_SEQUENCE])
    if form.kind is StoreKind.SESSION:
        return int.from_bytes(key[-2 * _LONG : -_LONG])
    return record.timestamp_ms


def _identity_of_record(form: StoreFormat, record: Record) -> tuple[bytes | None, int]:
    """Two records of a store's log with the same identity: the later one counts."""
    return record.key, record.timestamp_ms if form.kind is StoreKind.VERSIONED else 0


def _with_value(form: StoreFormat, rows: Iterable[Row]) -> Iterable[Row]:
    """Without the rows that say from when on a key of a versioned store has no value."""
    versioned = form.kind is StoreKind.VERSIONED
    return (row for row in rows if not (versioned and row["value"] is None))


def _identity_of_row(form: StoreFormat, row: Row) -> str:
    times = {
        StoreKind.WINDOW: ("window_start_ms", "window_end_ms"),
        StoreKind.SESSION: ("session_start_ms", "session_end_ms"),
        StoreKind.VERSIONED: ("valid_from_ms", "valid_to_ms"),
    }.get(form.kind, ())
    names = ("from", "to") if form.kind is StoreKind.VERSIONED else ("start", "end")
    said = {name: row[time] for name, time in zip(names, times, strict=False)}
    return _identity(form, row["decoded_key"], said)


def _identity(form: StoreFormat, key: Any, said: Mapping[str, Any]) -> str:
    """Key and times as text."""
    names = {
        StoreKind.WINDOW: ("start", "end") if form.window_size_ms is not None else ("start",),
        StoreKind.SESSION: ("start", "end"),
        StoreKind.VERSIONED: ("from", "to"),
    }.get(form.kind, ())
    return json.dumps([_comparable(key), *(said.get(name) for name in names)], sort_keys=True)


def _entry_of_row(row: Row) -> Entry:
    return Entry(_comparable(row["decoded_value"]), row["timestamp_ms"])


def _unwrapped(form: StoreFormat, value: Any) -> Any:
    """JSON that the application itself holds as text, or as bytes (given as base64)."""
    if form.value.encoding is Encoding.JSON and isinstance(value, str):
        return json.loads(value if value.startswith("{") else base64.b64decode(value))
    return value


def _comparable(value: Any) -> Any:
    """A value as JSON has it, without the fields that are null."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {k: _comparable(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return value

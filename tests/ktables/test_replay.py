"""Random changelogs, windows in random order: each snapshot is the replay in order of offsets."""

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kstreams_assets.app.store_format import Encoding, Format, StoreFormat, StoreKind
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange
from spark_resources.resource import SparkSessionResource
from tests.ktables.replayed import Included, Row, replay
from tests.ktables.stored_log import Change, StoredLog

pytestmark = [pytest.mark.spark, pytest.mark.drill]

PARTITIONS = 6
WINDOWS = 3
_TEXT = Format(Encoding.STRING)
FORMATS = {
    "key_value": StoreFormat(key=_TEXT, value=_TEXT),
    "window": StoreFormat(StoreKind.WINDOW, _TEXT, _TEXT, window_size_ms=10, retention_ms=40),
    "session": StoreFormat(StoreKind.SESSION, _TEXT, _TEXT, retention_ms=50),
    "versioned": StoreFormat(StoreKind.VERSIONED, _TEXT, _TEXT, retention_ms=45),
}


@dataclass(frozen=True)
class Life:
    """One life of the topic: its records, and what of them belongs to each window's point."""

    topic_id: str
    windows: tuple[int, ...]
    changes: tuple[Change, ...]
    included: Mapping[tuple[int, int], Included]
    """By window and partition."""


def _lives(rng: random.Random, store: StoreFormat) -> list[Life]:
    if rng.random() < 0.3:
        return [_life(rng, store, "life-1", (0,)), _life(rng, store, "life-2", (1, 2))]
    return [_life(rng, store, "life-1", tuple(range(WINDOWS)))]


def _life(rng: random.Random, store: StoreFormat, topic_id: str, windows: tuple[int, ...]) -> Life:
    changes: list[Change] = []
    included: dict[tuple[int, int], Included] = {}
    for partition in range(PARTITIONS):
        offset, still_open, log_start = 0, [], 0
        for window in windows:
            start = offset
            for _ in range(rng.randrange(14)):
                offset += rng.choice((1, 1, 1, 2, 4))  # markers, compacted records
                changes.append(_change(rng, store.kind, window, partition, offset))
            offset += 1
            excluded = [bad for bad in still_open if rng.random() < 0.4]
            if rng.random() < 0.5 and offset - start > 3:
                first = rng.randrange(start, offset - 1)
                excluded.append(OffsetRange(first, rng.randrange(first + 1, offset)))
            if store.retention_ms is None and rng.random() < 0.2:
                log_start = rng.randrange(log_start, offset)
            inside = [
                OffsetRange(max(bad.start, log_start), bad.end)
                for bad in sorted(excluded)
                if bad.end > log_start
            ]
            included[window, partition] = Included(log_start, offset, inside)
            still_open = inside
    return Life(topic_id, windows, tuple(changes), included)


def _change(
    rng: random.Random, kind: StoreKind, window: int, partition: int, offset: int
) -> Change:
    at = 30 * window + rng.randrange(60)
    key: bytes | None = rng.choice((b"a", b"b", b"c", b"dd"))
    if kind is StoreKind.WINDOW:
        key += (at // 10 * 10).to_bytes(8, "big") + bytes(4)
    elif kind is StoreKind.SESSION:
        key += (at + rng.randrange(20)).to_bytes(8, "big") + at.to_bytes(8, "big")
    if rng.random() < 0.06:
        key = rng.choice((None, b"short")) if kind is not StoreKind.VERSIONED else None
    value = None if rng.random() < 0.3 else b"%d" % offset
    timestamp_ms = at if kind is StoreKind.VERSIONED else 1_000 + at
    return Change(offset, key, value, timestamp_ms, partition)


def _back_up(log: StoredLog, life: Life) -> None:
    before = dict.fromkeys(range(PARTITIONS), 0)
    for window in life.windows:
        of_window = {number: life.included[window, number] for number in range(PARTITIONS)}
        log.point(
            window,
            {number: found.end for number, found in of_window.items()},
            excluded={number: found.excluded for number, found in of_window.items()},
            log_starts={number: found.log_start for number, found in of_window.items()},
            topic_id=life.topic_id,
        )
        spans = {number: (before[number], found.end) for number, found in of_window.items()}
        log.back_up(
            window,
            spans,
            life.changes,
            topic_id=life.topic_id,
            continues=window != life.windows[0],
        )
        before = {number: end for number, (_, end) in spans.items()}


def _found(log: StoredLog, window: int) -> list[Row]:
    return [
        (row["partition"], row["offset"], row["key"], row["value"], row.get("valid_to_ms"))
        for row in log.rows(window)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_snapshot_is_the_replay(name: str, spark: SparkSessionResource) -> None:
    @settings(
        max_examples=2,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        store = FORMATS[name]
        if store.kind is StoreKind.VERSIONED and rng.random() < 0.4:
            store = replace(store, retention_ms=None)
        lives = _lives(rng, store)
        with tempfile.TemporaryDirectory() as folder:
            log = StoredLog(Warehouse(Path(folder)), spark, store)
            for life in lives:
                _back_up(log, life)
            order = rng.sample(range(WINDOWS), WINDOWS)
            for window in order:
                log.snapshot(window)
            for life in lives:
                for window in life.windows:
                    expected = [
                        row
                        for number in range(PARTITIONS)
                        for row in replay(
                            life.included[window, number].of(life.changes, number), store
                        )
                    ]
                    assert _found(log, window) == expected, (seed, order, window)

    check()


def test_the_edge_of_the_history_retention(tmp_path: Path, spark: SparkSessionResource) -> None:
    """A version as old as the retention is still taken; what ended so long ago has gone."""
    log = StoredLog(Warehouse(tmp_path), spark, FORMATS["versioned"])
    times = [(b"a", 100), (b"a", 55), (b"a", 54), (b"b", 30), (b"c", 56)]
    changes = [Change(offset, key, b"v", at) for offset, (key, at) in enumerate(times)]
    ended = [Change(5, b"c", b"w", 57), Change(6, b"c", None, 58), Change(7, b"d", b"v", 103)]
    log.point(0, {0: 5})
    log.back_up(0, {0: (0, 5)}, changes)
    log.point(1, {0: 8})
    log.back_up(1, {0: (5, 8)}, ended)
    log.snapshot(0, 1)
    found = [[(offset, valid_to) for _, offset, _, _, valid_to in _found(log, w)] for w in (0, 1)]
    assert found == [[(0, None), (1, 100), (4, None)], [(0, None), (1, 100), (7, None)]]

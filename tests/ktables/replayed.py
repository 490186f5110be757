"""What a store holds after a changelog was replayed record by record: the oracle of snapshots."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kstreams_assets.app.store_format import StoreFormat, StoreKind
from kstreams_assets.offsets import OffsetRange
from tests.ktables.stored_log import Change

Row = tuple[int, int, bytes | None, bytes | None, int | None]
"""Partition, offset, key, value, until when it is valid (versioned stores)."""


@dataclass(frozen=True)
class Included:
    """The records of one partition that belong to a point."""

    log_start: int
    end: int
    excluded: Sequence[OffsetRange] = ()

    def of(self, changes: Iterable[Change], partition: int) -> list[Change]:
        """Those of these records, in order of offsets."""
        return sorted(
            (
                change
                for change in changes
                if change.partition == partition
                and self.log_start <= change.offset < self.end
                and not any(bad.start <= change.offset < bad.end for bad in self.excluded)
            ),
            key=lambda change: change.offset,
        )


def replay(changes: Sequence[Change], store: StoreFormat) -> list[Row]:
    """The rows that the records of one partition, in order of offsets, leave behind."""
    if store.kind is StoreKind.VERSIONED:
        return _versions(changes, store.retention_ms)
    newest: dict[bytes | None, Change] = {}
    stream_time: int | None = None
    for change in changes:
        newest[change.key] = change
        at = _time(change.key, store.kind)
        if at is not None:
            stream_time = at if stream_time is None else max(stream_time, at)
    rows = []
    for key, change in newest.items():
        at = _time(key, store.kind)
        expired = (
            at is not None
            and store.retention_ms is not None
            and stream_time is not None
            and at <= stream_time - store.retention_ms
        )
        if not expired and (change.value is not None or key is None):
            rows.append((change.partition, change.offset, key, change.value, None))
    return sorted(rows, key=lambda row: row[:2])


def _time(key: bytes | None, kind: StoreKind) -> int | None:
    """Begin of a window, end of a session."""
    if key is None or kind not in (StoreKind.WINDOW, StoreKind.SESSION):
        return None
    suffix = 12 if kind is StoreKind.WINDOW else 16
    if len(key) < suffix:
        return None
    start = len(key) - suffix
    return int.from_bytes(key[start : start + 8], "big", signed=True)


def _versions(changes: Sequence[Change], retention_ms: int | None) -> list[Row]:
    versions: dict[bytes, dict[int, Change]] = {}
    keyless: Change | None = None
    stream_time: int | None = None
    for change in changes:
        late = (
            retention_ms is not None
            and stream_time is not None
            and change.timestamp_ms < stream_time - retention_ms
        )
        if not late:
            if change.key is None:
                keyless = change
            else:
                versions.setdefault(change.key, {})[change.timestamp_ms] = change
        stream_time = max(change.timestamp_ms, stream_time or change.timestamp_ms)
    horizon = None
    if retention_ms is not None and stream_time is not None:
        horizon = stream_time - retention_ms
    rows = [] if keyless is None else [_row(keyless, None)]
    for of_key in versions.values():
        begins = sorted(of_key)
        for begin, valid_to in zip(begins, [*begins[1:], None], strict=True):
            if horizon is not None:
                deletion = of_key[begin].value is None
                past = begin <= horizon and deletion if valid_to is None else valid_to <= horizon
                if past:
                    continue
            rows.append(_row(of_key[begin], valid_to))
    return sorted(rows, key=lambda row: row[:2])


def _row(change: Change, valid_to: int | None) -> Row:
    return (change.partition, change.offset, change.key, change.value, valid_to)

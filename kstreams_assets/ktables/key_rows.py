"""Rows of one key in the state of a store, read and decoded in this process: no JVM.

The rows are those that the Spark job of a snapshot (`spark_resources.ktable_rows`) would choose.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kstreams_assets.app.store_columns import KEY_PARTS, as_text
from kstreams_assets.app.store_format import WINDOWED, StoreFormat, StoreKind
from kstreams_assets.ktables.decoding import Schemas, decode_keys, decode_rows
from kstreams_assets.ktables.keys import Key, KeyMatch, StateRow, in_order
from kstreams_assets.model.data_files import SpanFile, renumbered
from kstreams_assets.model.store_states import StoreState, base_ranges
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.repository.store_states import StoreStates
from kstreams_assets.store import store_at
from kstreams_assets.store.failures import storage_failures

_NARROW: Final = ["partition", "offset", "timestamp_ms", "key"]
_PAYLOAD: Final = ["partition", "offset", "headers", "value"]
_BATCH: Final = 65_536
_TIME_BEHIND: Final[Mapping[StoreKind, int]] = {
    **dict.fromkeys(WINDOWED, 12),
    StoreKind.SESSION: 16,
}
"""How far before the end of a key the eight bytes begin on which retention is counted: a window's
start, a session's end."""
_FEW: Final = 3
_MOST_LISTED: Final = 200_000
"""Of so many records at most, keys are listed where one is not found."""

Ranges = Mapping[int, Sequence[OffsetRange]]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows that count: those of `file`, or saved `rows`, inside of `ranges` (None: all)."""

    ranges: Ranges | None
    file: SpanFile | None = None
    rows: pa.Table | None = None
    in_base: bool = False

    def batches(self, columns: list[str]) -> Iterator[pa.Table]:
        """The rows in order of the file."""
        if self.rows is not None:
            yield self._inside(self.rows.select(columns))
        if self.file is None:
            return
        place = store_at(self.file.path).readable()
        with (
            storage_failures(self.file.path),
            pq.ParquetFile(place, page_checksum_verification=True) as parquet,
        ):
            for batch in parquet.iter_batches(_BATCH, columns=columns):
                rows = pa.Table.from_batches([batch]).select(columns)
                yield self._inside(renumbered(rows, self.file.runs))

    def _inside(self, rows: pa.Table) -> pa.Table:
        if self.ranges is None or rows.num_rows == 0:
            return rows
        numbers, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        inside = np.zeros(rows.num_rows, np.bool_)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            inside[mine] = RangeSet(self.ranges.get(number, ())).mask(offsets[mine])
        return rows.filter(pa.array(inside))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A record or a row of the base; `order` is higher for a later record of its partition."""

    source: int
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    order: int
    valid_to_ms: int | None = None
    is_past: bool = False


class KeyRows:
    """Reads rows of a state; its files have been compared with their digests before.

    `schemas` are those of Avro and Protobuf records, by id.
    """

    def __init__(self, states: StoreStates, state: StoreState, schemas: Schemas) -> None:
        self._state, self._schemas = state, schemas
        self._format: StoreFormat = state.store.format
        self._sources = [*_sources(states, state)]
        base = state.base.partitions if state.base else ()
        self._times = {
            part.partition: part.stream_time_ms for part in base if part.stream_time_ms is not None
        }

    def of(self, key: Key) -> tuple[StateRow, ...]:
        """The rows of a key, in order of window, session or validity.

        Raises:
            KStreamsAssetsError: The text is no key of the store's type.
        """
        chosen = self._chosen(KeyMatch(key, self._format, self._schemas))
        found = self._rows(chosen)
        if key.raw is None:  # a key that does not decode has no text
            found = [row for row in found if row.decoded_key is not None]
        return in_order(found)

    def some_keys(self) -> list[str]:
        """A few keys as they are written in `--key`; none where it takes long to find some."""
        base = self._state.base.rows if self._state.base else 0
        if self._state.records + base > _MOST_LISTED:
            return []
        few = self._chosen(None)[:_FEW]
        keys = decode_keys([row.place.key for row in few], self._format, self._schemas)
        return [as_text(key) for key in keys.to_pylist() if key is not None]

    def _chosen(self, match: KeyMatch | None) -> list["_Row"]:
        """The rows that are kept, without those that were deleted."""
        candidates, times = self._candidates(match)
        if self._format.kind is StoreKind.VERSIONED:
            chosen = _versions(candidates, times, self._format.retention_ms)
        else:
            chosen = self._alive(_newest(candidates), times)
        return [row for row in self._with_payloads(chosen) if self._stays(row)]

    def _stays(self, row: "_Row") -> bool:
        if row.value is not None or row.place.key is None:
            return True
        return self._format.kind is StoreKind.VERSIONED and not row.place.is_past

    def _candidates(self, match: KeyMatch | None) -> tuple[list[_Candidate], dict[int, int]]:
        """What may be kept of a key, and by partition the time on which retention is counted.

        That time depends on the records of all keys.
        """
        clocks, found = _Clocks(self._format, self._times), list[_Candidate]()
        for number, source in enumerate(self._sources):
            for rows in source.batches(_NARROW):
                if not source.in_base:
                    clocks.see(rows)
                mine = rows if match is None else rows.filter(match.mask(rows["key"]))
                found += _candidates_in(mine, number, saved=source.rows is not None)
        taken = [one for one in found if self._sources[one.source].in_base or clocks.takes(one)]
        return taken, clocks.latest

    def _alive(self, rows: Sequence[_Candidate], times: Mapping[int, int]) -> list[_Candidate]:
        """Windows that begin, or sessions that end, after stream time - retention."""
        behind, retention_ms = _TIME_BEHIND.get(self._format.kind), self._format.retention_ms
        if behind is None or retention_ms is None:
            return [*rows]
        return [
            one
            for one in rows
            if (at := _time_in(one.key, behind)) is None
            or one.partition not in times
            or at > times[one.partition] - retention_ms
        ]

    def _with_payloads(self, chosen: Sequence[_Candidate]) -> Iterator["_Row"]:
        """The rows with their headers and values; only files that hold some of them are read."""
        by_source: dict[int, dict[tuple[int, int], _Candidate]] = {}
        for one in chosen:
            by_source.setdefault(one.source, {})[one.partition, one.offset] = one
        for number, places in by_source.items():
            offsets = pa.array(sorted({offset for _, offset in places}), pa.int64())
            for rows in self._sources[number].batches(_PAYLOAD):
                near = rows.filter(pc.field("offset").isin(offsets)).to_pydict()
                for partition, offset, headers, value in zip(*near.values(), strict=True):
                    place = places.get((partition, offset))
                    if place is not None:
                        pairs = tuple((one["key"], one["value"]) for one in headers or ())
                        yield _Row(place, pairs, value)

    def _rows(self, chosen: Sequence["_Row"]) -> list[StateRow]:
        decoded = decode_rows(
            [row.place.key for row in chosen],
            [row.value for row in chosen],
            [row.headers for row in chosen],
            self._format,
            self._schemas,
        )
        names = [name for name, _, _ in KEY_PARTS.get(self._format.kind, ())]
        columns = zip(
            chosen,
            decoded.keys.to_pylist(),
            decoded.values.to_pylist(),
            decoded.errors,
            strict=True,
        )
        found: list[StateRow] = []
        for at, (row, key, value, error) in enumerate(columns):
            place = row.place
            known = {name: of_it[at] for name, of_it in decoded.parts.items()}
            known |= {"valid_from_ms": place.timestamp_ms, "valid_to_ms": place.valid_to_ms}
            found.append(
                StateRow(
                    partition=place.partition,
                    offset=place.offset,
                    timestamp_ms=place.timestamp_ms,
                    parts={name: known[name] for name in names},
                    decoded_key=key,
                    decoded_value=value,
                    decode_error=error,
                    key=place.key,
                    value=row.value,
                    headers=row.headers,
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that is kept, whole."""

    place: _Candidate
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None


def _sources(states: StoreStates, state: StoreState) -> Iterator[_Source]:
    if state.base is not None:
        kept = base_ranges(state, state.base)
        for file in states.snapshots.files(state.base):
            yield _Source(kept, file, in_base=True)
    for part in state.partitions:
        for file in part.files:
            yield _Source({part.cut.partition: part.ranges}, file)
    saved = states.saved(state.point, state.partitions)
    if saved.num_rows:
        yield _Source(None, rows=saved)


def _candidates_in(rows: pa.Table, source: int, *, saved: bool) -> Iterator[_Candidate]:
    for partition, offset, timestamp_ms, key in zip(
        *rows.select(_NARROW).to_pydict().values(), strict=True
    ):
        # A record that comes twice, from a backup and from saved records, counts as the backup's.
        order = 2 * offset + (0 if saved else 1)
        yield _Candidate(source, partition, offset, timestamp_ms, key, order)


def _newest(rows: Sequence[_Candidate]) -> list[_Candidate]:
    """The last record of each key."""
    newest: dict[tuple[int, bytes | None], _Candidate] = {}
    for one in rows:
        known = newest.get((one.partition, one.key))
        if known is None or one.order > known.order:
            newest[one.partition, one.key] = one
    return [*newest.values()]


def _versions(
    rows: Sequence[_Candidate], times: Mapping[int, int], retention_ms: int | None
) -> list[_Candidate]:
    """One record for each time at which a version of a key begins.

    A deletion stays as long as a late version may come before it.
    """
    newest: dict[tuple[int, bytes | None], dict[int | None, _Candidate]] = {}
    for one in rows:
        of_key = newest.setdefault((one.partition, one.key), {})
        begins = None if one.key is None else one.timestamp_ms  # without a key just the last one
        known = of_key.get(begins)
        if known is None or one.order > known.order:
            of_key[begins] = one
    found: list[_Candidate] = []
    for (partition, _), of_key in newest.items():
        ordered = sorted(of_key.values(), key=lambda one: one.timestamp_ms)
        horizon = None
        if retention_ms is not None and partition in times:
            horizon = times[partition] - retention_ms
        ends_of = [*(after.timestamp_ms for after in ordered[1:]), None]
        for one, ends in zip(ordered, ends_of, strict=True):
            if horizon is not None and ends is not None and ends <= horizon:
                continue
            is_past = horizon is not None and ends is None and one.timestamp_ms <= horizon
            found.append(replace(one, valid_to_ms=ends, is_past=is_past and one.key is not None))
    return found


def _time_in(key: bytes | None, behind: int) -> int | None:
    if key is None or len(key) < behind:
        return None
    return int.from_bytes(key[len(key) - behind :][:8], "big", signed=True)


class _Clocks:
    """By partition, the time that the records of all keys have reached: retention is counted on it.

    Of windows and sessions it is that of their keys, of versions that of the records. A version
    that comes later than the history retention allows is not taken: for that the order of all
    records counts.
    """

    def __init__(self, store: StoreFormat, before: Mapping[int, int]) -> None:
        self._retention_ms, self._before = store.retention_ms, before
        self._behind = _TIME_BEHIND.get(store.kind)
        self._is_versioned = store.kind is StoreKind.VERSIONED
        self._seen: dict[int, list[tuple[_Numbers, _Numbers]]] = {}
        self._ordered: dict[int, tuple[_Numbers, _Numbers]] = {}
        self.latest: dict[int, int] = dict(before)

    def see(self, rows: pa.Table) -> None:
        """Records of all keys, in any order; all of them before the first question."""
        if self._retention_ms is None or not (self._is_versioned or self._behind):
            return
        numbers = rows["partition"].to_numpy()
        for number in np.unique(numbers).tolist():
            mine = rows.filter(pa.array(numbers == number))
            times = mine["timestamp_ms"].to_numpy()
            if self._behind is not None:
                times = _times_in(mine["key"], self._behind)
            else:
                self._seen.setdefault(number, []).append((mine["offset"].to_numpy(), times))
            if len(times):
                highest = int(times.max())
                self.latest[number] = max(highest, self.latest.get(number, highest))

    def takes(self, one: _Candidate) -> bool:
        """Whether a record is not too late for a versioned store."""
        if not self._is_versioned or self._retention_ms is None:
            return True
        offsets, highest = self._order(one.partition)
        at = int(np.searchsorted(offsets, one.offset))
        before = [int(highest[at - 1])] if at else []
        if one.partition in self._before:
            before.append(self._before[one.partition])
        return not before or one.timestamp_ms >= max(before) - self._retention_ms

    def _order(self, number: int) -> tuple[_Numbers, _Numbers]:
        """Offsets of a partition in order, and the highest time up to each."""
        if number not in self._ordered:
            offsets, times = (
                np.concatenate(of_all) for of_all in zip(*self._seen[number], strict=True)
            )
            order = np.argsort(offsets, kind="stable")
            self._ordered[number] = offsets[order], np.maximum.accumulate(times[order])
        return self._ordered[number]


def _times_in(keys: pa.ChunkedArray, behind: int) -> _Numbers:
    """The times in keys; those that are too short have none."""
    long_enough = (key for key in keys.to_pylist() if key is not None and len(key) >= behind)
    found = b"".join(key[len(key) - behind :][:8] for key in long_enough)
    return np.frombuffer(found, ">i8").astype(np.int64)

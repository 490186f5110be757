"""Rows of one key in the state of a store, read and decoded in this process, without a JVM.

The Spark job of a snapshot (`spark_resources.ktable_rows`) selects the same rows.
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
"""Distance from the end of a key to the eight bytes of the time that retention uses: the start of a
window, the end of a session."""
_FEW: Final = 3
_MOST_LISTED: Final = 200_000
"""Maximum number of records in a store of which example keys are listed for a missing key."""

Ranges = Mapping[int, Sequence[OffsetRange]]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows to read: those of `file`, or saved `rows`, inside `ranges` (None: all)."""

    ranges: Ranges | None
    file: SpanFile | None = None
    rows: pa.Table | None = None
    in_base: bool = False

    def batches(self, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the rows in the order of the file."""
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
    """Reads rows of a state whose files were already compared with their digests.

    `schemas` are the schemas of Avro and Protobuf records, by id.
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
        """Return the rows of a key, sorted by window, session or validity.

        Raises:
            KStreamsAssetsError: The text is not a valid key of this store.
        """
        chosen = self._chosen(KeyMatch(key, self._format, self._schemas))
        found = self._rows(chosen)
        if key.raw is None:  # a key that does not decode has no text
            found = [row for row in found if row.decoded_key is not None]
        return in_order(found)

    def some_keys(self) -> list[str]:
        """Return a few keys in the form of `--key`; none if the store is too large to search."""
        base = self._state.base.rows if self._state.base else 0
        if self._state.records + base > _MOST_LISTED:
            return []
        few = self._chosen(None)[:_FEW]
        keys = decode_keys([row.place.key for row in few], self._format, self._schemas)
        return [as_text(key) for key in keys.to_pylist() if key is not None]

    def _chosen(self, match: KeyMatch | None) -> list["_Row"]:
        """Return the present rows, without deleted ones."""
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
        """Return candidate rows of a key, and the stream time of each partition for retention.

        The stream time depends on the records of all keys.
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
        """Return the windows that start, or sessions that end, after stream time - retention."""
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
        """Yield the rows with headers and values; only files with such rows are read."""
        by_source: dict[int, dict[tuple[int, int], _Candidate]] = {}
        for one in chosen:
            by_source.setdefault(one.source, {})[one.partition, one.offset] = one
        for number, places in by_source.items():
            offsets = pa.array(sorted({offset for _, offset in places}), pa.int64())
            for rows in self._sources[number].batches(_PAYLOAD):
                matching = rows.filter(pc.field("offset").isin(offsets)).to_pydict()
                for partition, offset, headers, value in zip(*matching.values(), strict=True):
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
    """A present row with headers and value."""

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
        # The backup takes precedence for a record that saved records contain as well.
        order = 2 * offset + (0 if saved else 1)
        yield _Candidate(source, partition, offset, timestamp_ms, key, order)


def _newest(rows: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the last record of each key."""
    newest: dict[tuple[int, bytes | None], _Candidate] = {}
    for one in rows:
        known = newest.get((one.partition, one.key))
        if known is None or one.order > known.order:
            newest[one.partition, one.key] = one
    return [*newest.values()]


def _versions(
    rows: Sequence[_Candidate], times: Mapping[int, int], retention_ms: int | None
) -> list[_Candidate]:
    """Return one record for each start time of a version of a key.

    A tombstone is kept while a late version can precede it.
    """
    newest: dict[tuple[int, bytes | None], dict[int | None, _Candidate]] = {}
    for one in rows:
        of_key = newest.setdefault((one.partition, one.key), {})
        starts = None if one.key is None else one.timestamp_ms  # without a key just the last one
        known = of_key.get(starts)
        if known is None or one.order > known.order:
            of_key[starts] = one
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
    """The stream time of each partition, from the records of all keys; retention depends on it.

    For windows and sessions it is the maximum time in the keys, for versions that of the records. A
    version older than the history retention at its position in the log is ignored.
    """

    def __init__(self, store: StoreFormat, before: Mapping[int, int]) -> None:
        self._retention_ms, self._before = store.retention_ms, before
        self._behind = _TIME_BEHIND.get(store.kind)
        self._is_versioned = store.kind is StoreKind.VERSIONED
        self._seen: dict[int, list[tuple[_Numbers, _Numbers]]] = {}
        self._ordered: dict[int, tuple[_Numbers, _Numbers]] = {}
        self.latest: dict[int, int] = dict(before)

    def see(self, rows: pa.Table) -> None:
        """Add records of all keys, in any order, before the first call of `takes`."""
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
        """Whether a versioned store accepts the record; others accept all."""
        if not self._is_versioned or self._retention_ms is None:
            return True
        offsets, highest = self._order(one.partition)
        at = int(np.searchsorted(offsets, one.offset))
        before = [int(highest[at - 1])] if at else []
        if one.partition in self._before:
            before.append(self._before[one.partition])
        return not before or one.timestamp_ms >= max(before) - self._retention_ms

    def _order(self, number: int) -> tuple[_Numbers, _Numbers]:
        """Return sorted offsets of a partition, and the highest time up to each."""
        if number not in self._ordered:
            offsets, times = (
                np.concatenate(of_all) for of_all in zip(*self._seen[number], strict=True)
            )
            order = np.argsort(offsets, kind="stable")
            self._ordered[number] = offsets[order], np.maximum.accumulate(times[order])
        return self._ordered[number]


def _times_in(keys: pa.ChunkedArray, behind: int) -> _Numbers:
    """Return the times in keys; too short keys have none."""
    long_enough = (key for key in keys.to_pylist() if key is not None and len(key) >= behind)
    found = b"".join(key[len(key) - behind :][:8] for key in long_enough)
    return np.frombuffer(found, ">i8").astype(np.int64)

"""Sets of offsets per partition and life of its topic, by the column: millions of rows at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kstreams_assets.app.model import TopicRole
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.recovery.point import PartitionCut

_Offsets = npt.NDArray[np.int64]
_Key = tuple[str, str, int]
"""Topic, topic id, partition."""


class ProvenRange(NamedTuple):
    """Offsets of one life of a topic that a backup holds without a hole."""

    topic_id: str
    start: int
    end: int


class OffsetRanges:
    """Offsets by partition and topic id, as ranges."""

    def __init__(self, ranges: Iterable[tuple[_Key, _Offsets, _Offsets]] = ()) -> None:
        self._by_key = {key: _merged(starts, ends) for key, starts, ends in ranges}

    @classmethod
    def of_cuts(cls, cuts: Iterable[PartitionCut]) -> "OffsetRanges":
        """What these cuts have saved: `[saved_from, end)` outside the excluded ranges."""
        found: list[tuple[_Key, _Offsets, _Offsets]] = []
        for cut in cuts:
            if cut.saved_from is None:
                continue
            starts = np.array([cut.saved_from, *(bad.end for bad in cut.excluded)], np.int64)
            ends = np.array([*(bad.start for bad in cut.excluded), cut.end], np.int64)
            key = (cut.topic, cut.topic_id, cut.partition)
            pieces = np.maximum(starts, cut.saved_from), np.minimum(ends, cut.end)
            found.append((key, *pieces))
        return cls(_by_key(found))

    @classmethod
    def of_points(
        cls,
        partitions: pa.ChunkedArray,
        proven: Mapping[TopicPartitionId, Sequence[tuple[str, int, int]]] | None = None,
    ) -> "OffsetRanges":
        """What many points have saved, from the column `partitions` of their table.

        Changelog offsets in `proven` (topic id, start, end) are left out.
        """
        if len(partitions) == 0:
            return cls()
        cuts = pa.Table.from_struct_array(partitions.combine_chunks().flatten())
        cuts = cuts.filter(pc.field("saved_from").is_valid()).combine_chunks()
        if cuts.num_rows == 0:
            return cls()
        rows, starts, ends = _pieces(cuts)
        keys, codes = _codes(cuts)
        provable = _may_be_proven(cuts)
        found: list[tuple[_Key, _Offsets, _Offsets]] = []
        for code, mine in _groups(codes[rows] * 2 + provable[rows]):
            key = keys[code // 2]
            pieces = _merged(starts[mine], ends[mine])
            if code % 2:
                known = (proven or {}).get(TopicPartitionId(key[0], key[2]), ())
                pieces = _minus(pieces, [(s, e) for life, s, e in known if life == key[1]])
            found.append((key, *pieces))
        return cls(_by_key(found))

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows (columns topic, topic_id, partition, offset) lie in the ranges."""
        inside = np.zeros(rows.num_rows, np.bool_)
        if rows.num_rows == 0 or not self._by_key:
            return inside
        keys, codes = _codes(rows)
        offsets = rows["offset"].to_numpy()
        for code, mine in _groups(codes):
            starts, ends = self._by_key.get(keys[code], (_NONE, _NONE))
            inside[mine] = within(offsets[mine], starts, ends)
        return inside


_NONE: _Offsets = np.empty(0, np.int64)


def within_ranges(offsets: _Offsets, ranges: Sequence[OffsetRange]) -> npt.NDArray[np.bool_]:
    """Which offsets lie in ranges that are disjoint and in order."""
    starts = np.array([one.start for one in ranges], np.int64)
    return within(offsets, starts, np.array([one.end for one in ranges], np.int64))


def within(offsets: _Offsets, starts: _Offsets, ends: _Offsets) -> npt.NDArray[np.bool_]:
    """The same, of ranges by their starts and ends."""
    if not len(starts):
        return np.zeros(len(offsets), np.bool_)
    index = np.searchsorted(starts, offsets, side="right") - 1
    return (index >= 0) & (offsets < ends[index])


def _merged(starts: _Offsets, ends: _Offsets) -> tuple[_Offsets, _Offsets]:
    """The same offsets as disjoint ranges in order."""
    real = starts < ends
    order = np.argsort(starts[real], kind="stable")
    starts, ends = starts[real][order], np.maximum.accumulate(ends[real][order])
    if len(starts) == 0:
        return _NONE, _NONE
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], ends[last]


def _minus(
    ranges: tuple[_Offsets, _Offsets], taken: Sequence[tuple[int, int]]
) -> tuple[_Offsets, _Offsets]:
    """The offsets of `ranges` that are not in those taken away."""
    gone = np.array(taken, np.int64).reshape(-1, 2)
    away_starts, away_ends = _merged(gone[:, 0], gone[:, 1])
    starts, ends = ranges
    pieces_starts, pieces_ends = [], []
    # One range of a point is cut by every range that begins in it.
    first = np.searchsorted(away_ends, starts, side="right")
    beyond = np.searchsorted(away_starts, ends, side="left")
    for index in range(len(starts)):
        inside = slice(first[index], max(first[index], beyond[index]))
        pieces_starts.append(np.concatenate(([starts[index]], away_ends[inside])))
        pieces_ends.append(np.concatenate((away_starts[inside], [ends[index]])))
    if not pieces_starts:
        return _NONE, _NONE
    return np.concatenate(pieces_starts), np.concatenate(pieces_ends)


def _pieces(cuts: pa.Table) -> tuple[_Offsets, _Offsets, _Offsets]:
    """Row, start and end of every range that a cut has saved."""
    saved_from, end = cuts["saved_from"].to_numpy(), cuts["end"].to_numpy()
    excluded = cuts["excluded"].combine_chunks()
    of_row = excluded.value_parent_indices().to_numpy().astype(np.int64)
    bad = pa.Table.from_struct_array(excluded.flatten())
    bad_start, bad_end = bad["start"].to_numpy(), bad["end"].to_numpy()
    # Each cut gives a piece up to its first excluded range, each such range one up to the next.
    rows = np.concatenate((np.arange(len(end)), of_row))
    starts = np.concatenate((saved_from, np.maximum(bad_end, saved_from[of_row])))
    ends = np.concatenate((end.copy(), end[of_row]))
    firsts = np.flatnonzero(np.concatenate(([True], of_row[1:] != of_row[:-1]))[: len(of_row)])
    ends[of_row[firsts]] = bad_start[firsts]
    follows = np.flatnonzero(of_row[1:] == of_row[:-1])
    ends[len(end) + follows] = bad_start[follows + 1]
    return rows, starts, np.minimum(ends, end[rows])


def _may_be_proven(cuts: pa.Table) -> _Offsets:
    """1 for each cut whose records a backup may stand in for: changelogs, not repartition topics.

    Records in flight stay with their point, whatever else their topic is.
    """
    roles = cuts["roles"].combine_chunks()
    of_row = roles.value_parent_indices().to_numpy().astype(np.int64)
    names = roles.flatten()
    is_changelog = np.zeros(cuts.num_rows, np.bool_)
    in_flight = np.zeros(cuts.num_rows, np.bool_)
    is_changelog[of_row[matching(names, TopicRole.CHANGELOG.value.__eq__)]] = True
    in_flight[of_row[matching(names, TopicRole.REPARTITION.value.__eq__)]] = True
    return (is_changelog & ~in_flight).astype(np.int64)


def matching(column: pa.Array, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
    """Which texts of a column pass a test; each distinct text is tested once."""
    encoded = column.dictionary_encode()
    passed = np.array([test(text) for text in encoded.dictionary.to_pylist()], np.bool_)
    return passed[encoded.indices.to_numpy()]


def _codes(rows: pa.Table) -> tuple[list[_Key], _Offsets]:
    """The distinct partitions and lives of the rows, and for each row the number of its own."""
    topics, lives = _encoded(rows["topic"]), _encoded(rows["topic_id"])
    partition = rows["partition"].to_numpy().astype(np.int64)
    width = int(partition.max()) + 1
    code = (_indices(topics) * len(lives.dictionary) + _indices(lives)) * width + partition
    distinct, numbers = np.unique(code, return_inverse=True)
    topic_names, life_names = topics.dictionary.to_pylist(), lives.dictionary.to_pylist()
    keys = [
        (
            topic_names[each // width // len(life_names)],
            life_names[each // width % len(life_names)],
            each % width,
        )
        for each in distinct.tolist()
    ]
    return keys, numbers.astype(np.int64)


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    return column.combine_chunks().dictionary_encode()


def _indices(encoded: pa.DictionaryArray) -> _Offsets:
    return encoded.indices.to_numpy().astype(np.int64)


def _groups(codes: _Offsets) -> Iterable[tuple[int, _Offsets]]:
    """Each code with the positions at which it stands."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    edges = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    for start, end in zip(edges, [*edges[1:], len(codes)], strict=True):
        yield int(codes[start]), order[start:end]


def _by_key(
    found: Iterable[tuple[_Key, _Offsets, _Offsets]],
) -> Iterable[tuple[_Key, _Offsets, _Offsets]]:
    together: dict[_Key, list[tuple[_Offsets, _Offsets]]] = {}
    for key, starts, ends in found:
        together.setdefault(key, []).append((starts, ends))
    for key, parts in together.items():
        yield key, np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

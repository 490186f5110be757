"""Restored records at the start of logs, taken from the backups of the older logs.

The older log's files, saved records, missing records and damage apply to the new offsets of the
same records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from kstreams_assets.model.chains import Chain
from kstreams_assets.model.damage import Damage, DamagedSpans
from kstreams_assets.model.data_files import renumbered
from kstreams_assets.model.point import PartitionCut, PartitionIncarnation, RecoveryPoint
from kstreams_assets.model.restored_ranges import RestoredRange
from kstreams_assets.model.saved_records import by_partition
from kstreams_assets.offsets import OffsetMap, OffsetRange, RangeSet, TopicPartitionId
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.restores import OffsetMapsTable


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first records of a log: a restore wrote them from `point`; `cut` is the point's part."""

    maps: OffsetMapsTable
    written: RestoredRange
    point: RecoveryPoint
    cut: PartitionCut

    @property
    def offsets(self) -> OffsetRange:
        """Their offsets in the log."""
        return self.written.offsets

    @property
    def source(self) -> RangeSet:
        """Their offset range in the older log."""
        committed = self.point.group.offset_in(self.cut) or 0
        in_flight = self.cut.roles.in_flight_only
        return self.cut.records_from(max(self.cut.log_start, committed if in_flight else 0))

    @property
    def map(self) -> OffsetMap:
        """The map of their offsets in the older log to those in this one.

        Raises:
            StoredDataError: It differs from the map that the restore stored.
        """
        one = self.written
        return self.maps.of_committed(one.restore_id, one.source.topic)[one.source]

    def without(self, missing: RangeSet) -> RangeSet:
        """The prefix without these offsets of the older log."""
        whole = RangeSet([self.offsets])
        if not missing:
            return whole
        return whole - [
            OffsetRange(self.map.map(one.start), self.map.map(one.end)) for one in missing
        ]


class Prefixes:
    """The prefixes of all logs of an application with recovery points."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo

    @cached_property
    def _by_life(self) -> Mapping[PartitionIncarnation, Prefix]:
        """In the order in which they were restored: one may continue another."""
        origins = self._repo.lineage.origins()
        ids = {one.point_id for _, one in origins.items()}
        loaded = self._repo.points.load(ids, damaged_too=True)
        points = {point.id: point for point in loaded if not point.damaged}
        found: dict[PartitionIncarnation, Prefix] = {}
        for life, written in origins.items():
            point = points.get(written.point_id)
            cut = point.cut(written.source) if point else None
            if point is not None and cut is not None and cut.life != life:
                found[life] = Prefix(self._repo.offset_maps, written, point, cut)
        order = {point.id: number for number, point in enumerate(loaded)}
        return dict(sorted(found.items(), key=lambda item: order[item[1].point.id]))

    def __bool__(self) -> bool:
        return bool(self._by_life)

    def get(self, life: PartitionIncarnation) -> Prefix | None:
        """The prefix of a log; None if no restore wrote it."""
        return self._by_life.get(life)

    def restored_points(self, point: RecoveryPoint) -> list[RecoveryPoint]:
        """The points from which the logs of a point were restored, recursively."""
        direct = {
            prefix.point.id: prefix.point
            for cut in point.partitions
            if (prefix := self.get(cut.life)) is not None
        }
        return [
            *direct.values(),
            *(o for one in direct.values() for o in self.restored_points(one)),
        ]

    def join(
        self, chains: Mapping[PartitionIncarnation, Chain]
    ) -> Mapping[PartitionIncarnation, Chain]:
        """Extend chains by their prefixes, from the older logs."""
        for life, prefix in self._by_life.items():
            chain = chains.get(life)
            if chain is None:
                continue
            older = chains.get(prefix.cut.life)
            missing = prefix.source - prefix.cut.saved - (older.stored if older else ())
            expired = missing & (older.expired if older else ())
            chain.stored |= prefix.without(missing)
            chain.expired |= RangeSet([prefix.offsets]) - prefix.without(expired)
            chain.restored_at_ms = prefix.point.taken_at_ms
        return chains

    def join_damage(self, damaged: DamagedSpans) -> DamagedSpans:
        """The damage, extended to prefixes whose source in the older log is damaged."""
        for life, prefix in self._by_life.items():
            found = next(
                filter(
                    None,
                    (damaged.inside(prefix.cut.life, one.start, one.end) for one in prefix.source),
                ),
                None,
            )
            if found is not None:
                of_prefix = _of_prefix(found, life, prefix.offsets)
                damaged = DamagedSpans([*damaged, of_prefix])
        return damaged

    def saved(
        self, point: RecoveryPoint, cuts: Mapping[TopicPartitionId, PartitionCut]
    ) -> dict[TopicPartitionId, pa.Table]:
        """Records of cuts of a point that were saved with points, in order of offsets.

        Those of `[saved_from, end)` of each cut outside its excluded ranges, and the saved ones of
        the records that a restore wrote to its log.

        Raises:
            StoredDataError: A record was changed after it was saved, or the table is older than the
                point.
        """
        own = {
            id_: cut
            for id_, cut in cuts.items()
            if cut.saved_from is not None and cut.saved_from < cut.end
        }
        found = by_partition(self._repo.saved_records.of_cuts(point, own))
        older: dict[str, dict[TopicPartitionId, Prefix]] = {}
        for id_, cut in cuts.items():
            prefix = self.get(cut.life)
            if prefix is not None and cut.log_start < prefix.offsets.end:
                older.setdefault(prefix.point.id, {})[id_] = prefix
        for prefixes in older.values():
            restored = next(iter(prefixes.values())).point
            saved = self.saved(restored, {id_: one.cut for id_, one in prefixes.items()})
            for id_, rows in saved.items():
                of_prefix = renumbered(rows, prefixes[id_].map.runs)
                found[id_] = _in_order([of_prefix, found[id_]] if id_ in found else [of_prefix])
        return found


def _in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """Rows in order of offsets, each offset once."""
    rows = pa.concat_tables(parts)
    _, first = np.unique(rows["offset"].to_numpy(), return_index=True)
    return rows.take(pa.array(first))


def _of_prefix(found: Damage, life: PartitionIncarnation, offsets: OffsetRange) -> Damage:
    topic, partition, topic_id = life
    return replace(
        found,
        topic=topic,
        partition=partition,
        topic_id=topic_id,
        start=offsets.start,
        end=offsets.end,
        problem=f"a restore wrote them from the backup of {found}",
    )

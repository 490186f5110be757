"""From a recovery point or a window to the rows of each view; reads the warehouse, no JVM."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kstreams_assets.completeness.content import (
    Content,
    LoggedRows,
    LogSource,
    Moment,
    Part,
    ViewPart,
    in_flight_from,
    wanted,
)
from kstreams_assets.completeness.moments import Moments
from kstreams_assets.completeness.snapshots import Snapshots
from kstreams_assets.completeness.staging import Staging
from kstreams_assets.completeness.standing import Standing, listed
from kstreams_assets.completeness.view import View, ViewKind
from kstreams_assets.completeness.worth import PointWorth
from kstreams_assets.offsets import OffsetRange, TopicPartitionId
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.ledger import Ledger, PartitionLife, rows_with_gap
from kstreams_assets.warehouse.point import RecoveryPoint, WantedPartition
from kstreams_assets.warehouse.points import SavedRecordsTable, by_partition
from kstreams_assets.warehouse.spans import GapCause
from kstreams_assets.warehouse.table import storage_failures

_KEPT_BYTES: Final = 256 * 1024**2
"""A topic of which not more is backed up is read and decoded once for all that is evaluated."""
_ALL: Final = (OffsetRange(0, 2**62),)


class ContentPlanner:
    """Plans evaluations of one application; reads ledger and Delta's log once.

    Backups that are made later do not show in this object.
    """

    def __init__(self, settings: ApplicationSettings, staging: Staging) -> None:
        self._settings, self._staging = settings, staging
        name, topics = settings.application_id, {t.name for t in settings.application.topics}
        topics |= {topic.name for topic in settings.topics}
        self.backed_up = {topic.name for topic in settings.topics}
        self.moments = Moments(settings, topics)
        self.snapshots = Snapshots(settings)
        self.contents = Contents.of(settings)
        self._ledger = Ledger(settings.warehouse, name)
        self._root = str(settings.warehouse.records(name))
        self._saved = SavedRecordsTable(settings.warehouse)
        self._whole: dict[tuple[PartitionLife, ...], LogSource | None] = {}

    def at(self, moment: Moment) -> "MomentPlanner":
        """What is there at one point."""
        return MomentPlanner(self, moment)

    def saved(self, point: RecoveryPoint, topic: str) -> Mapping[TopicPartitionId, pa.Table]:
        """The records of a topic that were saved with a point, by partition."""
        cuts = {
            cut.id: cut
            for cut in point.partitions
            if cut.topic == topic and cut.saved_from is not None and cut.saved_from < cut.end
        }
        return by_partition(self._saved.of_cuts(point, cuts)) if cuts else {}

    def stage(self, rows: Sequence[pa.Table]) -> str | None:
        """A file with these records; None without any."""
        return self._staging.write(pa.concat_tables(rows)) if rows else None

    def source(self, topic: str, parts: Sequence[WantedPartition]) -> LogSource:
        """All files of a topic if they are worth keeping, else those that are needed."""
        lives = tuple((part.cut.topic, part.cut.partition, part.cut.topic_id) for part in parts)
        if lives not in self._whole:
            unbounded = [replace(part, ranges=_ALL) for part in parts]
            whole, size = self._files(topic, unbounded)
            self._whole[lives] = replace(whole, is_whole=True) if size <= _KEPT_BYTES else None
        return self._whole[lives] or self._files(topic, parts)[0]

    @cached_property
    def compacted_topics(self) -> frozenset[str]:
        """Topics of which compaction had removed records before they were backed up."""
        rows = self._ledger.span_rows(self.backed_up, columns=["topic", "gaps"])
        return frozenset(
            rows["topic"][index].as_py() for index in rows_with_gap(rows, {GapCause.COMPACTED})
        )

    def _files(self, topic: str, parts: Sequence[WantedPartition]) -> tuple[LogSource, float]:
        found = [one for part in parts for one in self.contents.files(part)]
        source = LogSource(
            topic=topic,
            root=self._root,
            files=tuple(str(file.path) for file, _ in found),
            records=sum(file.records for file, _ in found),
        )
        return source, sum(size for _, size in found)


class MomentPlanner:
    """The contents of views at one point, and what they are worth."""

    def __init__(self, shared: ContentPlanner, moment: Moment) -> None:
        self._shared, self.moment = shared, moment
        self._worth = PointWorth(
            moment,
            contents=shared.contents,
            snapshots=shared.snapshots,
            backed_up=shared.backed_up,
        )
        self._saved: dict[tuple[str, str], Mapping[TopicPartitionId, pa.Table]] = {}

    def content(self, asked: ViewPart) -> Content:
        """The rows of a view."""
        point = self.moment.at(asked.part)
        if asked.of_snapshot and asked.view.store is not None and point is not None:
            return self._shared.snapshots.rows(asked.view.store, point.id)
        return self._logged(asked.view, asked.part, point)

    def standings(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What stands against judging each of some rules, given the views of each."""
        return self._worth.standings(views)

    def standings_of_restored(
        self, views: Sequence[Sequence[ViewPart]], besides: Sequence[Sequence[str]]
    ) -> list[Standing]:
        """The same for a cluster that was restored from the point, with `besides` missing there."""
        return self._worth.standings_of_restored(views, besides)

    def lacking_snapshots(self, views: Sequence[ViewPart]) -> list[str]:
        """Stores among these that are to come from a snapshot, and have none."""
        return sorted(
            {
                store.store
                for one in views
                if one.of_snapshot and (store := one.view.store) is not None
                if (point := self.moment.at(one.part)) is not None
                and self._shared.snapshots.find(store, point.id) is None
            }
        )

    def compacted(self, views: Sequence[ViewPart]) -> str:
        """Topics among these that lack records which compaction removed before the backup."""
        topics = {one.view.topic for one in views} & self._shared.compacted_topics
        if not topics:
            return ""
        return f"compaction removed records of {listed(sorted(topics))} before they were backed up."

    def scrub(self, text: str) -> str:
        """The text: nothing in a warehouse is secret."""
        return text

    def _logged(self, view: View, part: Part, point: RecoveryPoint | None) -> LoggedRows:
        parts = wanted(view, self.moment, part)
        saved = self._saved_of(point, view.topic) if point and parts else {}
        rows = [
            found
            for one in parts
            if (found := self._only_saved(view, one, saved.get(one.cut.id))) is not None
        ]
        source = self._shared.source(view.topic, parts)
        return LoggedRows(
            source=source,
            ranges={one.cut.partition: one.ranges for one in parts},
            in_flight_from=in_flight_from(view, self.moment),
            saved_file=self._shared.stage(rows),
            records=source.records + sum(found.num_rows for found in rows),
            window=self.moment.window if part is Part.ALL else None,
        )

    def _only_saved(
        self, view: View, one: WantedPartition, saved: pa.Table | None
    ) -> pa.Table | None:
        """Of saved records those that no file holds; of a store all: the newest of a key counts."""
        if saved is None or saved.num_rows == 0 or view.kind is ViewKind.STORE:
            return saved
        low, high = saved["offset"][0].as_py(), saved["offset"][-1].as_py()
        near = replace(one, ranges=(OffsetRange(low, high + 1),))
        stored = [_offsets(file.path) for file, _ in self._shared.contents.files(near)]
        if not stored:
            return saved
        rest = saved.filter(pa.array(~np.isin(saved["offset"].to_numpy(), np.concatenate(stored))))
        return rest if rest.num_rows else None

    def _saved_of(self, point: RecoveryPoint, topic: str) -> Mapping[TopicPartitionId, pa.Table]:
        # Of input topics and outputs nothing is saved; then nothing is read either.
        if (point.id, topic) not in self._saved:
            self._saved[point.id, topic] = self._shared.saved(point, topic)
        return self._saved[point.id, topic]


def _offsets(file: Path) -> npt.NDArray[np.int64]:
    with storage_failures(file):
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        return parquet.read(columns=["offset"])["offset"].to_numpy()

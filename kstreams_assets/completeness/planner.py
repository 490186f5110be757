"""Plans the rows of each view at a recovery point or window, from the warehouse, without a JVM."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import pyarrow as pa

from kstreams_assets.completeness.content import (
    EvaluationPoint,
    Part,
    ViewPart,
    in_flight_from,
    partitions_of_view,
)
from kstreams_assets.completeness.repeats import Repeats
from kstreams_assets.completeness.runnable import Verifiability
from kstreams_assets.model.point import (
    PartitionCut,
    PartitionIncarnation,
    RecoveryPoint,
    WantedPartition,
    no_point,
)
from kstreams_assets.model.restorability import PointStatus, Restorability, Yardstick
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.model.spans import GapCause, Window
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import View, ViewKind, views_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.work import Content, LoggedRows, LogSource, Renumbering, SnapshotRows


class EvaluationPoints:
    """Points and windows of one application; the ledger is read at the first use."""

    def __init__(self, settings: ApplicationSettings, topics: Collection[str]) -> None:
        self._application_id = settings.application_id
        repo = Repository.open(settings)
        self._ledger = repo.ledger
        self._table = repo.points
        self._topics = topics
        self._points: dict[str, RecoveryPoint] = {}

    def of_window(self, window: Window) -> EvaluationPoint | None:
        """Return the points that end a window and the previous window; None if not backed up."""
        point = self.point(self._closing.get(window))
        if point is None:
            return None
        adjacent = [w for w in self._closing if w.end_ms == window.start_ms]
        if adjacent:
            before = self._closing[adjacent[0]]
        else:
            earlier = self._table.bounds().at_edges([window.start_ms])
            before = next(iter(earlier), None)
        return EvaluationPoint(point, self.point(before), window.key)

    def of_point(self, point_id: str) -> EvaluationPoint:
        """Return a point, and the last one before it that ends a window.

        Raises:
            KStreamsAssetsError: The point does not exist.
        """
        for window, closing in self._closing.items():
            if closing == point_id and (evaluation_point := self.of_window(window)) is not None:
                return evaluation_point
        point = self.point(point_id)
        if point is None:
            raise no_point(self._application_id, point_id)
        ended = [w for w in self._closing if w.end_ms <= point.effective_at_ms]
        return EvaluationPoint(point, self.point(self._closing[max(ended)]) if ended else None)

    def point(self, point_id: str | None) -> RecoveryPoint | None:
        """Return a point by its id; None if it does not exist (any more)."""
        if point_id is not None and point_id not in self._points:
            found = self._table.load([point_id])
            self._points |= {point.id: point for point in found}
        return None if point_id is None else self._points.get(point_id)

    @cached_property
    def _closing(self) -> dict[Window, str]:
        """The id of the recovery point that ends each window."""
        by_topic = self._ledger.closing_points(self._topics)
        return {
            window: point_id
            for _, closing in sorted(by_topic.items())
            for window, point_id in closing.items()
            if point_id is not None
        }


KEPT_BYTES: Final = 256 * 1024**2
"""A topic with a smaller backup is read and decoded once for all evaluations."""
_ALL: Final = (OffsetRange(0, 2**62),)


class ContentPlanner:
    """Plans evaluations of one application; reads ledger and Delta log once.

    Later backups are not visible to it.
    """

    def __init__(self, settings: ApplicationSettings, staging: Staging) -> None:
        self.settings, self.staging = settings, staging
        self.backed_up = {topic.name for topic in settings.topics}
        topics = {topic.name for topic in settings.application.topics} | self.backed_up
        self.points = EvaluationPoints(settings, topics)
        self.view = Repository.open(settings).reading(settings)
        stores = [view.store for view in views_of(settings).values() if view.store is not None]
        self.states = self.view.states(stores)
        self._whole: dict[tuple[PartitionIncarnation, ...], LogSource | None] = {}

    def at(self, evaluation_point: EvaluationPoint) -> "PointPlanner":
        """Return the planner for one evaluation point."""
        return PointPlanner(self, evaluation_point)

    def source(self, topic: str, parts: Sequence[WantedPartition]) -> LogSource:
        """Return all files of a topic if they are small enough to keep, else only needed files.

        Raises:
            StoredDataError: A file differs from its record in the ledger.
        """
        lives = tuple((part.cut.topic, part.cut.partition, part.cut.topic_id) for part in parts)
        if lives not in self._whole:
            unbounded = [replace(part, ranges=_ALL) for part in parts]
            whole, size = self._files(topic, unbounded)
            self._whole[lives] = replace(whole, is_whole=True) if size <= KEPT_BYTES else None
        kept = self._whole[lives]
        self.view.require_unchanged(
            parts if kept is None else [replace(part, ranges=_ALL) for part in parts]
        )
        return kept or self._files(topic, parts)[0]

    @cached_property
    def yardstick(self) -> Yardstick:
        """The guarantee of the application itself."""
        return Repository.open(self.settings).points.yardstick(self.settings.guarantee)

    @cached_property
    def compacted_topics(self) -> frozenset[str]:
        """Topics with missing records: compaction removed them before the backup, or `expire`
        deleted them."""
        ledger = Repository.open(self.settings).ledger
        causes = {GapCause.COMPACTED, GapCause.COMPACTED_BY_EXPIRE, GapCause.EXPIRED}
        return ledger.topics_with_gap(self.backed_up, causes)

    def _files(self, topic: str, parts: Sequence[WantedPartition]) -> tuple[LogSource, float]:
        found = [one for part in parts for one in self.view.files(part)]
        source = LogSource(
            topic=topic,
            root=self.settings.warehouse.records(self.settings.application_id),
            files=tuple(one.file.path for one in found),
            records=sum(one.file.records for one in found),
            windows=tuple(one.window for one in found),
            renumbering=Renumbering.of(one.file for one in found),
            scan=self.view.scan(parts),
        )
        return source, sum(one.bytes for one in found)


class PointPlanner:
    """The rows of views at one point, and the verifiability of the rules that read them."""

    def __init__(self, shared: ContentPlanner, evaluation_point: EvaluationPoint) -> None:
        self._shared, self.evaluation_point = shared, evaluation_point

    def content(self, asked: ViewPart) -> Content:
        """Return the rows of a view."""
        view, point = asked.view, self.evaluation_point.at(asked.part)
        if asked.of_snapshot and view.store is not None and point is not None:
            return self._snapshot_rows(view.store, point.id)
        parts = partitions_of_view(view, self.evaluation_point, asked.part)
        saved = self._saved(view, point, parts) if point is not None else []
        source = self._shared.source(view.topic, parts)
        return LoggedRows(
            format=view.format,
            is_store=view.kind is ViewKind.STORE,
            source=source,
            ranges={one.cut.partition: one.ranges for one in parts},
            in_flight_from=in_flight_from(view, self.evaluation_point),
            saved_file=self._shared.staging.write(pa.concat_tables(saved)) if saved else None,
            records=source.records + sum(rows.num_rows for rows in saved),
            window=self.evaluation_point.window if asked.part is Part.ALL else None,
        )

    def _snapshot_rows(self, store: TableStore, point_id: str) -> SnapshotRows:
        """Return the rows of a snapshot; `missing_snapshots` has checked that it exists."""
        snapshots = self._shared.states.snapshots
        snapshot = snapshots.at(store, point_id)
        if snapshot is None:
            raise LookupError(f"no snapshot of {store.store} at {point_id}")
        snapshots.require_unchanged(snapshot)
        files = tuple(file.path for file in snapshots.files(snapshot))
        return SnapshotRows(store.format, snapshot.window.key, files, snapshot.rows)

    def _saved(
        self, view: View, point: RecoveryPoint, parts: Sequence[WantedPartition]
    ) -> list[pa.Table]:
        """Return records saved with points; for a topic only those missing in files."""
        if view.store is not None:  # duplicates are harmless: only the newest of a key counts
            states = self._shared.states
            rows = states.saved(point, states.parts(view.store, point))
            return [rows] if rows.num_rows else []
        parts = [
            one
            for one in parts
            if one.cut.saved_from is not None and one.cut.saved_from < one.cut.end
        ]
        if not parts:
            return []
        found = self._shared.view.contents(point, parts)
        return [rows for one in parts if (rows := found.only_saved(one.cut.id)).num_rows]

    def verifiability_of(self, views: Sequence[Sequence[ViewPart]]) -> list[Verifiability]:
        """Return the verifiability of each rule, given the views of each."""
        logged = [[one for one in of_rule if not one.of_snapshot] for of_rule in views]
        return [
            replace(
                self._verifiability(of_rule, verifiability), unconfirmed=self._unconfirmed(of_rule)
            )
            for of_rule, verifiability in zip(views, self._of_points(logged), strict=True)
        ]

    def verifiability_of_restored(
        self, views: Sequence[Sequence[ViewPart]], besides: Sequence[Sequence[str]]
    ) -> list[Verifiability]:
        """Return the same for a cluster restored from the point; `besides` is missing there.

        The restore has accepted records that are missing in the backup.
        """
        covered = [
            [one for one in of_rule if one.view.topic in self._shared.backed_up]
            for of_rule in views
        ]
        return [
            replace(
                verifiability,
                not_covered="",
                unproven=verifiability.unproven or verifiability.not_covered,
                incomplete=few([*self._started_late(of_rule), *texts], by="; "),
                unconfirmed=self._unconfirmed(of_rule),
            )
            for of_rule, verifiability, texts in zip(
                views, self._of_points(covered), besides, strict=True
            )
        ]

    def missing_snapshots(self, views: Sequence[ViewPart]) -> list[str]:
        """Return the stores without the snapshot that their view needs."""
        return sorted(
            {
                store.store
                for one in views
                if one.of_snapshot and (store := one.view.store) is not None
                if (point := self.evaluation_point.at(one.part)) is not None
                and self._shared.states.snapshots.at(store, point.id) is None
            }
        )

    def compacted(self, views: Sequence[ViewPart]) -> str:
        """Describe topics of which compaction removed records before the backup."""
        topics = {one.view.topic for one in views} & self._shared.compacted_topics
        if not topics:
            return ""
        named = few(sorted(topics), by="; ")
        return f"compaction removed records of {named} before they were backed up."

    def scrub(self, text: str) -> str:
        """Return the text unchanged, because a warehouse contains no secrets."""
        return text

    def _unconfirmed(self, views: Sequence[ViewPart]) -> str:
        """Return unconfirmed guesses about stores and topics of the rule, with remedies."""
        stores = {one.view.store.store for one in views if one.view.store is not None}
        topics = {one.view.topic for one in views if one.view.store is None}
        found = self._shared.settings.application.guesses_about(topics=topics, stores=stores)
        return " ".join(f"{guess} {guess.remedy}" for guess in found)

    def _verifiability(
        self, views: Sequence[ViewPart], verifiability: Verifiability
    ) -> Verifiability:
        topics = {one.view.topic for one in views}
        # Records in flight are saved with the point, even if their topic is not backed up.
        transient = {one.view.topic for one in views if one.view.is_transient}
        missing = topics - self._shared.backed_up - transient
        if missing:
            return Verifiability(not_covered=f"Not in the backup: {few(sorted(missing), by='; ')}.")
        uncertainties = [
            self._why_unproved(one.view.store, point.id)
            for one in views
            if one.of_snapshot and one.view.store is not None
            if (point := self.evaluation_point.at(one.part)) is not None
        ]
        unknown = topics - {cut.topic for cut in self.evaluation_point.point.partitions}
        return replace(
            verifiability,
            unproven=" ".join(text for text in (*uncertainties, verifiability.unproven) if text),
            incomplete=few((text for one in views for text in self._incomplete(one)), by="; "),
            unknown=f"The recovery point does not contain {few(sorted(unknown), by='; ')}."
            if unknown
            else "",
        )

    def _why_unproved(self, store: TableStore, point_id: str) -> str:
        """Return why a snapshot is not proved; empty if it is proved or missing."""
        snapshot = self._shared.states.snapshots.at(store, point_id)
        if snapshot is None or snapshot.proved:
            return ""
        return f"The snapshot of {store.store} is not proved: {snapshot.reason}"

    def _of_points(self, views: Sequence[Sequence[ViewPart]]) -> list[Verifiability]:
        """Evaluate the topics of each rule at the point, and at the previous one if it is used."""
        points: list[RecoveryPoint] = []
        slices: list[tuple[int, int]] = []
        for of_rule in views:
            first = len(points)
            now = [one for one in of_rule if one.part is not Part.BEFORE]
            then = [one for one in of_rule if one.part is Part.BEFORE]
            points.append(self._narrowed(self.evaluation_point.point, now))
            if self.evaluation_point.before is not None and then:
                points.append(self._narrowed(self.evaluation_point.before, then))
            slices.append((first, len(points)))
        statuses = self._shared.view.statuses(points)
        within = self._repeats()
        return [
            replace(verifiability, within=within) if verifiability.repeats else verifiability
            for first, end in slices
            for verifiability in [_verifiability_of(statuses[first:end])]
        ]

    def _repeats(self) -> Repeats | None:
        """Return the possible number of repeated records; None for an exactly-once application."""
        if self._shared.yardstick.least is not Restorability.AT_LEAST_ONCE:
            return None
        point, before = self.evaluation_point.point, self.evaluation_point.before
        return Repeats(
            point.most_repeats,
            before.most_repeats if before is not None else 0,
        )

    def _narrowed(self, point: RecoveryPoint, views: Sequence[ViewPart]) -> RecoveryPoint:
        """Restrict the point to the partitions and offsets of the views."""
        cuts = [
            _narrowed(one)
            for each in views
            for one in partitions_of_view(each.view, self.evaluation_point, each.part)
        ]
        return point.narrowed(cuts)

    def _incomplete(self, asked: ViewPart) -> list[str]:
        """Describe partitions of a topic with permanently missing records."""
        if not _is_counted(asked):
            return []
        found = []
        for one in partitions_of_view(asked.view, self.evaluation_point, asked.part):
            lost = self._shared.view.missing(one)
            if lost and lost[0].start == 0:
                found.append(f"{one.cut.id} starts at offset {lost[0].end} in the backup")
            elif lost:
                missing = f"{lost[0].start} to {lost[0].end - 1}"
                found.append(f"{one.cut.id}: missing offsets {missing} in the backup")
        return found

    def _started_late(self, views: Sequence[ViewPart]) -> list[str]:
        """Describe partitions whose first records are missing in a restore of the point."""
        topics = {one.view.topic for one in views if _is_counted(one)}
        return [
            f"{cut.id} starts at offset {cut.log_start} in the backup"
            for cut in self.evaluation_point.point.partitions
            if cut.topic in topics and cut.log_start > 0
        ]


def _verifiability_of(statuses: Sequence[PointStatus]) -> Verifiability:
    reasons = {status.restorability: status.reason for status in statuses}
    for status in statuses:
        if status.restorability is Restorability.NOTHING:
            return Verifiability(not_covered=f"Recovery point {status.id}: {status.reason}")
    return Verifiability(
        repeats=reasons.get(Restorability.AT_LEAST_ONCE, "").rstrip("."),
        unproven=reasons.get(Restorability.UNPROVEN, ""),
    )


def _is_counted(asked: ViewPart) -> bool:
    """Whether a view contains all records, or all new records, of a topic."""
    view = asked.view
    return not (view.kind is ViewKind.STORE or view.is_transient or asked.part is Part.BEFORE)


def _narrowed(one: WantedPartition) -> PartitionCut:
    """Restrict the cut to the offsets of the view."""
    if not one.ranges:
        return replace(one.cut, end=one.cut.log_start, excluded=())
    start = max(one.cut.log_start, one.ranges[0].start)
    return replace(one.cut, log_start=start, end=max(start, one.ranges[-1].end))

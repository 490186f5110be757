"""From a recovery point or a window to the rows of each view; reads the warehouse, no JVM."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import pyarrow as pa

from kstreams_assets.completeness.content import Moment, Part, ViewPart, in_flight_from, wanted
from kstreams_assets.completeness.repeats import Repeats
from kstreams_assets.completeness.runnable import Standing
from kstreams_assets.model.point import (
    PartitionCut,
    PartitionLife,
    RecoveryPoint,
    WantedPartition,
    no_point,
)
from kstreams_assets.model.restorability import PointStatus, Restores, Yardstick
from kstreams_assets.model.snapshot import TableStore
from kstreams_assets.model.spans import GapCause, Window
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.staging import Staging
from kstreams_assets.rules.view import View, ViewKind, views_of
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.texts import few
from spark_resources.work import Content, LoggedRows, LogSource, Renumbering, SnapshotRows


class Moments:
    """Points and windows of one application, as the ledger knew them at first use."""

    def __init__(self, settings: ApplicationSettings, topics: Collection[str]) -> None:
        self._application_id = settings.application_id
        repo = Repository.open(settings)
        self._ledger = repo.ledger
        self._table = repo.points
        self._topics = topics
        self._points: dict[str, RecoveryPoint] = {}

    def of_window(self, window: Window) -> Moment | None:
        """The point that ends a window and that of the window before; None if not backed up."""
        point = self.point(self._closing.get(window))
        if point is None:
            return None
        adjacent = [w for w in self._closing if w.end_ms == window.start_ms]
        if adjacent:
            before = self._closing[adjacent[0]]
        else:
            earlier = self._table.bounds().at_edges([window.start_ms])
            before = next(iter(earlier), None)
        return Moment(point, self.point(before), window.key)

    def of_point(self, point_id: str) -> Moment:
        """A point, and the last one before it that ends a window.

        Raises:
            KStreamsAssetsError: There is no point with this id.
        """
        for window, closing in self._closing.items():
            if closing == point_id and (moment := self.of_window(window)) is not None:
                return moment
        point = self.point(point_id)
        if point is None:
            raise no_point(self._application_id, point_id)
        ended = [w for w in self._closing if w.end_ms <= point.effective_at_ms]
        return Moment(point, self.point(self._closing[max(ended)]) if ended else None)

    def point(self, point_id: str | None) -> RecoveryPoint | None:
        """A point by its id, None where it is not there (any more)."""
        if point_id is not None and point_id not in self._points:
            found = self._table.load([point_id])
            self._points |= {point.id: point for point in found}
        return None if point_id is None else self._points.get(point_id)

    @cached_property
    def _closing(self) -> dict[Window, str]:
        """The recovery point (id) that bounds each window."""
        by_topic = self._ledger.closing_points(self._topics)
        return {
            window: point_id
            for _, closing in sorted(by_topic.items())
            for window, point_id in closing.items()
            if point_id is not None
        }


KEPT_BYTES: Final = 256 * 1024**2
"""A topic of which not more is backed up is read and decoded once for all that is evaluated."""
_ALL: Final = (OffsetRange(0, 2**62),)


class ContentPlanner:
    """Plans evaluations of one application; reads ledger and Delta's log once.

    Backups that are made later do not show in this object.
    """

    def __init__(self, settings: ApplicationSettings, staging: Staging) -> None:
        self.settings, self.staging = settings, staging
        self.backed_up = {topic.name for topic in settings.topics}
        topics = {topic.name for topic in settings.application.topics} | self.backed_up
        self.moments = Moments(settings, topics)
        self.view = Repository.open(settings).reading(settings)
        stores = [view.store for view in views_of(settings).values() if view.store is not None]
        self.states = self.view.states(stores)
        self._whole: dict[tuple[PartitionLife, ...], LogSource | None] = {}

    def at(self, moment: Moment) -> "MomentPlanner":
        """What is there at one point."""
        return MomentPlanner(self, moment)

    def source(self, topic: str, parts: Sequence[WantedPartition]) -> LogSource:
        """All files of a topic if they are worth keeping, else those that are needed.

        Raises:
            StoredDataError: One is not as its backup noted it.
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
        """What the application guarantees itself."""
        return Repository.open(self.settings).points.yardstick(self.settings.guarantee)

    @cached_property
    def compacted_topics(self) -> frozenset[str]:
        """Topics of which not every record is there: compaction had removed some before they were
        backed up, or `expire` has dropped what no kept point needs."""
        ledger = Repository.open(self.settings).ledger
        causes = {GapCause.COMPACTED, GapCause.FOLDED, GapCause.EXPIRED}
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
        )
        return source, sum(one.bytes for one in found)


class MomentPlanner:
    """The rows of views at one point, and what they are worth for each rule that reads them."""

    def __init__(self, shared: ContentPlanner, moment: Moment) -> None:
        self._shared, self.moment = shared, moment

    def content(self, asked: ViewPart) -> Content:
        """The rows of a view."""
        view, point = asked.view, self.moment.at(asked.part)
        if asked.of_snapshot and view.store is not None and point is not None:
            return self._snapshot_rows(view.store, point.id)
        parts = wanted(view, self.moment, asked.part)
        saved = self._saved(view, point, parts) if point is not None else []
        source = self._shared.source(view.topic, parts)
        return LoggedRows(
            format=view.format,
            is_store=view.kind is ViewKind.STORE,
            source=source,
            ranges={one.cut.partition: one.ranges for one in parts},
            in_flight_from=in_flight_from(view, self.moment),
            saved_file=self._shared.staging.write(pa.concat_tables(saved)) if saved else None,
            records=source.records + sum(rows.num_rows for rows in saved),
            window=self.moment.window if asked.part is Part.ALL else None,
        )

    def _snapshot_rows(self, store: TableStore, point_id: str) -> SnapshotRows:
        """The rows of a snapshot; `lacking_snapshots` has seen that there is one."""
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
        """Records that were saved with points: of a topic only those that no file holds."""
        if view.store is not None:  # the newest of a key counts, whatever comes twice
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

    def standings(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What stands against judging each of some rules, given the views of each."""
        logged = [[one for one in of_rule if not one.of_snapshot] for of_rule in views]
        return [
            replace(self._standing(of_rule, standing), unconfirmed=self._unconfirmed(of_rule))
            for of_rule, standing in zip(views, self._judged(logged), strict=True)
        ]

    def standings_of_restored(
        self, views: Sequence[Sequence[ViewPart]], besides: Sequence[Sequence[str]]
    ) -> list[Standing]:
        """The same for a cluster that was restored from the point, with `besides` missing there.

        What the backup does not hold was accepted with the restore.
        """
        covered = [
            [one for one in of_rule if one.view.topic in self._shared.backed_up]
            for of_rule in views
        ]
        return [
            replace(
                standing,
                not_covered="",
                unproven=standing.unproven or standing.not_covered,
                incomplete=few([*self._begun_late(of_rule), *texts], by="; "),
                unconfirmed=self._unconfirmed(of_rule),
            )
            for of_rule, standing, texts in zip(views, self._judged(covered), besides, strict=True)
        ]

    def lacking_snapshots(self, views: Sequence[ViewPart]) -> list[str]:
        """Stores among these that are to come from a snapshot, and have none."""
        return sorted(
            {
                store.store
                for one in views
                if one.of_snapshot and (store := one.view.store) is not None
                if (point := self.moment.at(one.part)) is not None
                and self._shared.states.snapshots.at(store, point.id) is None
            }
        )

    def compacted(self, views: Sequence[ViewPart]) -> str:
        """Topics among these that lack records which compaction removed before the backup."""
        topics = {one.view.topic for one in views} & self._shared.compacted_topics
        if not topics:
            return ""
        named = few(sorted(topics), by="; ")
        return f"compaction removed records of {named} before they were backed up."

    def scrub(self, text: str) -> str:
        """The text: nothing in a warehouse is secret."""
        return text

    def _unconfirmed(self, views: Sequence[ViewPart]) -> str:
        """Guesses by which the rule would read; a view of a topic reads no store."""
        stores = {one.view.store.store for one in views if one.view.store is not None}
        topics = {one.view.topic for one in views if one.view.store is None}
        found = self._shared.settings.application.guesses_about(topics=topics, stores=stores)
        return " ".join(f"{guess} {guess.remedy}" for guess in found)

    def _standing(self, views: Sequence[ViewPart], standing: Standing) -> Standing:
        topics = {one.view.topic for one in views}
        # Records in flight are saved with the point, whatever is backed up.
        transient = {one.view.topic for one in views if one.view.is_transient}
        missing = topics - self._shared.backed_up - transient
        if missing:
            return Standing(not_covered=f"Not in the backup: {few(sorted(missing), by='; ')}.")
        doubts = [
            self._doubt(one.view.store, point.id)
            for one in views
            if one.of_snapshot and one.view.store is not None
            if (point := self.moment.at(one.part)) is not None
        ]
        unknown = topics - {cut.topic for cut in self.moment.point.partitions}
        return replace(
            standing,
            unproven=" ".join(doubt for doubt in (*doubts, standing.unproven) if doubt),
            incomplete=few((text for one in views for text in self._incomplete(one)), by="; "),
            unknown=f"The recovery point does not know {few(sorted(unknown), by='; ')}."
            if unknown
            else "",
        )

    def _doubt(self, store: TableStore, point_id: str) -> str:
        """Why a snapshot is not proved; empty where it is, or where there is none."""
        snapshot = self._shared.states.snapshots.at(store, point_id)
        if snapshot is None or snapshot.proved:
            return ""
        return f"The snapshot of {store.store} is not proved: {snapshot.reason}"

    def _judged(self, views: Sequence[Sequence[ViewPart]]) -> list[Standing]:
        """What the point, and the one before where it is looked at, give of each rule's topics."""
        points: list[RecoveryPoint] = []
        slices: list[tuple[int, int]] = []
        for of_rule in views:
            first = len(points)
            now = [one for one in of_rule if one.part is not Part.BEFORE]
            then = [one for one in of_rule if one.part is Part.BEFORE]
            points.append(self._narrowed(self.moment.point, now))
            if self.moment.before is not None and then:
                points.append(self._narrowed(self.moment.before, then))
            slices.append((first, len(points)))
        statuses = self._shared.view.statuses(points)
        within = self._repeats()
        return [
            replace(standing, within=within) if standing.repeats else standing
            for first, end in slices
            for standing in [_standing_of(statuses[first:end])]
        ]

    def _repeats(self) -> Repeats | None:
        """How many records may be repeated, None if the application is not at_least_once itself."""
        if self._shared.yardstick.least is not Restores.AT_LEAST_ONCE:
            return None
        point, before = self.moment.point, self.moment.before
        return Repeats(
            sum(point.repeats_at_most.values()),
            sum(before.repeats_at_most.values()) if before is not None else 0,
        )

    def _narrowed(self, point: RecoveryPoint, views: Sequence[ViewPart]) -> RecoveryPoint:
        """The point with only the partitions and offsets that are looked at."""
        cuts = [
            _narrowed(one) for each in views for one in wanted(each.view, self.moment, each.part)
        ]
        return point.narrowed(cuts)

    def _incomplete(self, asked: ViewPart) -> list[str]:
        """Partitions of a topic of which records are missing for good."""
        if not _is_counted(asked):
            return []
        found = []
        for one in wanted(asked.view, self.moment, asked.part):
            lost = self._shared.view.missing(one)
            if lost and lost[0].start == 0:
                found.append(f"{one.cut.id} begins at offset {lost[0].end} in the backup")
            elif lost:
                lacking = f"{lost[0].start} to {lost[0].end - 1}"
                found.append(f"{one.cut.id}: missing offsets {lacking} in the backup")
        return found

    def _begun_late(self, views: Sequence[ViewPart]) -> list[str]:
        """Partitions of which a restore from the point has not all records."""
        topics = {one.view.topic for one in views if _is_counted(one)}
        return [
            f"{cut.id} begins at offset {cut.log_start} in the backup"
            for cut in self.moment.point.partitions
            if cut.topic in topics and cut.log_start > 0
        ]


def _standing_of(statuses: Sequence[PointStatus]) -> Standing:
    reasons = {status.gives: status.reason for status in statuses}
    for status in statuses:
        if status.gives is Restores.NOTHING:
            return Standing(not_covered=f"Recovery point {status.id}: {status.reason}")
    return Standing(
        repeats=reasons.get(Restores.AT_LEAST_ONCE, "").rstrip("."),
        unproven=reasons.get(Restores.UNPROVEN, ""),
    )


def _is_counted(asked: ViewPart) -> bool:
    """Whether a view shows all records of a topic, or all that are new."""
    view = asked.view
    return not (view.kind is ViewKind.STORE or view.is_transient or asked.part is Part.BEFORE)


def _narrowed(one: WantedPartition) -> PartitionCut:
    """The cut with only the offsets that are looked at."""
    if not one.ranges:
        return replace(one.cut, end=one.cut.log_start, excluded=())
    start = max(one.cut.log_start, one.ranges[0].start)
    return replace(one.cut, log_start=start, end=max(start, one.ranges[-1].end))

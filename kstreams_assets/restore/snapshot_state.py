"""Which recovery points have the KTable snapshots that changelogs can be written from. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kstreams_assets.app.model import TopicRole
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.recovery.point import PartitionCut
from kstreams_assets.restore.plan import Refusal, TopicPlan
from kstreams_assets.restore.planning import Findings
from kstreams_assets.restore.selection import WantedTopic

CHANGELOG_ONLY = frozenset({TopicRole.CHANGELOG})
"""Topics with this role alone are written from snapshots."""

MAKE = "kstreams-assets ktables make"
RAW_REMEDY = "or set changelog_source to raw"

_FEW = 3


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """What a changelog is written from."""

    store: TableStore
    snapshot: Snapshot


class SnapshotState:
    """The snapshots of an application, by the recovery points that they were made at.

    Args:
        stores: Those of which tables are made; of these, the ones whose topics have another role
            besides and those whose topics are excluded do not count.
        snapshots: The newest one of each store and window.
        closed_by: Of each point that closes a window, that window's key.
        excluded: Topics that the restore leaves out.
        topics_at: The topics that each of these points knows; asked once at most, for points
            that have some snapshots and lack others.
    """

    def __init__(
        self,
        stores: Iterable[TableStore],
        snapshots: Iterable[Snapshot],
        *,
        closed_by: Mapping[str, str],
        excluded: Set[str],
        topics_at: Callable[[Collection[str]], Mapping[str, Set[str]]],
    ) -> None:
        self._stores = [s for s in stores if s.is_changelog_only and s.topic not in excluded]
        self._closed_by, self._topics_at = closed_by, topics_at
        self._topics: Mapping[str, Set[str]] | None = None
        self._by_point: dict[str, dict[str, Snapshot]] = {}
        formats = {store.store: store.format.fingerprint for store in self._stores}
        # Two windows may be closed by the same point: the one that will do comes last.
        for snapshot in sorted(
            snapshots, key=lambda s: (s.fingerprint == formats.get(s.store), s.proved)
        ):
            self._by_point.setdefault(snapshot.point_id, {})[snapshot.store] = snapshot

    def missing(self, point_id: str) -> str:
        """What keeps a point from being restored from snapshots, in words; empty if nothing."""
        if not self._stores:
            return ""
        if point_id not in self._closed_by:
            return (
                "It closes no window that is backed up, and KTable snapshots are made where windows"
                " close."
            )
        lacking = self._lacking(point_id)
        if not lacking:
            return ""
        texts = [f"{store.store} ({why})" for store, why in lacking[:_FEW]]
        more = f" and {len(lacking) - _FEW} more" if len(lacking) > _FEW else ""
        return f"It has no proved KTable snapshot of store(s) {', '.join(texts)}{more}."

    def first_closing(self, point_ids: Iterable[str]) -> str | None:
        """The first of these points that closes a window."""
        return next((point_id for point_id in point_ids if point_id in self._closed_by), None)

    def remedy(self, point_id: str) -> str:
        """How to make those of a point."""
        window = self._closed_by.get(point_id)
        if window is None:
            return f"Take a point that closes a window, {RAW_REMEDY}."
        return f"Make them: {MAKE} --window {window}, {RAW_REMEDY}."

    def of(self, point_id: str) -> dict[str, ChosenSnapshot]:
        """The snapshots to restore from, by topic."""
        of_point = self._by_point.get(point_id, {})
        return {
            store.topic: ChosenSnapshot(store, of_point[store.store])
            for store in self._stores
            if not _why_not(store, of_point)
        }

    def _lacking(self, point_id: str) -> list[tuple[TableStore, str]]:
        """The stores without a snapshot to restore from, and why; stores of later on left out."""
        of_point = self._by_point.get(point_id, {})
        lacking = [(store, why) for store in self._stores if (why := _why_not(store, of_point))]
        if not lacking or not of_point:
            return lacking
        if self._topics is None:
            self._topics = self._topics_at(self._by_point)
        there = self._topics.get(point_id)
        return [each for each in lacking if there is None or each[0].topic in there]


def _why_not(store: TableStore, of_point: Mapping[str, Snapshot]) -> str:
    snapshot = of_point.get(store.store)
    if snapshot is None or snapshot.topic != store.topic:
        return "none was made"
    if snapshot.fingerprint != store.format.fingerprint:
        return "the format of the store was another one"
    return "" if snapshot.proved else f"not proved: {snapshot.reason.rstrip('.')}"


def other_cuts(wanted: WantedTopic, chosen: ChosenSnapshot) -> Iterable[Refusal]:
    """A snapshot that does not end where the point has the topic's logs end."""
    parts = {partition.partition: partition for partition in chosen.snapshot.partitions}
    for partition in wanted.partitions:
        cut, part = partition.cut, parts.get(partition.cut.partition)
        if part is None and not partition.ranges:
            continue
        if part is None or (part.topic_id, part.end, part.excluded) != _edges(cut):
            yield Refusal(
                f"store {chosen.store.store}",
                f"Its KTable snapshot of window {chosen.snapshot.window.key} was not made of"
                f" partition {cut.partition} of {cut.topic} as the point has it.",
                f"Make it again: {MAKE} --window {chosen.snapshot.window.key}, {RAW_REMEDY}.",
            )
            return


def _edges(cut: PartitionCut) -> tuple[object, ...]:
    return cut.topic_id, cut.end, cut.excluded


def begun_otherwise(found: Findings, topics: Iterable[TopicPlan]) -> Iterable[Refusal]:
    """Topics that this restore has begun to write from a snapshot with another number of rows."""
    for topic in topics:
        mine = found.of_this_restore(topic.target)
        if topic.snapshot and mine is not None and mine.records != topic.records:
            yield Refusal(
                f"topic {topic.target}",
                f"This restore was begun with {mine.records:,} records of the KTable snapshot of"
                f" store {topic.snapshot.store}, which has {topic.records:,} now.",
                "Delete the topics of this restore on the target and restore again.",
            )


def from_raw_logs(wanted: Sequence[WantedTopic], chosen: Mapping[str, object]) -> list[str]:
    """Notes on changelogs that are written from the raw log all the same."""
    changelogs = [topic for topic in wanted if TopicRole.CHANGELOG in topic.roles]
    mixed = [topic.source for topic in changelogs if topic.roles != CHANGELOG_ONLY]
    without = [
        topic.source
        for topic in changelogs
        if topic.roles == CHANGELOG_ONLY and topic.source not in chosen
    ]
    notes = []
    if mixed:
        notes.append(
            f"Source topics that serve as changelog come from the raw log: {', '.join(mixed)}."
        )
    if without:
        notes.append(
            f"No tables are made of the stores of {', '.join(without)}: these changelogs come from"
            " the raw log."
        )
    return notes

"""Changelogs from KTable snapshots: the points that have them, and their contents."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from kstreams_assets.app.store_format import StoreKind
from kstreams_assets.checks import Finding
from kstreams_assets.ktables.stores import table_stores
from kstreams_assets.model.data_files import SpanFile
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, WantedPartition
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import NotedFacts
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.repository.contents import PartitionContents
from kstreams_assets.repository.repository import Repository
from kstreams_assets.repository.snapshots import StoredSnapshots
from kstreams_assets.restore.plan import SnapshotSource
from kstreams_assets.restore.selection import WantedTopic
from kstreams_assets.settings import ApplicationSettings
from kstreams_assets.store import store_at
from kstreams_assets.store.failures import storage_failures
from kstreams_assets.texts import bytes_text, few

_BATCH = 65_536


def keyless_rows(files: Iterable[SpanFile]) -> Mapping[int, int]:
    """Return by partition the rows without a key, which Kafka Streams refuses in a changelog."""
    return _count(files, pc.field("key").is_null(), ["key"])


def non_positive_timestamps(files: Iterable[SpanFile]) -> Mapping[int, int]:
    """Return by partition how many rows with a key have a timestamp of 0 or below."""
    odd = (pc.field("timestamp_ms") <= 0) & pc.field("key").is_valid()
    return _count(files, odd, ["timestamp_ms", "key"])


def _count(
    files: Iterable[SpanFile], where: ds.Expression, columns: Sequence[str]
) -> Mapping[int, int]:
    found: Counter[int] = Counter()
    for file in files:
        with (
            storage_failures(file.path),
            pq.ParquetFile(
                store_at(file.path).readable(), page_checksum_verification=True
            ) as parquet,
        ):
            wanted = ["partition", *columns]
            for batch in parquet.iter_batches(batch_size=_BATCH, columns=wanted):
                rows = pa.Table.from_batches([batch]).filter(where)
                found.update(rows["partition"].to_pylist())
    return found


MAKE = "kstreams-assets ktables make"
RAW_REMEDY = "or set changelog_source to raw"


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """The source of a changelog's records."""

    store: TableStore
    snapshot: Snapshot


class SnapshotState:
    """The snapshots of an application, by the recovery points at which they were made.

    Args:
        stores: Stores with tables. Stores whose topics have another role besides, and stores with
            excluded topics, do not count.
        snapshots: The newest one of each store and window.
        closed_by: Of each point that closes a window, that window's key.
        excluded: Topics that the restore leaves out.
        topics_at: Returns the topics known to each of these points; called at most once, for points
            that have only some of the snapshots.
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
        # Two windows may be closed by the same point: the usable one comes last.
        for snapshot in sorted(
            snapshots, key=lambda s: (s.fingerprint == formats.get(s.store), s.proved)
        ):
            self._by_point.setdefault(snapshot.point_id, {})[snapshot.store] = snapshot

    def missing(self, point_id: str) -> str:
        """Return why a point cannot be restored from snapshots, in words; empty if it can."""
        if not self._stores:
            return ""
        if point_id not in self._closed_by:
            return (
                "It closes no window that is backed up, and KTable snapshots are made where windows"
                " close."
            )
        missing = self._without_snapshot(point_id)
        if not missing:
            return ""
        stores = few(f"{store.store} ({why})" for store, why in missing)
        return f"It has no proved KTable snapshot of store(s) {stores}."

    def first_closing(self, point_ids: Iterable[str]) -> str | None:
        """Return the first of these points that closes a window."""
        return next((point_id for point_id in point_ids if point_id in self._closed_by), None)

    def remedy(self, point_id: str) -> str:
        """Return how to make the snapshots of a point."""
        window = self._closed_by.get(point_id)
        if window is None:
            return f"Take a point that closes a window, {RAW_REMEDY}."
        return f"Make them: {MAKE} --window {window}, {RAW_REMEDY}."

    def of(self, point_id: str) -> dict[str, ChosenSnapshot]:
        """Return the snapshots to restore from, by topic."""
        of_point = self._by_point.get(point_id, {})
        return {
            store.topic: ChosenSnapshot(store, of_point[store.store])
            for store in self._stores
            if not _why_not(store, of_point)
        }

    def _without_snapshot(self, point_id: str) -> list[tuple[TableStore, str]]:
        """Return the stores without a usable snapshot, and why; later stores are left out."""
        of_point = self._by_point.get(point_id, {})
        missing = [(store, why) for store in self._stores if (why := _why_not(store, of_point))]
        if not missing or not of_point:
            return missing
        if self._topics is None:
            self._topics = self._topics_at(self._by_point)
        there = self._topics.get(point_id)
        return [each for each in missing if there is None or each[0].topic in there]


def _why_not(store: TableStore, of_point: Mapping[str, Snapshot]) -> str:
    snapshot = of_point.get(store.store)
    if snapshot is None or snapshot.topic != store.topic:
        return "none was made"
    if snapshot.fingerprint != store.format.fingerprint:
        return "the store had another format"
    return "" if snapshot.proved else f"not proved: {snapshot.reason.rstrip('.')}"


def _make_again(window: str) -> str:
    return f"Make the snapshot again: {MAKE} --window {window}, {RAW_REMEDY}."


def other_cuts(wanted: WantedTopic, chosen: ChosenSnapshot) -> Iterable[Finding]:
    """Yield a blocker for a snapshot that does not end at the point's end of the topic's logs."""
    parts = {partition.partition: partition for partition in chosen.snapshot.partitions}
    for partition in wanted.partitions:
        cut, part = partition.cut, parts.get(partition.cut.partition)
        if part is None and not partition.ranges:
            continue
        if part is None or (part.topic_id, part.end, part.excluded) != _edges(cut):
            yield Finding(
                f"store {chosen.store.store}",
                f"Its KTable snapshot of window {chosen.snapshot.window.key} was not made from"
                f" partition {cut.partition} of {cut.topic} as it is in the point.",
                action=_make_again(chosen.snapshot.window.key),
            )
            return


def _edges(cut: PartitionCut) -> tuple[object, ...]:
    return cut.topic_id, cut.end, cut.excluded


def from_raw_logs(wanted: Sequence[WantedTopic], chosen: Mapping[str, object]) -> list[str]:
    """Return notes on changelogs that are written from the raw log anyway."""
    changelogs = [topic for topic in wanted if topic.roles.is_changelog]
    mixed = [topic.source for topic in changelogs if not topic.roles.changelog_only]
    without = [
        topic.source
        for topic in changelogs
        if topic.roles.changelog_only and topic.source not in chosen
    ]
    notes = []
    if mixed:
        notes.append(
            f"Source topics that serve as changelog come from the raw log: {', '.join(mixed)}."
        )
    if without:
        notes.append(
            f"The stores of {', '.join(without)} have no tables: these changelogs come from"
            " the raw log."
        )
    return notes


ADDITIONAL_MS: Final = 86_400_000
"""What Kafka Streams adds to a store's retention in its changelog's configs: 24 h.

The default of `windowstore.changelog.additional.retention.ms`; versioned stores always.
"""

_CONFIG_OF: Final[Mapping[StoreKind, str]] = {
    StoreKind.WINDOW: "retention.ms",
    StoreKind.JOIN_WINDOW: "retention.ms",
    StoreKind.SESSION: "retention.ms",
    StoreKind.VERSIONED: "min.compaction.lag.ms",
}
_LAG: Final = _CONFIG_OF[StoreKind.VERSIONED]


def retention_blocker(store: TableStore, configs: Mapping[str, str]) -> Finding | None:
    """Return a blocker if a restore would lose rows: the declared retention is too short.

    `configs` are those that were set on the changelog. Kafka Streams sets the retention of a store
    plus a day there (`WindowedChangelogTopicConfig`, `VersionedChangelogTopicConfig`). A topic
    without such a config proves nothing.
    """
    if store.format.undeclared and may_be_versioned(store, configs):
        return _kind_blocker(store, configs[_LAG])
    declared_ms, name = store.format.retention_ms, _CONFIG_OF.get(store.format.kind)
    if declared_ms is None or name is None or name not in configs:
        return None
    kept_ms = int(configs[name]) - ADDITIONAL_MS
    if kept_ms <= declared_ms:
        return None
    return Finding(
        f"store {store.store}",
        f"Its declared retention_ms is {declared_ms}, but {name}={configs[name]} of {store.topic}"
        f" shows that the store keeps {kept_ms}: rows that it still has would be lost.",
        action=f"Declare retention_ms: {kept_ms} (or none) for the store and make its snapshots"
        f" again, {RAW_REMEDY}.",
    )


def may_be_versioned(store: TableStore, configs: Mapping[str, str]) -> bool:
    """Whether a store that is read as key and value has the changelog of a versioned one.

    Kafka Streams sets `min.compaction.lag.ms` for versioned stores only, but users may set it too.
    """
    return store.format.kind is StoreKind.KEY_VALUE and int(configs.get(_LAG, 0)) > 0


def _kind_blocker(store: TableStore, lag_ms: str) -> Finding:
    return Finding(
        f"store {store.store}",
        f"Its kind is not declared, and {_LAG}={lag_ms} of {store.topic} is what Kafka Streams sets"
        " for versioned stores: a snapshot of the newest values alone would lose their history.",
        action="Declare the kind of the store (versioned, or key_value if it is not versioned),"
        f" {RAW_REMEDY}.",
    )


_NO_ROWS = SnapshotPartition(partition=-1, topic_id="", log_start=0, end=0)


@dataclass(frozen=True, slots=True)
class FromSnapshots:
    """Replacements for raw logs; `holdings` only of the partitions of `sources`."""

    holdings: Mapping[TopicPartitionId, PartitionContents]
    sources: Mapping[str, SnapshotSource]
    blockers: tuple[Finding, ...]
    notes: tuple[str, ...]


def snapshot_state(
    settings: ApplicationSettings,
    *,
    excluded: Set[str],
    topics_at: Callable[[Collection[str]], Mapping[str, Set[str]]],
) -> SnapshotState:
    """Return the existing snapshots, checked against the stores as they are declared now.

    Args:
        settings: The application.
        excluded: Topics that the restore leaves out.
        topics_at: See `SnapshotState`.
    """
    stores = table_stores(settings)
    application_id, warehouse = settings.application_id, settings.warehouse
    repo = Repository.of(warehouse, application_id)
    closing = repo.ledger.span_rows(
        [store.topic for store in stores],
        columns=["recovery_point_id", "window", "window_start_ms"],
    )
    rows = sorted(closing.group_by(closing.column_names).aggregate([]).to_pylist(), key=_start)
    return SnapshotState(
        stores,
        repo.snapshots.of(),
        closed_by={row["recovery_point_id"]: row["window"] for row in rows},
        excluded=excluded,
        topics_at=topics_at,
    )


def _start(row: Mapping[str, int]) -> int:
    return row["window_start_ms"]


def from_snapshots(
    settings: ApplicationSettings,
    state: SnapshotState,
    point: RecoveryPoint,
    wanted: Sequence[WantedTopic],
    *,
    raw: Mapping[TopicPartitionId, PartitionContents],
    facts: Mapping[str, NotedFacts],
) -> FromSnapshots:
    """Return the contents of a point's snapshots for these topics, with exact counts.

    Args:
        settings: The application.
        state: Its snapshots.
        point: The point to restore.
        wanted: The topics to restore.
        raw: The contents of the raw logs.
        facts: The recorded facts of the source topics.
    """
    chosen = state.of(point.id)
    stored = StoredSnapshots(Repository.open(settings))
    topics = [
        _Topic(stored, topic, chosen[topic.source], raw, facts.get(topic.source))
        for topic in wanted
        if topic.roles.changelog_only and topic.source in chosen
    ]
    sources = {topic.wanted.source: topic.source for topic in topics}
    return FromSnapshots(
        holdings={id_: held for topic in topics for id_, held in topic.holdings.items()},
        sources=sources,
        blockers=tuple(blocker for topic in topics for blocker in topic.blockers()),
        notes=(*from_raw_logs(wanted, sources), *(n for t in topics for n in t.notes())),
    )


class _Topic:
    """One changelog and the snapshot from which it is written."""

    def __init__(
        self,
        stored: StoredSnapshots,
        wanted: WantedTopic,
        chosen: ChosenSnapshot,
        raw: Mapping[TopicPartitionId, PartitionContents],
        recorded: NotedFacts | None,
    ) -> None:
        self.wanted, self._chosen, self._stored = wanted, chosen, stored
        self._configs = recorded.facts.known_configs if recorded else {}
        self._raw = {p.cut.id: raw.get(p.cut.id, PartitionContents()) for p in wanted.partitions}
        snapshot = chosen.snapshot
        self._files = stored.files(snapshot)
        # Rows without a key are among the problems, so usually no file must be opened.
        self._keyless = keyless_rows(self._files) if snapshot.problem_rows else {}
        may_be_odd = any(holding.non_positive_timestamps for holding in self._raw.values())
        self._odd = non_positive_timestamps(self._files) if may_be_odd else {}
        self._parts = {part.partition: part for part in snapshot.partitions}
        self.holdings = {p.cut.id: self._holding(p) for p in wanted.partitions}

    @property
    def source(self) -> SnapshotSource:
        """The snapshot as it is reported."""
        snapshot, raw = self._chosen.snapshot, self._raw.values()
        keyless = sum(self._keyless.values())
        return SnapshotSource(
            store=snapshot.store,
            window=snapshot.window.key,
            raw_records=sum(holding.records for holding in raw),
            raw_bytes=sum(holding.bytes for holding in raw),
            keyless=keyless,
            undecoded=snapshot.problem_rows - keyless,
            keeps_deletions=self._chosen.store.format.kind is StoreKind.VERSIONED,
        )

    def blockers(self) -> Iterable[Finding]:
        """The blockers of the snapshot."""
        yield from other_cuts(self.wanted, self._chosen)
        blocker = retention_blocker(self._chosen.store, self._configs)
        if blocker is not None:
            yield blocker
        snapshot = self._chosen.snapshot
        damage = self._stored.damage(snapshot)
        if damage is not None:
            yield Finding(
                f"store {snapshot.store}",
                f"Its snapshot of window {snapshot.window.key} is damaged: {damage.problem}.",
                action=_make_again(snapshot.window.key),
            )
        there = self._stored.rows(snapshot)
        if there != snapshot.rows:
            yield Finding(
                f"store {snapshot.store}",
                f"Its table has {there:,} rows of window {snapshot.window.key}; {snapshot.rows:,}"
                " were recorded.",
                action=_make_again(snapshot.window.key),
            )

    def notes(self) -> Iterable[str]:
        """The notes on the snapshot."""
        source, held = self.source, self.holdings.values()
        topic, store = self.wanted.source, source.store
        yield (
            f"{topic} is written from the KTable snapshot of store {store}, window {source.window}:"
            f" {sum(h.records for h in held):,} records, about"
            f" {bytes_text(sum(h.bytes for h in held))}; its raw log has {source.raw_records:,},"
            f" about {bytes_text(source.raw_bytes)}."
        )
        declared = not self._chosen.store.format.undeclared
        if declared and may_be_versioned(self._chosen.store, self._configs):
            yield (
                f"{topic} has min.compaction.lag.ms set, like changelogs of versioned stores: if"
                f" {store} is one, declare its kind, or its history is lost."
            )
        if source.keyless:
            yield (
                f"{source.keyless:,} row(s) of store {store} without a key are left out: Kafka"
                " Streams refuses null keys in a changelog."
            )
        if source.undecoded:
            yield (
                f"{source.undecoded:,} row(s) of store {store} do not decode; they are restored"
                " byte for byte."
            )

    def _holding(self, wanted: WantedPartition) -> PartitionContents:
        number, raw = wanted.cut.partition, self._raw[wanted.cut.id]
        part = self._parts.get(number, _NO_ROWS)
        records = part.rows - self._keyless.get(number, 0)
        return PartitionContents(
            records=records,
            bytes=part.bytes * records // max(part.rows, 1),
            non_positive_timestamps=self._odd.get(number, 0),
            lost=raw.lost,
            expired=raw.expired,
            windows=frozenset({self._chosen.snapshot.window.key}),
        )

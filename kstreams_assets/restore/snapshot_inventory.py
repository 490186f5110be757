"""What the warehouse holds of an application's KTable snapshots, for a restore. No JVM."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.ktables.content import snapshot_problem
from kstreams_assets.ktables.from_settings import table_stores
from kstreams_assets.ktables.snapshot import SnapshotPartition
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.ktables.store_format import StoreKind
from kstreams_assets.offsets import TopicPartitionId
from kstreams_assets.recovery.point import RecoveryPoint
from kstreams_assets.restore.observed import Holding, NotedFacts
from kstreams_assets.restore.plan import Refusal, SnapshotSource
from kstreams_assets.restore.report import bytes_text
from kstreams_assets.restore.selection import WantedPartition, WantedTopic
from kstreams_assets.restore.snapshot_retention import may_be_versioned, retention_refusal
from kstreams_assets.restore.snapshot_rows import keyless_rows, odd_timestamps, snapshot_files
from kstreams_assets.restore.snapshot_state import (
    CHANGELOG_ONLY,
    MAKE,
    RAW_REMEDY,
    ChosenSnapshot,
    SnapshotState,
    from_raw_logs,
    other_cuts,
)
from kstreams_assets.settings import ApplicationSettings

_NO_ROWS = SnapshotPartition(partition=-1, topic_id="", log_start=0, end=0)


@dataclass(frozen=True, slots=True)
class FromSnapshots:
    """What snapshots give in place of raw logs; `holdings` of the partitions of `sources` only."""

    holdings: Mapping[TopicPartitionId, Holding]
    sources: Mapping[str, SnapshotSource]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]


def snapshot_state(
    settings: ApplicationSettings,
    *,
    excluded: Set[str],
    topics_at: Callable[[Collection[str]], Mapping[str, Set[str]]],
) -> SnapshotState:
    """The snapshots there are, held against the stores as they are declared now.

    Args:
        settings: The application.
        excluded: Topics that the restore leaves out.
        topics_at: See `SnapshotState`.
    """
    stores = table_stores(settings)
    application_id, warehouse = settings.application_id, settings.warehouse
    closing = Ledger(warehouse, application_id).span_rows(
        [store.topic for store in stores],
        columns=["recovery_point_id", "window", "window_start_ms"],
    )
    rows = sorted(closing.group_by(closing.column_names).aggregate([]).to_pylist(), key=_start)
    return SnapshotState(
        stores,
        SnapshotsTable(warehouse).of(application_id),
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
    raw: Mapping[TopicPartitionId, Holding],
    facts: Mapping[str, NotedFacts],
) -> FromSnapshots:
    """What the snapshots of a point hold of the wanted topics, counted exactly.

    Args:
        settings: The application.
        state: Its snapshots.
        point: The point to restore.
        wanted: What is wanted of it.
        raw: What the raw logs hold.
        facts: The source topics as they were noted.
    """
    chosen = state.of(point.id)
    topics = [
        _Topic(settings, topic, chosen[topic.source], raw, facts.get(topic.source))
        for topic in wanted
        if topic.roles == CHANGELOG_ONLY and topic.source in chosen
    ]
    sources = {topic.wanted.source: topic.source for topic in topics}
    return FromSnapshots(
        holdings={id_: held for topic in topics for id_, held in topic.holdings.items()},
        sources=sources,
        refusals=tuple(refusal for topic in topics for refusal in topic.refusals()),
        notes=(*from_raw_logs(wanted, sources), *(n for t in topics for n in t.notes())),
    )


class _Topic:
    """One changelog and the snapshot that it is written from."""

    def __init__(
        self,
        settings: ApplicationSettings,
        wanted: WantedTopic,
        chosen: ChosenSnapshot,
        raw: Mapping[TopicPartitionId, Holding],
        noted: NotedFacts | None,
    ) -> None:
        self.wanted, self._chosen = wanted, chosen
        self._configs = dict(noted.facts.configs) if noted else {}
        self._raw = {p.cut.id: raw.get(p.cut.id, Holding()) for p in wanted.partitions}
        snapshot = chosen.snapshot
        self._table = settings.warehouse.ktable(settings.application_id, snapshot.store)
        self._files = snapshot_files(self._table, snapshot.window.key)
        # Rows without a key are among the problems, so mostly no file must be opened.
        self._keyless = keyless_rows(self._files) if snapshot.problem_rows else {}
        may_be_odd = any(holding.odd_timestamps for holding in self._raw.values())
        self._odd = odd_timestamps(self._files) if may_be_odd else {}
        self._parts = {part.partition: part for part in snapshot.partitions}
        self.holdings = {p.cut.id: self._holding(p) for p in wanted.partitions}

    @property
    def source(self) -> SnapshotSource:
        """How it is told."""
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

    def refusals(self) -> Iterable[Refusal]:
        """What stands against it."""
        yield from other_cuts(self.wanted, self._chosen)
        refusal = retention_refusal(self._chosen.store, self._configs)
        if refusal is not None:
            yield refusal
        snapshot = self._chosen.snapshot
        problem = snapshot_problem(self._table, snapshot, read=False)
        if problem:
            yield Refusal(
                f"store {snapshot.store}",
                f"Its snapshot of window {snapshot.window.key} is damaged: {problem}.",
                f"Make the snapshot again: {MAKE} --window {snapshot.window.key}, {RAW_REMEDY}.",
            )
        there = sum(file.records for file in self._files)
        if there != snapshot.rows:
            yield Refusal(
                f"store {snapshot.store}",
                f"Its table has {there:,} rows of window {snapshot.window.key}, noted are"
                f" {snapshot.rows:,}.",
                f"Make the snapshot again: {MAKE} --window {snapshot.window.key}, {RAW_REMEDY}.",
            )

    def notes(self) -> Iterable[str]:
        """What is to be told of it."""
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
                f"{topic} has min.compaction.lag.ms set, as those of versioned stores have: if"
                f" {store} is one, declare its kind, or its history is lost."
            )
        if source.keyless:
            yield (
                f"{source.keyless:,} row(s) of store {store} without a key are left out: Kafka"
                " Streams takes no null key in a changelog."
            )
        if source.undecoded:
            yield (
                f"{source.undecoded:,} row(s) of store {store} do not decode; they are restored"
                " byte for byte."
            )

    def _holding(self, wanted: WantedPartition) -> Holding:
        number, raw = wanted.cut.partition, self._raw[wanted.cut.id]
        part = self._parts.get(number, _NO_ROWS)
        records = part.rows - self._keyless.get(number, 0)
        return Holding(
            records=records,
            bytes=part.bytes * records // max(part.rows, 1),
            odd_timestamps=self._odd.get(number, 0),
            lost=raw.lost,
            windows=frozenset({self._chosen.snapshot.window.key}),
        )

"""Plans snapshots from what the warehouse holds: no broker, no JVM, nothing is written."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kstreams_assets.app.model import StreamsApplication, TopicRole
from kstreams_assets.backup.chains import DELETE_RETENTION_MS, StoredSpan, chains_of
from kstreams_assets.backup.facts import TopicFactsTable
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.plan import GapCause
from kstreams_assets.backup.windows import Window
from kstreams_assets.errors import KTableWindowError, StoredDataError
from kstreams_assets.ktables.content import open_table, window_files
from kstreams_assets.ktables.plan import (
    PartitionPlan,
    SnapshotPlan,
    choose_base,
    plan_partitions,
    state_cuts,
    with_saved,
)
from kstreams_assets.ktables.proof import Proof, ProofFacts, prove, thinned_spans
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.offsets import OffsetRange
from kstreams_assets.recovery.point import PartitionCut, RecoveryPoint
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.restore.inventory import Inventory
from kstreams_assets.restore.selection import WantedPartition, WantedTopic
from kstreams_assets.warehouse.layout import Warehouse


class SnapshotPlanner:
    """Plans snapshots of one application; reads the ledger and Delta's log once."""

    def __init__(
        self, application: StreamsApplication, warehouse: Warehouse, stores: Sequence[TableStore]
    ) -> None:
        self._warehouse, self._stores = warehouse, stores
        self._application_id = application.application_id
        self._roles = {topic.name: topic.roles for topic in application.topics}
        topics = sorted({store.topic for store in stores})
        self._topics = topics
        self._closing = Ledger(warehouse, self._application_id).closing_points(topics)
        self._facts = self._proof_facts(topics)
        self._inventory = Inventory(warehouse, self._application_id, topics)
        self._points: dict[str, RecoveryPoint] = {}

    def plan(self, windows: Sequence[Window]) -> list[SnapshotPlan]:
        """The snapshots of these windows, in order of time, each store's after the one before it.

        Raises:
            KTableWindowError: A window, or one before it that is needed, is not backed up.
        """
        ordered = sorted(set(windows))
        self._require_closed(ordered)
        self._load({self._point_id(store, window) for store in self._stores for window in ordered})
        known = self._known()
        plans = []
        for window in ordered:
            for store in self._stores:
                plan = self._plan(store, window, known[store.store])
                plans.append(plan)
                others = [s for s in known[store.store] if s.window != window]
                known[store.store] = [*others, plan.promised(self._application_id)]
        return plans

    def _known(self) -> dict[str, list[Snapshot]]:
        """The snapshots of each store whose rows are in its table."""
        known: dict[str, list[Snapshot]] = {store.store: [] for store in self._stores}
        rows = {store: self._table_rows(store) for store in known}
        for snapshot in SnapshotsTable(self._warehouse).of(self._application_id, stores=known):
            if rows[snapshot.store].get(snapshot.window.key, 0) == snapshot.rows:
                known[snapshot.store].append(snapshot)
        return known

    def _table_rows(self, store: str) -> dict[str, int]:
        path = self._warehouse.ktable(self._application_id, store)
        files = window_files(open_table(path), path)
        return {window: sum(rows for _, rows in of_it) for window, of_it in files.items()}

    def _plan(self, store: TableStore, window: Window, known: Sequence[Snapshot]) -> SnapshotPlan:
        point = self._points[self._point_id(store, window)]
        facts = self._facts[store.topic]
        cuts = [self._with_roles(cut) for cut in state_cuts(point, store.topic)]
        proof = prove(facts, point, cuts, self._sealed_before(facts, cuts))
        if proof.missing:
            raise KTableWindowError(
                store=store.store, topic=store.topic, window=window.key, reason=proof.reason
            )
        base = choose_base(store, window, cuts, known)
        parts = [_with_saved(part, facts) for part in plan_partitions(cuts, base)]
        return self._with_files(
            SnapshotPlan(
                store=store,
                window=window,
                point=point,
                partitions=tuple(parts),
                base=base,
                proved=proof.proved,
                reason=_reason(proof, cuts, store),
            )
        )

    def _with_files(self, plan: SnapshotPlan) -> SnapshotPlan:
        topic = WantedTopic(
            plan.store.topic,
            self._roles.get(plan.store.topic, frozenset()),
            # Saved records are looked up when the snapshot is made.
            tuple(
                WantedPartition(replace(part.cut, saved_from=None), part.ranges, None)
                for part in plan.partitions
            ),
        )
        holdings = self._inventory.holdings(plan.point, [topic])
        held = [holdings[part.cut.id] for part in plan.partitions]
        for damage in (damage for holding in held for damage in holding.damaged):
            raise StoredDataError(
                subject=f"The backup of {plan.store.topic}",
                problem=str(damage),
                remedy=damage.remedy,
            )
        return replace(
            plan,
            partitions=tuple(
                replace(part, files=holding.files)
                for part, holding in zip(plan.partitions, held, strict=True)
            ),
            records=sum(holding.records for holding in held),
            bytes=sum(holding.bytes for holding in held),
        )

    def _require_closed(self, windows: Sequence[Window]) -> None:
        for store in self._stores:
            for window in windows:
                closed = self._closing.get(store.topic, {})
                reason = ""
                if window not in closed:
                    reason = f"{store.topic} is not backed up: back up window {window.key}"
                elif closed[window] is None:
                    reason = "no recovery point was taken before it closed"
                if reason:
                    raise KTableWindowError(
                        store=store.store, topic=store.topic, window=window.key, reason=reason
                    )

    def _point_id(self, store: TableStore, window: Window) -> str:
        return self._closing[store.topic][window] or ""

    def _load(self, ids: Iterable[str]) -> None:
        wanted = set(ids) - set(self._points)
        if not wanted:
            return
        table = RecoveryPointTable(self._warehouse)
        self._points |= {point.id: point for point in table.load(self._application_id, wanted)}

    def _sealed_before(
        self, facts: ProofFacts, cuts: Sequence[PartitionCut]
    ) -> list[RecoveryPoint]:
        """The sealed closing points of windows whose backup was thinned out before it was read."""
        closing = self._closing.get(facts.topic, {})
        ids = {
            closing.get(span.window) or ""
            for cut in cuts
            for span in thinned_spans(facts.chain(cut), [OffsetRange(cut.log_start, cut.end)])
        }
        self._load(ids)
        found = (self._points.get(id_) for id_ in ids)
        return [point for point in found if point is not None and point.sealed]

    def _with_roles(self, cut: PartitionCut) -> PartitionCut:
        return cut if cut.roles else replace(cut, roles=self._roles.get(cut.topic, frozenset()))

    def _proof_facts(self, topics: Sequence[str]) -> dict[str, ProofFacts]:
        ledger = Ledger(self._warehouse, self._application_id)
        spans = ledger.stored_spans(topics)
        others = {t for t in topics if TopicRole.CHANGELOG not in self._roles.get(t, frozenset())}
        spans = _with_holes(spans, ledger, others)
        by_topic: dict[str, list[StoredSpan]] = {topic: [] for topic in topics}
        for span in spans:
            by_topic[span.partition.topic].append(span)
        kept = TopicFactsTable(self._warehouse, self._application_id).delete_retention_ms(topics)
        return {
            topic: ProofFacts(
                topic=topic,
                chains=chains_of(of_topic),
                windows=sorted(self._closing.get(topic, ())),
                delete_retention_ms=kept.get(topic, DELETE_RETENTION_MS),
            )
            for topic, of_topic in by_topic.items()
        }


def _with_holes(
    spans: Sequence[StoredSpan], ledger: Ledger, topics: Iterable[str]
) -> list[StoredSpan]:
    """Of topics whose logs are not looked at for holes, what the gaps tell of compaction."""
    wanted = set(topics)
    if not wanted:
        return list(spans)
    compacted = {
        (entry.result.plan.window.key, entry.result.partition)
        for entry in ledger.entries(topics=wanted)
        if any(gap.cause is GapCause.COMPACTED for gap in entry.result.gaps)
    }
    return [
        span
        if span.partition.topic not in wanted
        else replace(
            span,
            first_hole=span.start if (span.window.key, span.partition) in compacted else None,
        )
        for span in spans
    ]


def _with_saved(part: PartitionPlan, facts: ProofFacts) -> PartitionPlan:
    spans = thinned_spans(facts.chain(part.cut), part.ranges)
    holes = [
        OffsetRange(span.first_hole, span.end) for span in spans if span.first_hole is not None
    ]
    return with_saved(part, holes)


def _reason(proof: Proof, cuts: Sequence[PartitionCut], store: TableStore) -> str:
    if not cuts:
        return f"{store.topic} was not there at the recovery point."
    return proof.reason

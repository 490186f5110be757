"""Plans a snapshot from ledger, recovery points and older snapshots; says whether it is proved."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.app.model import StreamsApplication, TopicRoles
from kstreams_assets.errors import KTableWindowError, StoredDataError
from kstreams_assets.ktables.plan import (
    PartitionPlan,
    SnapshotPlan,
    choose_base,
    plan_partitions,
    state_cuts,
    with_saved,
)
from kstreams_assets.ktables.snapshot import Snapshot, TableStore
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.ktables.table import open_table, window_files
from kstreams_assets.layout import Warehouse
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.warehouse.contents import Contents
from kstreams_assets.warehouse.judge import PointJudge, Restores
from kstreams_assets.warehouse.ledger import (
    DELETE_RETENTION_MS,
    Chain,
    Ledger,
    PartitionLife,
    StoredSpan,
    TopicFactsTable,
    chains_of,
    is_folded,
)
from kstreams_assets.warehouse.point import PartitionCut, RecoveryPoint, WantedPartition
from kstreams_assets.warehouse.points import RecoveryPointTable
from kstreams_assets.warehouse.spans import GapCause, Window


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a state is proved; `missing` is set when windows of it are not backed up at all."""

    proved: bool
    reason: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ProofFacts:
    """What is known of one topic: its backups, the windows, how long deletions stay in its log."""

    topic: str
    chains: Mapping[PartitionLife, Chain]
    windows: Sequence[Window]
    delete_retention_ms: int = DELETE_RETENTION_MS

    def chain(self, cut: PartitionCut) -> Chain | None:
        """The backups of a partition in the life of its topic that a cut saw."""
        return self.chains.get((cut.topic, cut.partition, cut.topic_id))


def prove(
    facts: ProofFacts,
    point: RecoveryPoint,
    cuts: Sequence[PartitionCut],
    sealed: Iterable[RecoveryPoint],
) -> Proof:
    """Judge the state of one topic at a point.

    Args:
        facts: Of the topic.
        point: The point.
        cuts: Where the state stands in each partition (see `plan.state_cuts`).
        sealed: Sealed points whose saved records are used where backups have holes.
    """
    judged = point.narrowed(cuts)
    judge = PointJudge(
        facts.chains,
        roles={},
        backed_up={facts.topic},
        closed=sorted(facts.windows),
        delete_retention_ms=None,
    )
    status = judge.judge([judged])[0]
    if any(_is_missing(cut, facts.chain(cut)) for cut in cuts):
        return Proof(False, status.reason, missing=True)
    if status.gives is not Restores.EXACT:
        return Proof(False, status.reason)
    points = [*sealed, point] if point.sealed else list(sealed)
    for cut in cuts:
        chain = facts.chain(cut)
        doubt = _global_doubt(cut, chain, point) or (
            _deletion_doubt(cut, chain, points, facts.delete_retention_ms) if chain else ""
        )
        if doubt:
            return Proof(False, doubt)
    return Proof(True, status.reason)


def thinned_spans(chain: Chain | None, ranges: Sequence[OffsetRange]) -> list[StoredSpan]:
    """Spans that meet the ranges at or above their first hole."""
    return [
        span
        for span in (chain.spans if chain else ())
        if span.first_hole is not None
        and any(r.start < span.end and span.first_hole < r.end for r in ranges)
    ]


def _is_missing(cut: PartitionCut, chain: Chain | None) -> bool:
    """Whether some window of `[log start, end)` is not backed up; lost records do not count."""
    end = cut.end if cut.saved_from is None else min(cut.saved_from, cut.end)
    if cut.log_start >= end:
        return False
    if chain is None:
        return True
    return chain.recorded.reach(max(cut.log_start, min(chain.begin, end))) < end


def _global_doubt(cut: PartitionCut, chain: Chain | None, point: RecoveryPoint) -> str:
    """The judge does not look at holes of topics that are not changelogs."""
    if cut.roles.is_changelog or chain is None:
        return ""
    hole = chain.hole_read_after(cut.log_start, cut.end, point.ledger_version)
    if hole is None:
        return ""
    return (
        f"{cut.topic}-{cut.partition}: compaction may have taken records of the point before they"
        f" were read, the log did not hold all offsets from {hole} on."
    )


def _deletion_doubt(
    cut: PartitionCut, chain: Chain, sealed: Iterable[RecoveryPoint], delete_retention_ms: int
) -> str:
    whole = _saved_whole(cut, sealed)
    doubts = (
        hole.doubt(cut.id, cut.log_start, cut.end, whole, delete_retention_ms)
        for hole in chain.late_holes(delete_retention_ms)
    )
    return next((f"{doubt}." for doubt in doubts if doubt), "")


def _saved_whole(cut: PartitionCut, sealed: Iterable[RecoveryPoint]) -> RangeSet:
    """Offsets of which sealed points have saved every record."""
    ranges: list[OffsetRange] = []
    for point in sealed:
        other = point.cut(cut.id)
        if other and other.topic_id == cut.topic_id:
            ranges += other.saved
    return RangeSet(ranges)


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
        self._contents = Contents(warehouse, application, backed_up=topics)
        self._facts = self._proof_facts(topics)
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
            whole = rows[snapshot.store].get(snapshot.window.key, 0) == snapshot.rows
            if whole and not self._ends_inside(snapshot):
                known[snapshot.store].append(snapshot)
        return known

    def _ends_inside(self, snapshot: Snapshot) -> bool:
        """Whether it ends inside windows that were put together: deletions behind it may be gone
        from there, so that nothing can build on it."""
        facts = self._facts.get(snapshot.topic)
        return facts is not None and any(
            is_folded(span.window) and span.start < part.end < span.end
            for part in snapshot.partitions
            if (chain := facts.chains.get((snapshot.topic, part.partition, part.topic_id)))
            for span in chain.spans
        )

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
            raise KTableWindowError(store=store.store, window=window.key, reason=proof.reason)
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
        # Saved records are looked up when the snapshot is made.
        holdings = self._contents.at(
            plan.point,
            [
                WantedPartition(replace(part.cut, saved_from=None), part.ranges)
                for part in plan.partitions
            ],
        )
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
                    raise KTableWindowError(store=store.store, window=window.key, reason=reason)

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
        return cut if cut.roles else replace(cut, roles=self._roles.get(cut.topic, TopicRoles()))

    def _proof_facts(self, topics: Sequence[str]) -> dict[str, ProofFacts]:
        ledger = Ledger(self._warehouse, self._application_id)
        spans = ledger.stored_spans(topics)
        others = {t for t in topics if not self._roles.get(t, TopicRoles()).is_changelog}
        spans = _with_holes(spans, ledger, others)
        by_topic: dict[str, list[StoredSpan]] = {topic: [] for topic in topics}
        for span in spans:
            by_topic[span.partition.topic].append(span)
        kept = TopicFactsTable(self._warehouse, self._application_id).delete_retention_ms(topics)
        return {
            topic: ProofFacts(
                topic=topic,
                chains=self._contents.prefixes.join(chains_of(of_topic)),
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

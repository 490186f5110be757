"""The parts of a store's state at a recovery point, and whether it is proved.

The state is the result of the records of the store's topic in `[log start, end)` outside the
excluded ranges of the point. It is made from the nearest usable earlier snapshot (its base) and the
records after it, or from all records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from kstreams_assets.app.model import NO_ROLES
from kstreams_assets.errors import StateNotCoveredError, StoredDataError
from kstreams_assets.model.chains import DELETE_RETENTION_MS, StoredSpan, chains_of
from kstreams_assets.model.point import PartitionCut, RecoveryPoint, WantedPartition
from kstreams_assets.model.snapshot import Snapshot, TableStore
from kstreams_assets.model.spans import GapCause, Window
from kstreams_assets.model.store_states import (
    PartitionPlan,
    StoreState,
    choose_base,
    plan_partitions,
    saved_cuts,
    state_cuts,
    with_saved,
)
from kstreams_assets.offsets import OffsetRange, RangeSet
from kstreams_assets.repository.contents import View
from kstreams_assets.repository.ledger import Ledger
from kstreams_assets.repository.points import NONE_SAVED
from kstreams_assets.repository.snapshots import StoredSnapshots
from kstreams_assets.repository.state_proof import Proof, ProofFacts, prove, thinned_spans


class StoreStates:
    """The states of stores of one application at its points, with their parts.

    Ledger, Delta's log and snapshots are read once, at first use.
    """

    def __init__(self, view: View, stores: Sequence[TableStore]) -> None:
        self.application_id = view.application_id
        self._view, self._roles = view, view.roles
        self._topics = sorted({store.topic for store in stores})
        self._points: dict[str, RecoveryPoint] = {}
        names = {store.store for store in stores}
        self.snapshots = StoredSnapshots(view, stores=names)

    def at(
        self, store: TableStore, point: RecoveryPoint, snapshots: Iterable[Snapshot] | None = None
    ) -> StoreState:
        """The state of a store at a point, on the last usable one of these snapshots.

        Without `snapshots`, any snapshot in `usable` may be used.

        Raises:
            StateNotCoveredError: Backups that it needs are missing.
            StoredDataError: Files of backups do not match the ledger.
        """
        proof = self.proof(store, point)
        if proof.missing:
            raise StateNotCoveredError(store=store.store, point_id=point.id, reason=proof.reason)
        cuts = self._cuts(store, point)
        base = choose_base(store, cuts, self.usable(store) if snapshots is None else snapshots)
        parts = self.parts(store, point, base)
        reason = proof.reason if cuts else f"{store.topic} did not exist at the recovery point."
        return self._with_files(StoreState(store, point, parts, base, proof.proved, reason))

    def proof(self, store: TableStore, point: RecoveryPoint) -> Proof:
        """Whether the state is exactly the store's, or required backups are missing."""
        facts, cuts = self._facts[store.topic], self._cuts(store, point)
        return prove(facts, point, cuts, self._sealed_before(facts, cuts))

    def parts(
        self, store: TableStore, point: RecoveryPoint, base: Snapshot | None = None
    ) -> tuple[PartitionPlan, ...]:
        """The records to read for a state; files are not inspected."""
        facts = self._facts[store.topic]
        planned = plan_partitions(self._cuts(store, point), base)
        return tuple(_with_saved(part, facts) for part in planned)

    def usable(self, store: TableStore) -> list[Snapshot]:
        """The snapshots of a store that a state may be based on, if its cuts allow it."""
        whole = self.snapshots.whole(store.store)
        return [snapshot for snapshot in whole if not self._ends_inside(snapshot)]

    def saved(self, point: RecoveryPoint, parts: Sequence[PartitionPlan]) -> pa.Table:
        """The records of these parts that were saved with points; files may have them, too.

        Raises:
            StoredDataError: A record was changed after it was saved.
        """
        prefixes, looked_up = self._view.prefixes, saved_cuts(parts)
        if not prefixes and not looked_up:
            return NONE_SAVED
        # Records that a restore wrote to a log may have been saved with points of the older log.
        all_ = {part.cut.id: replace(part.cut, saved_from=None) for part in parts}
        found = prefixes.saved(point, {**all_, **looked_up})
        ranges = {part.cut.id: RangeSet(part.ranges) for part in parts}
        inside = [
            rows.filter(pa.array(ranges[id_].mask(rows["offset"].to_numpy())))
            for id_, rows in sorted(found.items())
        ]
        return pa.concat_tables(inside) if inside else NONE_SAVED

    def require_unchanged(self, state: StoreState) -> None:
        """Check, before a record of a state is used, that its files are intact.

        Raises:
            StoredDataError: A file is damaged.
        """
        self._view.require_unchanged(_wanted(part) for part in state.partitions)

    @cached_property
    def closing(self) -> Mapping[str, Mapping[Window, str | None]]:
        """By topic, the backed-up windows, and the points that close them."""
        return self._view.ledger.closing_points(self._topics)

    def load(self, ids: Iterable[str]) -> list[RecoveryPoint]:
        """The existing points with these ids."""
        wanted = set(ids)
        if missing := wanted - set(self._points):
            table = self._view.points
            found = table.load(missing)
            self._points |= {point.id: point for point in found}
        return [self._points[id_] for id_ in sorted(wanted & set(self._points))]

    def _cuts(self, store: TableStore, point: RecoveryPoint) -> list[PartitionCut]:
        return state_cuts(point, store.topic, self._roles.get(store.topic, NO_ROLES))

    def _ends_inside(self, snapshot: Snapshot) -> bool:
        """Whether it ends inside merged windows: later deletions may be missing there, so nothing
        can be based on it."""
        facts = self._facts.get(snapshot.topic)
        return facts is not None and any(
            span.window.is_merged and span.start < part.end < span.end
            for part in snapshot.partitions
            if (chain := facts.chains.get((snapshot.topic, part.partition, part.topic_id)))
            for span in chain.spans
        )

    def _with_files(self, state: StoreState) -> StoreState:
        # Saved records are looked up when the state is read.
        wanted = [_wanted(part) for part in state.partitions]
        holdings = self._view.contents(state.point, wanted)
        held = [holdings[part.cut.id] for part in state.partitions]
        for damage in (damage for holding in held for damage in holding.damaged):
            raise StoredDataError(
                subject=f"The backup of {state.store.topic}",
                problem=str(damage),
                remedy=damage.remedy,
            )
        return replace(
            state,
            partitions=tuple(
                replace(part, files=holding.files)
                for part, holding in zip(state.partitions, held, strict=True)
            ),
            records=sum(holding.records for holding in held),
            bytes=sum(holding.bytes for holding in held),
            scan=self._view.scan(wanted),
        )

    def _sealed_before(
        self, facts: ProofFacts, cuts: Sequence[PartitionCut]
    ) -> list[RecoveryPoint]:
        """The sealed closing points of windows that were already compacted when they were read."""
        closing = self.closing.get(facts.topic, {})
        ids = {
            closing.get(span.window)
            for cut in cuts
            for span in thinned_spans(facts.chain(cut), [OffsetRange(cut.log_start, cut.end)])
        }
        return [point for point in self.load(filter(None, ids)) if point.sealed]

    @cached_property
    def _facts(self) -> Mapping[str, ProofFacts]:
        topics = self._topics
        spans = self._view.ledger.stored_spans(topics)
        others = {t for t in topics if not self._roles.get(t, NO_ROLES).is_changelog}
        spans = _with_holes(spans, self._view.ledger, others)
        by_topic: dict[str, list[StoredSpan]] = {topic: [] for topic in topics}
        for span in spans:
            by_topic[span.partition.topic].append(span)
        facts = self._view.topics
        kept = facts.delete_retention_ms(topics)
        return {
            topic: ProofFacts(
                topic=topic,
                chains=self._view.prefixes.join(chains_of(of_topic)),
                windows=sorted(self.closing.get(topic, ())),
                delete_retention_ms=kept.get(topic, DELETE_RETENTION_MS),
            )
            for topic, of_topic in by_topic.items()
        }


def _wanted(part: PartitionPlan) -> WantedPartition:
    return WantedPartition(replace(part.cut, saved_from=None), part.ranges)


def _with_holes(
    spans: Sequence[StoredSpan], ledger: Ledger, topics: Iterable[str]
) -> list[StoredSpan]:
    """Gaps that show compaction, for topics whose logs are not inspected for holes."""
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

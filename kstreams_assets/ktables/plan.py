"""Plan of snapshots, and the work of Spark for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kstreams_assets.errors import KStreamsAssetsError, StateNotCoveredError
from kstreams_assets.model.snapshot import Snapshot, SnapshotPartition, TableStore
from kstreams_assets.model.spans import Window
from kstreams_assets.model.store_states import StoreState, base_ranges
from kstreams_assets.offsets import RangeSet
from kstreams_assets.repository.store_states import StoreStates
from kstreams_assets.store import StorePath
from spark_resources.work import Renumbering, SnapshotWork


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A snapshot to create: the state of a store at the point that closes a window."""

    window: Window
    state: StoreState

    def promised(self, application_id: str) -> Snapshot:
        """Return the snapshot with everything that is known before it is created."""
        state = self.state
        return Snapshot(
            application_id=application_id,
            store=state.store.store,
            topic=state.store.topic,
            window=self.window,
            point_id=state.point.id,
            taken_at_ms=state.point.taken_at_ms,
            proved=state.proved,
            reason=state.reason,
            base_window=state.base.window.key if state.base else None,
            fingerprint=state.store.format.fingerprint,
            partitions=tuple(
                SnapshotPartition(
                    partition=part.cut.partition,
                    topic_id=part.cut.topic_id,
                    log_start=part.cut.log_start,
                    end=part.cut.end,
                    excluded=part.cut.excluded,
                )
                for part in state.partitions
            ),
            records=state.records,
        )


def work_of(
    plan: SnapshotPlan,
    base: Snapshot | None,
    base_files: Sequence[StorePath],
    saved_file: StorePath | None,
    saved_records: int = 0,
) -> SnapshotWork:
    """Return the work of a plan, after its base exists and saved records are staged."""
    state = plan.state
    whole: list[StorePath] = []
    cut: list[StorePath] = []
    for part in state.partitions:
        for file in part.files:
            inside = RangeSet(part.ranges).covers(file.first_offset, file.last_offset + 1)
            (whole if inside else cut).append(file.path)
    records = state.records + saved_records + (base.rows if base else 0)
    times = {part.partition: part.stream_time_ms for part in base.partitions} if base else {}
    return SnapshotWork(
        window=plan.window.key,
        format=state.store.format,
        partitions=tuple(part.cut.partition for part in state.partitions),
        base_files=tuple(base_files),
        base_ranges=base_ranges(state, base),
        whole_files=tuple(whole),
        cut_files=tuple(cut),
        ranges={part.cut.partition: part.ranges for part in state.partitions},
        saved_file=saved_file,
        stream_times={number: at for number, at in times.items() if at is not None},
        records=records,
        record_bytes=(state.bytes + (base.bytes if base else 0)) / max(records, 1),
        scan=state.scan,
        renumbering=Renumbering.of(file for part in state.partitions for file in part.files),
    )


def plan_snapshots(
    states: StoreStates, stores: Sequence[TableStore], windows: Sequence[Window]
) -> list[SnapshotPlan]:
    """Plan the snapshots of these windows, oldest first; later ones build on earlier ones.

    Raises:
        KStreamsAssetsError: A window, or an earlier necessary one, is not backed up.
    """
    ordered = sorted(set(windows))
    closing = {(s.store, w): _closing_point(states, s, w) for s in stores for w in ordered}
    points = {point.id: point for point in states.load(closing.values())}
    application_id = states.application_id
    known = {store.store: states.usable(store) for store in stores}
    plans = []
    for window in ordered:
        for store in stores:
            others = [s for s in known[store.store] if s.window != window]
            earlier = [s for s in others if s.window.end_ms <= window.start_ms]
            try:
                state = states.at(store, points[closing[store.store, window]], earlier)
            except StateNotCoveredError as error:
                raise _no_snapshot(store, window, error.reason) from error
            plans.append(SnapshotPlan(window, state))
            known[store.store] = [*others, plans[-1].promised(application_id)]
    return plans


def _closing_point(states: StoreStates, store: TableStore, window: Window) -> str:
    closed = states.closing.get(store.topic, {})
    if point_id := closed.get(window):
        return point_id
    reason = "no recovery point was taken before it closed"
    if window not in closed:
        reason = f"{store.topic} is not backed up: back up window {window.key}"
    raise _no_snapshot(store, window, reason)


def _no_snapshot(store: TableStore, window: Window, reason: str) -> KStreamsAssetsError:
    """Return the error for a window that, or an earlier necessary one, is not backed up."""
    return KStreamsAssetsError(
        f"A snapshot of store {store.store} for window {window.key} is not possible:"
        f" {reason.rstrip('.')}.",
        remedy="Back up the missing windows, then make the snapshot again.",
    )

"""The recovery points that a backup run takes itself, and those that its reading shows unproven."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kstreams_assets.app.model import StreamsApplication
from kstreams_assets.backup.held import held_positions
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.result import TopicBackup
from kstreams_assets.backup.unproven import unproven_points
from kstreams_assets.backup.windows import Window
from kstreams_assets.errors import KafkaError
from kstreams_assets.kafka.cluster import KafkaCluster
from kstreams_assets.recovery.point import RecoveryPoint, in_force
from kstreams_assets.recovery.recorder import Recorder
from kstreams_assets.recovery.table import RecoveryPointTable
from kstreams_assets.settings import RecoveryPointSettings
from kstreams_assets.warehouse.layout import Warehouse
from kstreams_assets.warehouse.lock import WarehouseLockedError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunPoints:
    """Takes points with what the backups hold: only the rest of the changelogs is to be saved."""

    application: StreamsApplication
    cluster: KafkaCluster
    warehouse: Warehouse
    settings: RecoveryPointSettings

    def ensure_closing(self, newest_closed: Window, topics: Sequence[str]) -> None:
        """Take the point that bounds the newest closed window, should it have none.

        A window of which a topic is backed up already keeps its edges.
        """
        application_id = self.application.application_id
        if Ledger(self.warehouse, application_id).done(topics).get(newest_closed):
            return
        instants = in_force(RecoveryPointTable(self.warehouse).instants(application_id))
        inside = range(newest_closed.start_ms, newest_closed.end_ms)
        if not any(instant.effective_at_ms in inside for instant in instants):
            self._take(closes_window_end_ms=newest_closed.end_ms)

    def take_last(self) -> RecoveryPoint | None:
        """Take the point that a run ends with, sealed if it can be.

        None when the cluster or another recorder stands in the way: the backups that the run made
        do not depend on it, and the next point seals what this one would have.
        """
        try:
            return self._take()
        except (KafkaError, WarehouseLockedError) as error:
            _log.warning(
                "The backups are done, but no recovery point could be taken after them: %s", error
            )
            return None

    def _take(self, *, closes_window_end_ms: int | None = None) -> RecoveryPoint:
        ledger = Ledger(self.warehouse, self.application.application_id)
        recorder = Recorder(self.application, self.cluster, self.warehouse, self.settings)
        return recorder.take(
            closes_window_end_ms=closes_window_end_ms,
            held=held_positions(ledger, self.application),
            seal_bytes=self.settings.closing_seal_bytes,
        )


def with_unproven(
    warehouse: Warehouse, application_id: str, backups: Iterable[TopicBackup]
) -> list[TopicBackup]:
    """Note with each topic the points of its window that its holes leave unproven."""
    backups = list(backups)
    thinned = {b.window for b in backups if any(s.first_hole is not None for s in b.spans)}
    if not thinned:
        return backups
    table = RecoveryPointTable(warehouse)
    within = [range(window.start_ms, window.end_ms) for window in thinned]
    ids = [
        instant.id
        for instant in table.instants(application_id)
        if any(instant.effective_at_ms in window for window in within)
    ]
    points = table.load(application_id, ids)
    return [replace(b, unproven_points=unproven_points(b, points)) for b in backups]

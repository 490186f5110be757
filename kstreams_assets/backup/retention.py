"""What backups and restores say about which recovery points, and what they saved, must be kept."""

from collections.abc import Collection, Iterable

from kstreams_assets.backup.held import proven_ranges
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.backup.partitions import WindowCalendar
from kstreams_assets.recovery.maintenance import Retention
from kstreams_assets.restore.restores_table import RestoresTable
from kstreams_assets.settings import ApplicationSettings


def retention_of(settings: ApplicationSettings, *, pinned: Collection[str] = ()) -> Retention:
    """How the points of an application are thinned out.

    The last of each window stays, and those that the ledger names, that unfinished restores are
    made from, or that are `pinned`; what backups hold without holes is not kept a second time.
    """
    calendar = WindowCalendar(settings.windows)
    ledger = Ledger(settings.warehouse, settings.application_id)
    restores = RestoresTable(settings.warehouse)

    def edges(low_ms: int, _high_ms: int) -> Iterable[int]:
        windows = calendar.closed_since(low_ms)
        return {edge for window in windows for edge in (window.start_ms, window.end_ms)}

    return Retention(
        keep_all_s=settings.recovery_points.keep_all_s,
        edges_ms=edges,
        named=lambda: {
            *pinned,
            *ledger.closing_point_ids(),
            *restores.pinned(settings.application_id),
        },
        proven=lambda: proven_ranges(ledger, settings.application),
    )

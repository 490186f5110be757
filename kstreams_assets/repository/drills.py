"""The table of restore drills."""

from collections.abc import Callable, Iterable

from kstreams_assets.model.drill import StoredDrill
from kstreams_assets.model.restores import StoredRestore
from kstreams_assets.model.tables import DRILLS
from kstreams_assets.repository.table import ApplicationTable


class DrillsTable(ApplicationTable[StoredDrill], spec=DRILLS):
    """The drills of one application."""

    def record(self, drill: StoredDrill) -> None:
        """Add a drill."""
        self._table.append([drill])

    def all(self) -> list[StoredDrill]:
        """All of them, the newest first."""
        found = self._table.rows()
        return sorted(found, key=lambda d: (d.began_at_ms, d.drill_id), reverse=True)

    def without_drills(self, restores: Iterable[StoredRestore]) -> list[StoredRestore]:
        """The restores that no drill made, in the given order.

        Restores of earlier releases are recognised by the reports of the drills.
        """
        is_drill = self.are_drills()
        return [restore for restore in restores if not is_drill(restore)]

    def are_drills(self) -> Callable[[StoredRestore], bool]:
        """Which restores drills made."""
        runs = {drill.run_id for drill in self.all()}
        return lambda restore: restore.is_of_drill or restore.run_id in runs

    def newest(self) -> StoredDrill | None:
        """The newest drill, None without any."""
        return next(iter(self.all()), None)

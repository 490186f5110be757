"""What the warehouse says of how an application stands; needs neither a broker nor a JVM."""

import math
from dataclasses import dataclass
from functools import cached_property

from kstreams_assets.backup.coverage import Restorable, newest_restorable
from kstreams_assets.backup.damage import DamagedSpans
from kstreams_assets.backup.due import WindowStatus, window_statuses
from kstreams_assets.backup.ledger import Ledger
from kstreams_assets.completeness.checks import declared_rules
from kstreams_assets.completeness.result import ResultsTable, RuleStanding
from kstreams_assets.drill.table import DrillsTable, StoredDrill
from kstreams_assets.governance.findings import GovernanceReport
from kstreams_assets.governance.table import FindingsTable
from kstreams_assets.ktables.snapshot import Snapshot
from kstreams_assets.ktables.snapshots_table import SnapshotsTable
from kstreams_assets.settings import ApplicationSettings


@dataclass(frozen=True)
class Evidence:
    """Each part is read when it is first asked for, and once; so an object is of one moment.

    Each raises NewerLayoutError when a newer release wrote its table.
    """

    settings: ApplicationSettings

    @cached_property
    def windows(self) -> list[WindowStatus]:
        """Every closed window from the first recovery point on, oldest first."""
        return window_statuses(self.settings)

    @cached_property
    def restorable(self) -> Restorable:
        """The newest recovery points that backups cover."""
        return newest_restorable(self.settings, look_s=math.inf)

    @cached_property
    def damaged(self) -> DamagedSpans:
        """Backups whose files are missing or do not match the ledger."""
        settings = self.settings
        return Ledger(settings.warehouse, settings.application_id).damaged()

    @cached_property
    def damaged_snapshots(self) -> list[tuple[Snapshot, str]]:
        """KTable snapshots whose files are missing or have another size, and what is wrong."""
        return SnapshotsTable(self.settings.warehouse).damaged(self.settings.application_id)

    @cached_property
    def rules(self) -> list[RuleStanding]:
        """How each declared rule stands at each place where it was evaluated."""
        table = ResultsTable(self.settings.warehouse)
        return table.standings(self.settings.application_id, declared_rules(self.settings))

    @cached_property
    def governance(self) -> GovernanceReport | None:
        """The newest look at the cluster, None before the first."""
        return FindingsTable(self.settings.warehouse).newest(self.settings.application_id)

    @cached_property
    def drill(self) -> StoredDrill | None:
        """The drill that was begun last, None before the first."""
        return DrillsTable(self.settings.warehouse).newest(self.settings.application_id)

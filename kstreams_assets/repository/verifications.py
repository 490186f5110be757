"""The table of verifications: their findings, and which of these are still open."""

from kstreams_assets.model.damage import StoredVerification, VerificationKind, Verified
from kstreams_assets.model.tables import VERIFICATIONS
from kstreams_assets.repository.table import ApplicationTable


class VerificationsTable(ApplicationTable[StoredVerification], spec=VERIFICATIONS):
    """The verifications of one application, kept for 400 days."""

    def record(self, verification: StoredVerification) -> None:
        """Add one."""
        self._table.append([verification])

    def all(self) -> list[StoredVerification]:
        """All of them, newest first."""
        rows = self._table.rows()
        return sorted(rows, key=lambda row: row.verified_at_ms, reverse=True)

    def verified(self) -> Verified:
        """The last verification of the warehouse; each one carries earlier open findings on.

        Raises:
            NewerLayoutError: A newer release wrote the table.
        """
        rows = self.all()
        if not rows:
            return Verified()
        newest = rows[0]
        full = next((row for row in rows if row.kind is VerificationKind.FULL), None)
        return Verified(
            open=newest.damages,
            any_at_ms=newest.verified_at_ms,
            full_at_ms=None if full is None else full.verified_at_ms,
            covered_since_ms=newest.covered_since_ms,
            heads=newest.seen_heads,
        )

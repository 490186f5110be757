"""A request for a backup run that Dagster has not turned into a run yet.

Dagster drops a request whose run key has a run already, but two daemons whose ticks fall into the
same instant both look before either has created its run. A claim in the warehouse closes that gap.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kstreams_assets.warehouse.layout import Warehouse

CLAIM_S: Final = 60
"""How long a claim counts without a run; a daemon that was killed before delays them so long."""


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """What was requested last, and when (epoch milliseconds)."""

    run_key: str
    claimed_at_ms: int

    def counts_at(self, now_ms: int) -> bool:
        """Whether its run may still be about to be created."""
        return 0 <= now_ms - self.claimed_at_ms < CLAIM_S * 1000


def claim_file(warehouse: Warehouse, application_id: str) -> Path:
    """Where the claim of an application stands, beside its locks."""
    return warehouse.lock_file(f"backup-requests/{application_id}").with_suffix(".json")


def read_claim(path: Path) -> RequestClaim | None:
    """The newest claim; None when there is none or it cannot be read (it is worth a minute)."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return RequestClaim(str(facts["run_key"]), int(facts["claimed_at_ms"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_claim(path: Path, claim: RequestClaim) -> None:
    """Replace the claim, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps(asdict(claim)), encoding="utf-8")
    os.replace(written, path)

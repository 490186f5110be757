"""The parcel tracker: what it is started with, and its topics."""

from pathlib import Path
from typing import Final

from examples.streams.application import Example

SERVE_AS_CHANGELOG: Final = ("parcels", "customers")
"""Inputs that are the changelogs of the tables made of them (`topology.optimization=all`)."""

INPUTS: Final = (*SERVE_AS_CHANGELOG, "slots", "scans", "handovers", "ledger")
OUTPUTS: Final = (
    "schedule",
    "labels",
    "regional-scans",
    "depot-windows",
    "depot-load",
    "handover-reports",
    "postage",
)

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("ParcelTracker.java"),
    application_id="parcel-tracker",
    topics={
        **{name: {"cleanup.policy": "compact"} for name in SERVE_AS_CHANGELOG},
        **{name: {} for name in INPUTS if name not in SERVE_AS_CHANGELOG},
        **{name: {} for name in OUTPUTS},
    },
    config={},
)

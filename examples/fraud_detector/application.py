"""The fraud detector: sessions of suspicious transactions, evaluated with a global table."""

from pathlib import Path
from typing import Final

from examples.streams.application import Example

TRANSACTIONS: Final = "transactions"
RISK_SCORES: Final = "risk-scores"
ALERTS: Final = "fraud-alerts"

RISKS: Final = "global-risk-store"
SESSIONS: Final = "session-count-store"

EXAMPLE: Final = Example(
    source=Path(__file__).with_name("FraudDetector.java"),
    application_id="fraud-detector",
    topics={TRANSACTIONS: {}, RISK_SCORES: {"cleanup.policy": "compact"}, ALERTS: {}},
    config={},
)
